"""Precision: what the table of dtypes claims, rounding, special values and integers, and operations
whose usual shortcuts show in exact numbers.

Inputs are whole numbers, or chosen so that the right answer is known to the last bit that counts;
sums of random numbers are held against float64.
"""

from __future__ import annotations

import math
import struct

import portagpu as pg
from portagpu.devices.precision import Scaled
from portagpu.suites.conformance import NotClaimed, NotHere, case, refused
from portagpu.suites.conformance.closeness import (
    FLOATS,
    FP8,
    INTEGERS,
    ROUNDOFF,
    claimed_support,
    require_dtypes,
)
from portagpu.suites.search.numbers import casts
from portagpu.suites.search.numbers.formats import claimed

TABLE = ("bool", *INTEGERS, *FLOATS, "complex64", "complex128", *FP8)


@case(
    "precision/support-is-a-level",
    spec="The support of every dtype is one of the four levels.",
    covers=("Precision.support",),
    params={"dtype": TABLE},
)
def test_support_is_a_level(backend, torch, dtype):
    found = backend.precision.support(getattr(torch, dtype))
    assert isinstance(found, pg.Support), f"the support for {dtype} is {found!r}"


@case(
    "precision/support-of-unlisted",
    spec="The support for a dtype that is not in the table is none.",
    covers=("Precision.support",),
)
def test_support_of_unlisted(backend, torch):
    unlisted = [
        each for each in (torch.quint4x2, torch.bits16) if each not in backend.precision.table
    ]
    assert unlisted, "the table claims even quint4x2 and bits16"
    found = backend.precision.support(unlisted[0])
    assert found is pg.Support.NONE, f"a dtype that is not listed is {found}"


@case(
    "precision/storage-holds",
    spec="A dtype that the table has can be stored, converted and copied; one it lacks cannot.",
    covers=("Precision.table",),
    params={"dtype": TABLE},
    smoke=True,
)
def test_storage_holds(gpu, torch, dtype):
    values = [0.0, 1.0, 1.0, 0.0] if dtype == "bool" else [0.0, 1.0, 2.0, 8.0]

    def roundtrip():
        kept = torch.tensor(values, device=gpu.device, dtype=torch.float32)
        return kept.to(getattr(torch, dtype)).clone().real.to(torch.float32).cpu().tolist()

    if claimed_support(gpu, dtype) == "none":
        refused(roundtrip, (RuntimeError, TypeError), f"a tensor of {dtype}")
        return
    found = roundtrip()
    assert found == values, f"{values} came back from {dtype} as {found}"


@case(
    "precision/casts-of-every-pattern",
    spec="Every bit pattern of an 8- or 16-bit dtype becomes the nearest number of each other "
    "dtype, ties to even, and an integer wraps.",
    outcome="exact",
    traps=("P01", "P05"),
    params={"dtype": casts.PATTERN_DTYPES},
    does_not_show="a float beyond the range of an integer dtype, and what payload a NaN has",
)
def test_casts_of_every_pattern(gpu, dtype):
    if dtype not in claimed(gpu):
        raise NotClaimed(f"{gpu.name} does not compute in {dtype}")
    wrong = casts.differences(gpu, dtype)
    assert not wrong, f"the cast of {'; '.join(wrong)}"


@case(
    "precision/arithmetic-works",
    spec="A dtype with native or emulated arithmetic adds, multiplies and sums exactly.",
    covers=("Precision.table",),
    params={"dtype": TABLE},
    smoke=True,
)
def test_arithmetic_works(gpu, torch, dtype):
    level = claimed_support(gpu, dtype)
    if level not in ("native", "emulated"):
        raise NotClaimed(f"{gpu.name} claims no arithmetic in {dtype}")
    kind = getattr(torch, dtype)
    if dtype in FP8:
        _multiply_fp8(gpu, torch, dtype, native_only=level == "native")
        return
    if dtype == "bool":
        left = torch.tensor([True, True, False, False], device=gpu.device)
        right = torch.tensor([True, False, True, False], device=gpu.device)
        found = ((left & right).tolist(), (left | right).tolist(), (left ^ right).tolist())
        by_hand = (
            [True, False, False, False],
            [True, True, True, False],
            [False, True, True, False],
        )
        assert found == by_hand, f"and, or, xor gave {found}"
        return
    left = torch.arange(1, 6, device=gpu.device).to(kind)
    right = torch.tensor([5, 4, 3, 2, 1], device=gpu.device).to(kind)
    for name, value, by_hand in (
        ("a + b", left + right, [6, 6, 6, 6, 6]),
        ("a * b", left * right, [5, 8, 9, 8, 5]),
        ("a - b", left - torch.ones_like(left), [0, 1, 2, 3, 4]),
        ("sum", left.sum().reshape(1), [15]),
    ):
        assert value.dtype == kind or name == "sum", f"{name} of {dtype} is {value.dtype}"
        found = value.cpu().to(torch.complex128).real.tolist()
        assert found == by_hand, f"{name} in {dtype} gave {found}, not {by_hand}"


def _multiply_fp8(gpu, torch, dtype, native_only):
    """Check a product with e4m3 of the same flavour: no library multiplies e5m2 by e5m2."""
    other = getattr(torch, dtype.replace("e5m2", "e4m3fn").replace("fnfnuz", "fnuz"))
    left = torch.full((16, 32), 2.0, device=gpu.device).to(getattr(torch, dtype))
    right = torch.full((32, 16), 3.0, device=gpu.device).to(other)
    half, one = (torch.tensor(value, device=gpu.device) for value in (0.5, 1.0))
    operands = Scaled(left, half), Scaled(right, one, dim=0)
    found = gpu.scaled_matmul(*operands, native_only=native_only).cpu().double().unique().tolist()
    assert found == [96.0], f"32 times 2 * 3 * 0.5 in {dtype} is {found}"


@case(
    "precision/storage-only-does-not-sum",
    spec="A dtype whose elements have no arithmetic refuses a sum, or sums exactly.",
    covers=("Precision.table",),
    params={"dtype": tuple(FP8)},
    outcome="unsupported",
)
def test_storage_only_does_not_sum(gpu, torch, dtype):
    require_dtypes(gpu, dtype)
    values = torch.ones(4, device=gpu.device).to(getattr(torch, dtype))
    try:
        found = float(values.sum())
    except (RuntimeError, TypeError):
        return
    assert found == 4.0, f"the sum of four ones in {dtype} is {found}"


@case(
    "precision/support-as-it-runs",
    spec="What the device does with a dtype when it runs is what its facts state.",
    covers=("Backend.dtype_support", "Precision.table"),
    traps=("P01", "P14"),
    params={"dtype": TABLE},
    does_not_show="that arithmetic has instructions of its own, which running it does not show",
)
def test_support_as_it_runs(gpu, torch, dtype):
    kind = getattr(torch, dtype)
    report = gpu.dtype_support(kind, probe=True)
    assert report.found is not None, f"{dtype} was not run"
    assert not report.disagreement, report.disagreement
    stated = gpu.dtype_support(kind)
    assert stated.found is None, f"{dtype} was not to be run, and is {stated.found}"
    assert stated.stated is report.stated is gpu.precision.support(kind), "three tables"


@case(
    "precision/finfo",
    spec="torch's limits of a format are those of its definition.",
    params={"dtype": FLOATS},
)
def test_finfo(torch, dtype):
    info = torch.finfo(getattr(torch, dtype))
    by_hand = {
        "float64": (largest_ieee_number(11, 52), 2.0**-1022, 2.0**-52),
        "float32": (largest_ieee_number(8, 23), 2.0**-126, 2.0**-23),
        "float16": (65504.0, 2.0**-14, 2.0**-10),
        "bfloat16": (largest_ieee_number(8, 7), 2.0**-126, 2.0**-7),
    }[dtype]
    found = (info.max, info.tiny, info.eps)
    assert found == by_hand, f"max, tiny, eps of {dtype} are {found}, not {by_hand}"


def largest_ieee_number(exponent_bits, mantissa_bits):
    """The largest finite number of an IEEE format."""
    bias = (1 << (exponent_bits - 1)) - 1
    return (2.0 - 2.0**-mantissa_bits) * 2.0**bias


@case(
    "precision/bits-of-float32",
    spec="A float32 on the device has the bits that IEEE 754 gives its value.",
)
def test_bits_of_float32(gpu, torch):
    values = [1.0, -2.5, 0.1, 3.4028235e38, 1e-45, math.inf]
    expected = [struct.unpack("<i", struct.pack("<f", value))[0] for value in values]
    found = torch.tensor(values, device=gpu.device).view(torch.int32).cpu().tolist()
    assert found == expected, f"the bits are {found}, not {expected}"


@case(
    "precision/integer-division",
    spec="Integer division rounds as it is asked to, down or towards zero.",
    params={"dtype": ("int64", "int32", "int16", "int8")},
)
def test_integer_division(gpu, torch, dtype):
    kind = getattr(torch, dtype)
    left = torch.tensor([7, -7, 7, -7], dtype=kind, device=gpu.device)
    right = torch.tensor([2, 2, -2, -2], dtype=kind, device=gpu.device)
    down = torch.div(left, right, rounding_mode="floor").tolist()
    to_zero = torch.div(left, right, rounding_mode="trunc").tolist()
    assert down == [3, -4, -4, 3], f"rounded down: {down}"
    assert to_zero == [3, -3, -3, 3], f"rounded towards zero: {to_zero}"


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
