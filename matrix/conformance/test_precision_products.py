"""Precision: products of matrices, and the arithmetic that they run in.

``u`` in a bound is the unit roundoff: 2^-53, 2^-24, 2^-11 and 2^-8 for float64, float32, float16
and bfloat16. Oracles are float64 or values worked out by hand.
"""

from __future__ import annotations

import math

from portagpu.devices.precision import Arithmetic
from portagpu.devices.precision.products import switched_by_variable, wide_partial_sums
from portagpu.suites.conformance import NotClaimed, NotHere, case, refused
from portagpu.suites.conformance.closeness import FLOATS, ROUNDOFF, check_near, require_dtypes

MODES = ("ieee", "tf32")
INPUTS = {Arithmetic.IEEE: 2.0**-24, Arithmetic.TF32: 2.0**-10, Arithmetic.BF16X3: 2.0**-15}
"""How far an input may be off, relatively: a last place where it is cut, as TF32 may be."""
NEAR = "|found - AB| <= |AB| / 16 in the Frobenius norm: what nobody computed is |AB| off or more"


def _check_product(found, left, right):
    """Fail unless ``found`` is near the product, in whatever order and width it was summed."""
    exact = left.cpu().double() @ right.cpu().double()
    off = float((found.cpu().double() - exact).norm() / exact.norm())
    assert off <= 1 / 16, f"the product is {off:.2g} of its own norm off"


@case(
    "precision/matmul-of-small-integers",
    spec="A product of matrices of small integers is exact.",
    params={"dtype": FLOATS, "n": (1, 16, 33, 128)},
    smoke=True,
)
def test_matmul_of_small_integers(gpu, torch, dtype, n):
    require_dtypes(gpu, dtype)
    generator = torch.Generator().manual_seed(n + 1)
    left = torch.randint(-1, 2, (n, n), generator=generator)
    right = torch.randint(-1, 2, (n, n), generator=generator)
    exact = left.double() @ right.double()
    assert bool(exact.any()), "the product of the case is zero, which shows nothing"
    kind = getattr(torch, dtype)
    found = (left.to(gpu.device).to(kind) @ right.to(gpu.device).to(kind)).cpu().double()
    wrong = int((found != exact).sum())
    assert wrong == 0, f"{wrong} of {n * n} entries of a product in {dtype} are wrong"


@case(
    "precision/matmul-is-accurate",
    spec="A product of random matrices is near the product in float64, where partial sums are not "
    "rounded to 16 bits.",
    outcome="bounded: |A||B| * (k * u' + 2 u), u' = 2^-24 for the sum, u of the dtype for the end",
    traps=("P08", "P21"),
    params={"dtype": FLOATS},
)
def test_matmul_is_accurate(gpu, torch, dtype):
    require_dtypes(gpu, dtype)
    kind, inner = getattr(torch, dtype), 256
    left = torch.randn(48, inner, dtype=torch.float64).to(kind)
    right = torch.randn(inner, 40, dtype=torch.float64).to(kind)
    exact = left.double() @ right.double()
    magnitude = left.double().abs() @ right.double().abs()
    sums = ROUNDOFF["float64"] if dtype == "float64" else ROUNDOFF["float32"]
    bound = magnitude * (inner * sums) + 2 * ROUNDOFF[dtype] * exact.abs()
    with wide_partial_sums():
        found = (left.to(gpu.device) @ right.to(gpu.device)).cpu().double()
    check_near(found, exact, bound, f"the product in {dtype}")


@case(
    "precision/float32-matmul-is-float32",
    spec="By default a float32 product keeps 1 + 2^-12 times the identity to the last bit.",
    traps=("P08", "P09", "P11"),
    smoke=True,
)
def test_float32_matmul_is_float32(gpu, torch):
    size = 512
    identity = torch.eye(size, device=gpu.device)
    for value in (1 + 2.0**-12, 1 + 2.0**-9 + 2.0**-23):
        found = float(((identity * value) @ identity)[0, 0])
        why = switched_by_variable()
        because = f", because {why} is set: unset it" if why else ""
        assert found == value, f"{value!r} came out of a float32 product as {found!r}{because}"


@case(
    "precision/int8-matmul",
    spec="A product of int8 matrices is exact in int32 where the second one is within 64.",
    covers=("Precision.saturates",),
)
def test_int8_matmul(gpu, torch):
    _multiply_int8(gpu, torch, -64, 64)


@case(
    "precision/int8-matmul-whole-range",
    spec="A product of int8 matrices of every value is exact in int32, where int8 is not among the "
    "dtypes that saturate.",
    covers=("Precision.saturates",),
)
def test_int8_matmul_whole_range(gpu, torch):
    if torch.int8 in gpu.precision.saturates:
        raise NotClaimed(
            "the library adds pairs of int8 products in 16 bits here: only products whose second "
            "operand is within 64 are exact"
        )
    _multiply_int8(gpu, torch, -128, 127)


def _multiply_int8(gpu, torch, low, high):
    """Multiply random matrices, and those whose pairs of products are the largest."""
    require_dtypes(gpu, "int8", "int32")
    rows, columns, inner = 32, 48, 128
    generator = torch.Generator().manual_seed(high)
    left = torch.randint(-128, 128, (rows, inner), generator=generator)
    right = torch.randint(low, high + 1, (columns, inner), generator=generator)
    left[0], right[0], left[1], right[1] = 127, high, -128, low
    exact = left @ right.t()
    try:
        given = [each.to(torch.int8).to(gpu.device) for each in (left, right)]
        found = torch._int_mm(given[0], given[1].t())
    except NotImplementedError as error:
        raise NotClaimed(f"torch multiplies no int8 here: {str(error).splitlines()[0]}") from error
    assert found.dtype == torch.int32, f"the product of int8 matrices is {found.dtype}"
    wrong = int((found.cpu().long() != exact).sum())
    assert wrong == 0, f"{wrong} of {rows * columns} entries of a product of int8 are wrong"


@case(
    "precision/matmul-keeps-infinity",
    spec="An infinity in a float32 product stays one, and does not become NaN.",
    traps=("P10",),
)
def test_matmul_keeps_infinity(gpu, torch):
    left = torch.tensor([[math.inf, 1.0]], device=gpu.device)
    right = torch.tensor([[1.0], [1.0]], device=gpu.device)
    found = float(left @ right)
    assert found == math.inf, f"inf * 1 + 1 * 1 is {found}"


@case(
    "precision/matmul-keeps-subnormals",
    spec="A float16 product of a subnormal number keeps it, or is zero where that is claimed.",
    covers=("Precision.flushes",),
    traps=("P13",),
)
def test_matmul_keeps_subnormals(gpu, torch):
    _multiply_subnormal(gpu, torch, 2.0**-20, torch.float16)


@case(
    "precision/matmul-bfloat16-subnormals",
    spec="A bfloat16 product of a subnormal number keeps it, or is zero where that is claimed.",
    covers=("Precision.flushes",),
    traps=("P13",),
)
def test_matmul_bfloat16_subnormals(gpu, torch):
    _multiply_subnormal(gpu, torch, 2.0**-130, torch.bfloat16)


def _multiply_subnormal(gpu, torch, number, dtype):
    require_dtypes(gpu, str(dtype).removeprefix("torch."))
    identity = torch.eye(32, device=gpu.device).to(dtype)
    found = float(((identity * number) @ identity)[3, 3])
    allowed = {number, 0.0} if dtype in gpu.precision.flushes else {number}
    assert found in allowed, f"{number} came out of a {dtype} product as {found}"


@case(
    "precision/matmul-repeats",
    spec="The same product twice is bitwise the same, and one of those matrices.",
    outcome=f"bounded: {NEAR}",
    traps=("P18", "P19"),
    params={"dtype": FLOATS},
)
def test_matmul_repeats(gpu, torch, dtype):
    require_dtypes(gpu, dtype)
    left = torch.randn(128, 128).to(getattr(torch, dtype)).to(gpu.device)
    first = left @ left
    again = [torch.equal(left @ left, first) for _ in range(5)]
    assert all(again), f"{again.count(False)} of five repeated products in {dtype} differ"
    _check_product(first, left, left)


@case(
    "precision/index-add-is-exact",
    spec="Whole numbers that are added to the same place many times are all counted.",
    traps=("K17", "K18"),
)
def test_index_add_is_exact(gpu, torch):
    where = torch.arange(10_000, device=gpu.device) % 7
    total = torch.zeros(7, device=gpu.device).index_add_(0, where, torch.ones_like(where).float())
    by_hand = [float(len(range(place, 10_000, 7))) for place in range(7)]
    assert total.cpu().tolist() == by_hand, f"the counts are {total.cpu().tolist()}"


@case(
    "precision/softmax-is-accurate",
    spec="A softmax in float32 is near that in float64 and adds up to 1.",
    outcome="bounded: 2^-20 absolute",
    traps=("P15",),
)
def test_softmax_is_accurate(gpu, torch):
    values = torch.randn(64, 100) * 10
    found = torch.softmax(values.to(gpu.device), 1).cpu().double()
    off = float((found - torch.softmax(values.double(), 1)).abs().max())
    assert off <= 2.0**-20, f"a softmax is {off} off"
    assert float((found.sum(1) - 1).abs().max()) <= 2.0**-20, "a softmax does not add up to 1"


@case(
    "precision/functions-are-accurate",
    spec="Elementary functions in float32 are near those in float64.",
    outcome="bounded: 8 units in the last place",
    traps=("P15",),
    params={"name": ("exp", "log", "sin", "cos", "tanh", "sqrt", "erf", "sigmoid")},
)
def test_functions_are_accurate(gpu, torch, name):
    values = torch.rand(1000) * 3 + 0.1
    call = getattr(torch, name)
    exact = call(values.double())
    found = call(values.to(gpu.device)).cpu().double()
    ulp = float(((found - exact).abs() / (exact.abs() * 2.0**-23).clamp_min(2.0**-40)).max())
    assert ulp <= 8.0, f"{name} is {ulp:.1f} units in the last place off"


@case(
    "precision/float32-switch",
    spec="After the switch float32 products and convolutions run in what it says, or in float32.",
    covers=("Backend.set_float32_precision", "Backend.float32_arithmetic"),
    traps=("P08", "P09", "P11"),
    params={"mode": MODES, "operation": ("matmul", "conv")},
    smoke=True,
    does_not_show="other shapes and layouts, for which a library may take another way",
)
def test_float32_switch(gpu, mode, operation):
    with gpu.set_float32_precision(mode) as switch:
        found = gpu.float32_arithmetic(operation)
    allowed = {Arithmetic.IEEE, switch.arithmetic}
    assert found in allowed, f"with {mode} a {operation} ran in {found}, not {switch.arithmetic}"


@case(
    "precision/float32-switch-says-what-it-did",
    spec="A device without TF32 runs in float32 where it is asked for, and says why.",
    covers=("Backend.set_float32_precision", "Precision.tf32"),
    traps=("P11",),
)
def test_float32_switch_says_what_it_did(backend):
    with backend.set_float32_precision("tf32") as switch:
        assert switch.arithmetic is backend.precision.tf32, f"tf32 here is {backend.precision.tf32}"
        same = switch.arithmetic is switch.requested
        assert bool(switch.reason) is not same, f"{switch!r} gives the reason {switch.reason!r}"
    with backend.set_float32_precision("ieee") as switch:
        assert switch.arithmetic is Arithmetic.IEEE, f"{switch!r}"
        assert not switch.reason, f"ieee has the reason {switch.reason!r}"


@case(
    "precision/tf32-of-target",
    spec="TF32 is claimed where the target's matrix unit has it or its library emulates it.",
    covers=("Precision.tf32",),
    traps=("P09", "P11"),
)
def test_tf32_of_target(backend, target):
    if target is None:
        raise NotClaimed("no target states the formats of this device")
    native = {"tf32", "xf32"} & set(target.value("matrix.dtypes") or ())
    expected = "tf32" if native else target.value("matrix.tf32_emulation") or "ieee"
    assert backend.precision.tf32 == expected, (
        f"{target.id} has {expected}, not {backend.precision.tf32}"
    )


@case(
    "precision/float32-switch-restores",
    spec="At the end of its block the switch leaves torch's settings as they were.",
    covers=("Backend.set_float32_precision",),
    traps=("P08",),
    params={"mode": MODES},
)
def test_float32_switch_restores(backend, torch, mode):
    def settings():
        library = torch.backends
        newer = (library.cuda.matmul, library.cudnn.conv, library.cudnn.rnn, library.mkldnn.matmul)
        return (
            torch.get_float32_matmul_precision(),
            library.cudnn.allow_tf32,
            library.fp32_precision,
            *(each.fp32_precision for each in newer),
        )

    found = torch.get_float32_matmul_precision()
    # not what the switch makes of it where nothing is faster than float32
    torch.set_float32_matmul_precision("high")
    try:
        before = settings()
        with backend.set_float32_precision(mode):
            settings()  # both interfaces can be read
        assert settings() == before, f"torch's settings were {before} and are {settings()}"
    finally:
        torch.set_float32_matmul_precision(found)


@case(
    "precision/float32-switch-passes-errors",
    spec="An exception inside the switch's block leaves it, and torch's settings are as they were.",
    covers=("Backend.set_float32_precision",),
    traps=("P08",),
)
def test_float32_switch_passes_errors(backend, torch):
    found = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")

    def step():
        with backend.set_float32_precision("ieee"):
            raise KeyError("a step that failed")

    try:
        refused(step, KeyError, "a step that fails under the switch")
        after = torch.get_float32_matmul_precision()
        assert after == "high", f"torch's setting was 'high' and is {after!r} after an exception"
    finally:
        torch.set_float32_matmul_precision(found)


@case(
    "precision/float32-products-are-accurate",
    spec="After the switch a product is as accurate as the arithmetic that the probe found.",
    outcome="bounded: |A||B| (2 v + k 2^-24) + 2^-23 |AB|, "
    "v = 2^-24 in ieee, 2^-10 in tf32, 2^-15 in bf16x3",
    covers=("Backend.set_float32_precision", "Backend.float32_arithmetic"),
    traps=("P09",),
    params={"mode": MODES},
)
def test_float32_products_are_accurate(gpu, torch, mode):
    left, right = torch.randn(512, 512), torch.randn(512, 512)
    with gpu.set_float32_precision(mode):
        found = (left.to(gpu.device) @ right.to(gpu.device)).cpu().double()
    # as stated and not as found, so that arithmetic that stuck does not widen its own bound
    arithmetic = Arithmetic.IEEE if mode == "ieee" else gpu.precision.tf32
    assert arithmetic in INPUTS, f"{mode} is stated as {arithmetic}"
    exact = left.double() @ right.double()
    magnitude = left.double().abs() @ right.double().abs()
    bound = (
        magnitude * (2 * INPUTS[arithmetic] + 512 * ROUNDOFF["float32"]) + 2.0**-23 * exact.abs()
    )
    check_near(found, exact, bound, f"a product after {mode!r}, which is {arithmetic} here")


@case(
    "precision/float32-infinity-is-seen",
    spec="After either switch a product with infinite operands is not finite.",
    covers=("Backend.set_float32_precision",),
    traps=("P10",),
    params={"mode": MODES},
)
def test_float32_infinity_is_seen(gpu, torch, mode):
    with gpu.set_float32_precision(mode):
        endless = torch.full((64, 64), math.inf, device=gpu.device)
        found = endless @ torch.ones(64, 64, device=gpu.device)
    assert not bool(torch.isfinite(found).any()), "a product of infinities has finite values"


@case(
    "precision/addmm-keeps-alpha",
    spec="beta C + alpha A B^T has both factors in every column.",
    traps=("P12",),
    params={"mode": MODES, "n": (33, 64, 512)},
)
def test_addmm_keeps_alpha(gpu, torch, mode, n):
    whole = torch.randint(-4, 5, (3, n, n)).float()
    kept, left, right = whole.to(gpu.device)
    with gpu.set_float32_precision(mode):
        found = torch.addmm(kept, left, right.t(), beta=2.0, alpha=0.5).cpu()
    exact = 2 * whole[0].double() + 0.5 * (whole[1].double() @ whole[2].double().t())
    wrong = int((found.double() != exact).any(0).sum())
    assert wrong == 0, f"{wrong} of {n} columns of 2 C + 0.5 A B^T are wrong"


@case(
    "precision/matmul-sums-in-float32",
    spec="A product of 65536 halves is summed in float32, and does not stop where 16 bits do.",
    traps=("P21",),
    params={"dtype": ("float16", "bfloat16")},
)
def test_matmul_sums_in_float32(gpu, torch, dtype):
    require_dtypes(gpu, dtype)
    kind, length = getattr(torch, dtype), 65536
    halves = torch.full((16, length), 0.5, device=gpu.device).to(kind)
    ones = torch.ones(length, 16, device=gpu.device).to(kind)
    with wide_partial_sums():
        found = (halves @ ones).cpu().double().unique().tolist()
    assert found == [32768.0], f"65536 times 0.5 in a product of {dtype} is {found}"


@case(
    "precision/matmul-same-forward-and-backward",
    spec="A float16 number with all its bits, and a subnormal one, pass a product both ways.",
    covers=("Precision.flushes",),
    traps=("P13",),
    params={"value": ("full", "subnormal")},
)
def test_matmul_same_forward_and_backward(gpu, torch, value):
    number = {"full": 1 + 2.0**-10, "subnormal": 2.0**-15}[value]
    require_dtypes(gpu, "float16")
    identity = torch.eye(64, device=gpu.device).half()
    weight = identity.clone().requires_grad_()
    result = (identity * number) @ weight
    result.backward(identity)
    allowed = {number}
    if value == "subnormal" and torch.float16 in gpu.precision.flushes:
        allowed.add(0.0)
    for way, found in (("forward", float(result[5, 5])), ("back", float(weight.grad[5, 5]))):
        assert found in allowed, f"{number} came {way} out of a float16 product as {found}"


@case(
    "precision/long-matmul-repeats",
    spec="A product over 65536 elements, which libraries split, is bitwise the same each time, "
    "and one of those matrices.",
    outcome=f"bounded: {NEAR}",
    traps=("P18", "P19"),
)
def test_long_matmul_repeats(gpu, torch):
    require_dtypes(gpu, "float16")
    left = torch.randn(32, 65536).half().to(gpu.device)
    right = torch.randn(65536, 32).half().to(gpu.device)
    first = left @ right
    again = [torch.equal(left @ right, first) for _ in range(10)]
    assert all(again), f"{again.count(False)} of ten repeated products differ"
    _check_product(first, left, right)


@case(
    "precision/sparse-matmul-is-right",
    spec="A product of a 2:4 sparse float16 matrix is that of the same dense one.",
    traps=("P22",),
)
def test_sparse_matmul_is_right(gpu, torch, target):
    if target is None or "fp16" not in (target.value("matrix.sparse_dtypes") or ()):
        raise NotClaimed("no fact gives this device products of 2:4 sparse float16")
    if not torch.backends.cusparselt.is_available():
        raise NotHere("this build of torch has no library for 2:4 sparse products")
    dense = (
        torch.randint(1, 4, (128, 128)).half() * torch.tensor([1.0, 1.0, 0, 0]).repeat(32).half()
    )
    right = torch.randint(-3, 4, (128, 128)).half()
    sparse = torch.sparse.to_sparse_semi_structured(dense.to(gpu.device))
    found = (sparse @ right.to(gpu.device)).cpu()
    wrong = int((found != dense @ right).sum())
    assert wrong == 0, f"{wrong} entries of a product of a sparse matrix are wrong"
