"""Attention: ``scaled_dot_product_attention`` against its formula in float64 on the host.

The bound of a result in a narrower dtype is that of an average: the weights add up to 1, so that an
error of u in weights, values and result each leaves at most a few u of the largest value. Averages
of many values are small next to that, and zeros no farther off, so the norm has a bound too.
"""

from __future__ import annotations

import math

from portagpu.devices.contract import Capability
from portagpu.suites.conformance import NotClaimed, NotHere, case
from portagpu.suites.conformance.closeness import require_dtypes

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
BOUND = "8 u max|v| + 4 u max|q.k| max|v|, u the unit of the dtype, and a quarter of its norm"
KERNELS = ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")


def _inputs(
    torch, dtype="float32", batch=2, heads=3, queries=17, keys=17, width=16, key_heads=None
):
    made = torch.Generator().manual_seed(5)
    shapes = (
        (batch, heads, queries, width),
        (batch, key_heads or heads, keys, width),
        (batch, key_heads or heads, keys, width),
    )
    return [torch.randn(shape, generator=made).to(getattr(torch, dtype)) for shape in shapes]


def _exact(torch, q, k, v, mask=None, causal=False, scale=None):
    """The formula, in float64: softmax(q k^T scale + mask) v."""
    q, k, v = (each.double().cpu() for each in (q, k, v))
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    if mask is not None:
        added = torch.zeros(mask.shape, dtype=torch.float64)
        added = added.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else mask.double()
        scores = scores + added
    return torch.softmax(scores, -1) @ v


def _bound(q, k, v, dtype):
    largest = float(v.double().abs().max())
    scores = float((q.double() @ k.double().mT).abs().max()) / math.sqrt(q.shape[-1])
    return UNIT[dtype] * largest * (8 + 4 * scores)


def _attend(gpu, torch, q, k, v, **options):
    call = torch.nn.functional.scaled_dot_product_attention
    return call(*(each.to(gpu.device) for each in (q, k, v)), **options).cpu()


def _compare(torch, found, exact, bound, what):
    off = float((found.double() - exact).abs().max())
    assert math.isfinite(off), f"{what} is not finite"
    assert off <= bound, f"{what} is {off:.3g} off, the bound is {bound:.3g}"
    far = float((found.double() - exact).norm() / exact.norm())
    assert far <= 1 / 4, f"{what} is {far:.2g} of its norm off"


@case(
    "attention/matches-float64",
    spec="Attention is the softmax of the scaled scores times the values.",
    outcome=f"bounded: {BOUND}",
    params={"dtype": tuple(UNIT), "causal": (False, True)},
    smoke=True,
)
def test_matches_float64(gpu, torch, dtype, causal):
    require_dtypes(gpu, dtype)
    q, k, v = _inputs(torch, dtype)
    found = _attend(gpu, torch, q, k, v, is_causal=causal)
    assert found.dtype == q.dtype, f"attention of {dtype} gives {found.dtype}"
    exact = _exact(torch, q, k, v, causal=causal)
    _compare(torch, found, exact, _bound(q, k, v, dtype), f"attention in {dtype}")


@case(
    "attention/head-dimensions",
    spec="Attention is right for heads of every size, also those that no fast kernel takes.",
    outcome=f"bounded: {BOUND}",
    traps=("M06",),
    params={"width": (1, 8, 33, 64, 96, 128, 256, 512)},
)
def test_head_dimensions(gpu, torch, width):
    require_dtypes(gpu, "bfloat16")
    q, k, v = _inputs(torch, "bfloat16", batch=1, heads=2, width=width)
    found = _attend(gpu, torch, q, k, v)
    bound = _bound(q, k, v, "bfloat16")
    _compare(torch, found, _exact(torch, q, k, v), bound, f"attention of heads of {width}")


@case(
    "attention/lengths",
    spec="Attention is right for any numbers of queries and keys.",
    outcome=f"bounded: {BOUND}",
    params={"queries": (1, 7, 130), "keys": (1, 5, 257)},
)
def test_lengths(gpu, torch, queries, keys):
    q, k, v = _inputs(torch, queries=queries, keys=keys)
    found = _attend(gpu, torch, q, k, v)
    what = f"attention of {queries} queries to {keys} keys"
    _compare(torch, found, _exact(torch, q, k, v), _bound(q, k, v, "float32"), what)


@case(
    "attention/of-nothing",
    spec="Attention of no query has no row, of an empty batch no batch, and the next one is right.",
    outcome=f"bounded: {BOUND}",
)
def test_of_nothing(gpu, torch):
    none = _attend(gpu, torch, *_inputs(torch, queries=0))
    assert tuple(none.shape) == (2, 3, 0, 16), f"no query gives the shape {tuple(none.shape)}"
    empty = _attend(gpu, torch, *_inputs(torch, batch=0))
    assert tuple(empty.shape) == (0, 3, 17, 16), f"no batch gives {tuple(empty.shape)}"
    # a launch without a block is an error that CUDA and HIP report at the call after it
    inputs = _inputs(torch)
    bound = _bound(*inputs, "float32")
    what = "attention after those of nothing"
    _compare(torch, _attend(gpu, torch, *inputs), _exact(torch, *inputs), bound, what)


@case(
    "attention/causal-hides-the-future",
    spec="With is_causal a query's result does not depend on later keys and values, bitwise.",
    params={"dtype": ("float32", "bfloat16")},
)
def test_causal_hides_the_future(gpu, torch, dtype):
    require_dtypes(gpu, dtype)
    q, k, v = _inputs(torch, dtype)
    before = _attend(gpu, torch, q, k, v, is_causal=True)
    k[:, :, 9:], v[:, :, 9:] = 3.0, -7.0
    after = _attend(gpu, torch, q, k, v, is_causal=True)
    same = torch.equal(before[:, :, :9], after[:, :, :9])
    assert same, "a query's result changed with keys that come after it"
    assert not torch.equal(before, after), "later queries do not see the keys that changed"


@case(
    "attention/causal-starts-at-the-first-key",
    spec="With is_causal and fewer queries than keys, query i sees the keys 0 to i, as torch says.",
    outcome=f"bounded: {BOUND}",
)
def test_causal_starts_at_the_first_key(gpu, torch):
    q, k, v = _inputs(torch, queries=5)
    found = _attend(gpu, torch, q, k, v, is_causal=True)
    exact = _exact(torch, q, k, v, causal=True)
    _compare(torch, found, exact, _bound(q, k, v, "float32"), "causal attention of 5 queries")


@case(
    "attention/boolean-mask",
    spec="A boolean mask keeps the keys where it is True.",
    outcome=f"bounded: {BOUND}",
    params={"dtype": ("float32", "bfloat16")},
)
def test_boolean_mask(gpu, torch, dtype):
    require_dtypes(gpu, dtype)
    q, k, v = _inputs(torch, dtype)
    mask = torch.rand(17, 17, generator=torch.Generator().manual_seed(1)) > 0.5
    mask |= torch.eye(17, dtype=torch.bool)
    found = _attend(gpu, torch, q, k, v, attn_mask=mask.to(gpu.device))
    exact = _exact(torch, q, k, v, mask=mask)
    _compare(torch, found, exact, _bound(q, k, v, dtype), f"masked attention in {dtype}")


@case(
    "attention/added-mask",
    spec="A mask of numbers is added to the scores, of one head as of all.",
    outcome=f"bounded: {BOUND}",
    params={"shape": ("17x17", "2x1x17x17", "1x3x17x17")},
)
def test_added_mask(gpu, torch, shape):
    q, k, v = _inputs(torch)
    sizes = tuple(int(size) for size in shape.split("x"))
    mask = torch.randn(sizes, generator=torch.Generator().manual_seed(2))
    found = _attend(gpu, torch, q, k, v, attn_mask=mask.to(gpu.device))
    bound = _bound(q, k, v, "float32") * 2
    _compare(torch, found, _exact(torch, q, k, v, mask=mask), bound, "attention with added numbers")


@case(
    "attention/masked-row",
    spec="What a query that may see no key gets is recorded: some kernels give NaN, others zeros.",
    outcome="undefined",
)
def test_masked_row(gpu, torch, record):
    q, k, v = _inputs(torch, batch=1, heads=1, queries=2, keys=3)
    mask = torch.tensor([[True] * 3, [False] * 3], device=gpu.device)
    row = _attend(gpu, torch, q, k, v, attn_mask=mask)[0, 0, 1]
    kind = "NaN" if row.isnan().all() else "zeros" if (row == 0).all() else f"{row.tolist()}"
    record(f"a query that sees no key gets {kind}")


@case(
    "attention/grouped-heads",
    spec="With enable_gqa, heads that share keys get what repeated keys give.",
    outcome=f"bounded: {BOUND}",
    params={"key_heads": (1, 2, 4)},
)
def test_grouped_heads(gpu, torch, key_heads):
    q, k, v = _inputs(torch, heads=4, key_heads=key_heads)
    found = _attend(gpu, torch, q, k, v, enable_gqa=True)
    k, v = (each.repeat_interleave(4 // key_heads, 1) for each in (k, v))
    bound = _bound(q, k, v, "float32")
    _compare(torch, found, _exact(torch, q, k, v), bound, f"4 heads over {key_heads} of keys")


@case(
    "attention/explicit-scale",
    spec="An explicit scale takes the place of 1/sqrt(head dimension).",
    outcome=f"bounded: {BOUND}",
    params={"scale": (1.0, 0.01)},
)
def test_explicit_scale(gpu, torch, scale):
    q, k, v = _inputs(torch)
    found = _attend(gpu, torch, q, k, v, scale=scale)
    bound = 4 * _bound(q, k, v, "float32")
    _compare(torch, found, _exact(torch, q, k, v, scale=scale), bound, f"a scale of {scale}")


@case(
    "attention/strides",
    spec="Inputs that are views in batch-sequence-head order give what their copies give.",
    outcome=f"bounded: {BOUND}",
    traps=("M06",),
    params={"dtype": ("float32", "bfloat16")},
)
def test_strides(gpu, torch, dtype):
    require_dtypes(gpu, dtype)
    views = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in _inputs(torch, dtype)]
    found = _attend(gpu, torch, *views)
    bound = _bound(*views, dtype)
    _compare(torch, found, _exact(torch, *views), bound, "attention of views")


@case(
    "attention/average-of-ones",
    spec="Values of 1 give results of 1 over many keys: the sums are kept wider than the dtype.",
    outcome="bounded: 2 u, u the unit of the dtype",
    params={"dtype": ("float16", "bfloat16")},
)
def test_average_of_ones(gpu, torch, dtype):
    require_dtypes(gpu, dtype)
    q, k, v = _inputs(torch, dtype, batch=1, heads=1, keys=2048)
    found = _attend(gpu, torch, q, k, torch.ones_like(v))
    off = float((found.double() - 1).abs().max())
    assert off <= 2 * UNIT[dtype], f"an average of ones over 2048 keys in {dtype} is {off} off"


@case(
    "attention/large-scores-are-finite",
    spec="Scores beyond what exp holds give finite and right results: the largest is subtracted "
    "first.",
    outcome=f"bounded: {BOUND}",
)
def test_large_scores_are_finite(gpu, torch):
    q, k, v = _inputs(torch)
    # whole numbers, whose products and sums are exact in float32
    q, k = (q * 20).round(), (k * 20).round()
    found = _attend(gpu, torch, q, k, v)
    _compare(torch, found, _exact(torch, q, k, v), _bound(q, k, v, "float32"), "of large scores")


@case(
    "attention/gradients",
    spec="The gradients of attention are those of its formula in float64.",
    outcome="bounded: 2^-16 absolute",
    params={"causal": (False, True)},
)
def test_gradients(gpu, torch, causal):
    inputs = _inputs(torch, batch=1, heads=2, queries=9, keys=9, width=8)
    here = [each.detach().clone().to(gpu.device).requires_grad_() for each in inputs]
    call = torch.nn.functional.scaled_dot_product_attention
    call(*here, is_causal=causal).square().sum().backward()
    exact = [each.double().requires_grad_() for each in inputs]
    _exact(torch, *exact, causal=causal).square().sum().backward()
    for name, mine, theirs in zip("qkv", here, exact, strict=True):
        _compare(torch, mine.grad.cpu(), theirs.grad, 2.0**-16, f"the gradient of {name}")


@case(
    "attention/repeats",
    spec="The same attention twice is bitwise the same, and right.",
    outcome=f"bounded: {BOUND}",
    traps=("P18",),
    params={"dtype": ("float32", "bfloat16")},
)
def test_repeats(gpu, torch, dtype):
    require_dtypes(gpu, dtype)
    inputs = _inputs(torch, dtype)
    first = _attend(gpu, torch, *inputs)
    again = [torch.equal(_attend(gpu, torch, *inputs), first) for _ in range(3)]
    assert all(again), f"{again.count(False)} of three repeated attentions in {dtype} differ"
    bound = _bound(*inputs, dtype)
    _compare(torch, first, _exact(torch, *inputs), bound, f"repeated attention in {dtype}")


@case(
    "attention/dropout-keeps-the-mean",
    spec="Dropout of weights scales what it keeps: the mean of many draws stays.",
    outcome="bounded: 6 standard errors",
)
def test_dropout_keeps_the_mean(gpu, torch):
    ones = torch.ones(64, 8, 16, 16)
    found = _attend(gpu, torch, ones, ones, ones, dropout_p=0.5).double()[..., 0]
    error = float(found.std()) / math.sqrt(found.numel())
    assert float(found.std()) > 0, "a dropout of one half drops nothing"
    off = abs(float(found.mean()) - 1)
    assert off <= 6 * error, f"the mean is {off:.4f} off, six standard errors are {6 * error:.4f}"


@case(
    "attention/forced-kernel",
    spec="A kernel that is forced is right, or is refused with an error that says that none fits.",
    outcome=f"bounded: {BOUND}",
    traps=("M06",),
    params={"kernel": KERNELS},
)
def test_forced_kernel(gpu, torch, kernel, record):
    require_dtypes(gpu, "bfloat16")
    q, k, v = _inputs(torch, "bfloat16", width=64)
    wanted = getattr(torch.nn.attention.SDPBackend, kernel)
    try:
        with torch.nn.attention.sdpa_kernel([wanted]):
            found = _attend(gpu, torch, q, k, v)
    except RuntimeError as error:
        assert kernel != "MATH", f"the plain kernel is refused: {error}"
        assert "kernel" in str(error).lower(), f"{kernel} is refused with: {error}"
        record(f"{kernel} is refused here")
        return
    _compare(torch, found, _exact(torch, q, k, v), _bound(q, k, v, "bfloat16"), kernel)


@case(
    "attention/fused-kernels-save-memory",
    spec="A fused kernel needs less than a quarter of the memory that the matrix of scores takes, "
    "and is right.",
    outcome=f"bounded: {BOUND}",
    capability=Capability.PEAK_MEMORY,
    traps=("M06",),
    covers=("Backend.reset_peak_memory_stats",),
)
def test_fused_kernels_save_memory(gpu, torch):
    require_dtypes(gpu, "bfloat16")
    heads, length = 2, 4096
    shape = {"batch": 1, "heads": heads, "queries": length, "keys": length, "width": 64}
    q, k, v = _inputs(torch, "bfloat16", **shape)
    inputs = [each.to(gpu.device) for each in (q, k, v)]
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    fused = [getattr(torch.nn.attention.SDPBackend, kernel) for kernel in KERNELS[1:]]
    with torch.nn.attention.sdpa_kernel(fused):
        try:
            with profile:
                torch.nn.functional.scaled_dot_product_attention(*inputs)
        except RuntimeError as error:
            raise NotHere(f"no fused kernel runs here: {str(error).splitlines()[0]}") from None
        # a type of device that torch knows no fused kernel for gets the plain one, allowed or not:
        # pytorch v2.13.0, aten/src/ATen/native/transformers/attention.cpp, _fused_sdp_choice_stub
        if any(
            each.name == "aten::_scaled_dot_product_attention_math" for each in profile.events()
        ):
            raise NotClaimed(f"torch has no fused attention for {gpu.device.type!r}")
        # the memory of the profiler and of a first call is not the kernel's
        gpu.synchronize()
        gpu.reset_peak_memory_stats()
        before = gpu.memory_allocated()
        found = torch.nn.functional.scaled_dot_product_attention(*inputs)
        gpu.synchronize()
    used, scores = gpu.max_memory_allocated() - before, heads * length * length * 2
    assert used < scores / 4, f"{used >> 20} MiB are needed, the scores take {scores >> 20} MiB"
    some = q[:, :, ::64]
    bound = _bound(some, k, v, "bfloat16")
    what = "attention of a fused kernel"
    _compare(torch, found[:, :, ::64].cpu(), _exact(torch, some, k, v), bound, what)
