"""Precision: sums, and operations whose usual shortcuts show in exact numbers.

Inputs are whole numbers, or chosen so that the right answer is known to the last bit that counts;
sums of random numbers are held against float64.
"""

from __future__ import annotations

import math

from portagpu.suites.conformance import NotClaimed, NotHere, case
from portagpu.suites.conformance.closeness import FLOATS, ROUNDOFF, require_dtypes


@case(
    "precision/sum-is-accurate",
    spec="The sum of random numbers is near the sum in float64.",
    outcome="bounded: n u' sum|x| + u |sum|, u' = 2^-24 for the sum, u of the dtype for the end",
    params={"dtype": FLOATS},
)
def test_sum_is_accurate(gpu, torch, dtype):
    require_dtypes(gpu, dtype)
    count = 4096
    values = torch.randn(count, dtype=torch.float64).to(getattr(torch, dtype))
    exact = math.fsum(values.double().tolist())
    total = float(values.to(gpu.device).sum())
    inner = max(
        ROUNDOFF["float32"] if dtype != "float64" else ROUNDOFF["float64"], ROUNDOFF["float64"]
    )
    bound = count * inner * float(values.double().abs().sum()) + ROUNDOFF[dtype] * abs(exact) * 1.01
    assert abs(total - exact) <= bound, f"off by {abs(total - exact)}, at most {bound} is allowed"


@case(
    "precision/mean-of-ones",
    spec="The mean of 100000 ones is 1 in every format.",
    params={"dtype": FLOATS},
)
def test_mean_of_ones(gpu, torch, dtype):
    require_dtypes(gpu, dtype)
    found = float(torch.ones(100_000, device=gpu.device).to(getattr(torch, dtype)).mean())
    assert found == 1.0, f"the mean of ones in {dtype} is {found}: a narrow sum was kept"


@case(
    "precision/scatter-add-is-exact",
    spec="Whole numbers that are scattered to the same place many times are all counted.",
    traps=("K17", "K18"),
)
def test_scatter_add_is_exact(gpu, torch):
    where = torch.arange(10_000, device=gpu.device) % 7
    ones = torch.ones(10_000, device=gpu.device)
    total = torch.zeros(7, device=gpu.device).scatter_add_(0, where, ones).cpu().tolist()
    by_hand = [float(len(range(place, 10_000, 7))) for place in range(7)]
    assert total == by_hand, f"the counts are {total}"


@case(
    "precision/prefix-sums-are-wide",
    spec="Prefix sums of int32 and int64 are int64, and exact beyond 2^31.",
    params={"dtype": ("int32", "int64")},
)
def test_prefix_sums_are_wide(gpu, torch, dtype):
    require_dtypes(gpu, dtype, "int64")
    values = torch.tensor([2**31 - 1] * 5, dtype=getattr(torch, dtype), device=gpu.device)
    found = torch.cumsum(values, 0)
    assert found.dtype == torch.int64, f"prefix sums of {dtype} are {found.dtype}"
    by_hand = [n * (2**31 - 1) for n in range(1, 6)]
    assert found.cpu().tolist() == by_hand, f"the prefix sums are {found.cpu().tolist()}"


@case(
    "precision/integer-products-are-wide",
    spec="A product of int64 has all its 64 bits.",
)
def test_integer_products_are_wide(gpu, torch):
    found = int((torch.tensor([3_037_000_499], device=gpu.device) * 3_037_000_499)[0])
    assert found == 9_223_372_030_926_249_001, f"3037000499 squared is {found}"


@case(
    "precision/layer-norm-of-a-large-mean",
    spec="A layer norm in float32 does not lose a small variance next to a large mean.",
    outcome="bounded: 2^-8 absolute",
)
def test_layer_norm_of_a_large_mean(gpu, torch):
    # the mean of the squares is 2^24 + 1, which float32 has not, so that E[x^2] - E[x]^2 is 0 or 2
    values = 4096.0 + torch.tensor([-1.0, 1.0]).repeat(512)
    found = torch.nn.functional.layer_norm(values.to(gpu.device), (1024,), eps=0.0).cpu()
    off = float((found - (values - 4096.0)).abs().max())
    assert off <= 2.0**-8, f"a variance of 1 next to a mean of 4096 is normalised {off} off"


@case(
    "precision/compiled-code-may-fuse",
    unaltered=("compiler",),
    spec="Whether compiled code fuses a product and a sum differs by vendor.",
    outcome="undefined",
    traps=("P16",),
)
def test_compiled_code_may_fuse(gpu, torch, record):
    if gpu.device.type == "cpu":
        raise NotClaimed("on a CPU the compiler of the machine decides")
    value = torch.full((1024,), 1 + 2.0**-12, device=gpu.device)
    call = torch.compile(lambda x, square: torch.add(-square, x, alpha=float(1 + 2.0**-12)))
    found = float(_of_compiled(gpu, torch, call, value, value * value)[0])
    record(f"x * x - round(x * x) is {found}: {'fused' if found else 'not fused'}")


def _of_compiled(gpu, torch, call, *given):
    """What compiled code gives; raises NotClaimed or NotHere where torch compiles nothing."""
    try:
        return call(*given)
    except torch._dynamo.exc.TorchDynamoException as error:
        from torch._inductor.codegen.common import get_scheduling_for_device

        if get_scheduling_for_device(gpu.device.type) is None:
            raise NotClaimed(f"torch compiles nothing for {gpu.device.type!r}") from None
        raise NotHere(f"torch compiles nothing here: {str(error).splitlines()[0]}") from None


@case(
    "precision/compiled-layouts",
    default=False,
    unaltered=("compiler",),
    spec="Compiled code reads inputs at an offset, apart, transposed and expanded as they lie.",
    does_not_show="on a CPU torch's tracing alone: no code is compiled, which takes seconds there",
)
def test_compiled_layouts(gpu, torch):
    backend = "eager" if gpu.device.type == "cpu" else "inductor"
    call = torch.compile(lambda x: 2 * x + 1, backend=backend)
    ramp = torch.arange(64.0, device=gpu.device)
    views = {
        "from the start": ramp[:16].view(4, 4),
        "at an offset": ramp[3:19].view(4, 4),
        "apart": ramp.view(8, 8)[::2, ::2],
        "apart at an offset": ramp.view(8, 8)[1::2, 1::2],
        "transposed": ramp[:16].view(4, 4).t(),
        "expanded": ramp[5:9].expand(4, 4),
    }
    for where, view in views.items():
        found = _of_compiled(gpu, torch, call, view).cpu().tolist()
        expected = [[2 * each + 1 for each in row] for row in view.cpu().tolist()]
        assert found == expected, f"of elements {where} compiled code gave {found}, not {expected}"
