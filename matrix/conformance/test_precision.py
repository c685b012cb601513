"""Precision: what the table of dtypes claims, rounding, special values and integers."""

from __future__ import annotations

import math
import struct

import portagpu as pg
from portagpu.precision import Scaled
from portagpu.suite import NotClaimed, case, refused
from portagpu.suite.dtypes import (
    FLOATS,
    FP8,
    INTEGERS,
    ROUNDOFF,
    claimed_support,
    float64_values,
    require_dtypes,
    tensor_on,
)

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
    does_not_show="that arithmetic has instructions of its own, which running it does not tell",
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


def _in_widest_format(gpu, values, dtype):
    """The values in the device's widest format, which has to be wider than ``dtype``."""
    require_dtypes(gpu, dtype)
    widest = next((each for each in FLOATS if claimed_support(gpu, each) != "none"), dtype)
    if ROUNDOFF[widest] >= ROUNDOFF[dtype]:
        raise NotClaimed(f"{gpu.name} holds nothing wider than {dtype}")
    return tensor_on(gpu, values, widest)


@case(
    "precision/rounds-to-nearest-even",
    spec="A conversion rounds to the nearest number, and a tie to the even one.",
    params={"dtype": ("float32", "bfloat16", "float16")},
    smoke=True,
)
def test_rounds_to_nearest_even(gpu, torch, dtype):
    step = 2 * ROUNDOFF[dtype]
    half = step / 2
    values = [1 + half, 1 + 3 * half, 1 + half * 1.01, 1 + half * 0.99, -1 - half, -1 - 3 * half]
    by_hand = [1.0, 1 + 2 * step, 1 + step, 1.0, -1.0, -1 - 2 * step]
    found = float64_values(_in_widest_format(gpu, values, dtype).to(getattr(torch, dtype)))
    assert found == by_hand, f"{values} became {found} in {dtype}, not {by_hand}"


@case(
    "precision/overflows-to-infinity",
    spec="A value beyond the largest number of a format becomes infinity, one at it stays.",
    params={"dtype": ("float32", "bfloat16", "float16")},
)
def test_overflows_to_infinity(gpu, torch, dtype):
    largest = torch.finfo(getattr(torch, dtype)).max
    source = _in_widest_format(gpu, [largest, largest * 1.1, -largest * 1.1], dtype)
    found = float64_values(source.to(getattr(torch, dtype)))
    assert found == [largest, math.inf, -math.inf], f"at and beyond the largest: {found}"


@case(
    "precision/keeps-subnormals",
    spec="The smallest number of a format is stored, and is not flushed to zero when doubled.",
    traps=("P13",),
    params={"dtype": FLOATS},
)
def test_keeps_subnormals(gpu, dtype):
    smallest = {
        "float64": 2.0**-1074,
        "float32": 2.0**-149,
        "float16": 2.0**-24,
        "bfloat16": 2.0**-133,
    }[dtype]
    tensor = tensor_on(gpu, [smallest, -smallest], dtype)
    stored, doubled = float64_values(tensor), float64_values(tensor * 2)
    assert stored == [smallest, -smallest], f"the smallest {dtype} is stored as {stored}"
    assert doubled == [2 * smallest, -2 * smallest], f"twice the smallest {dtype} is {doubled}"


@case(
    "precision/nan-propagates",
    spec="A NaN stays a NaN through sums, products, minimum and maximum.",
    traps=("P20",),
    params={"dtype": FLOATS},
)
def test_nan_propagates(gpu, torch, dtype):
    values = tensor_on(gpu, [1.0, math.nan, 3.0], dtype)
    ones = torch.ones_like(values)
    for name, found in (
        ("sum", values.sum()),
        ("product with 0", (values * 0)[1]),
        ("minimum", torch.minimum(values, ones)[1]),
        ("maximum", torch.maximum(ones, values)[1]),
        ("max", values.max()),
        ("min", values.min()),
    ):
        assert math.isnan(float(found)), f"a NaN became {float(found)} in the {name} of {dtype}"


@case(
    "precision/nan-is-unequal",
    spec="A NaN equals nothing, itself included, and isnan() finds it.",
    params={"dtype": FLOATS},
)
def test_nan_is_unequal(gpu, torch, dtype):
    values = tensor_on(gpu, [math.nan, 1.0], dtype)
    assert (values == values).tolist() == [False, True], "a NaN equals itself"
    assert torch.isnan(values).tolist() == [True, False], "isnan() does not find the NaN"


@case(
    "precision/infinity-arithmetic",
    spec="Infinity follows IEEE 754: inf - inf is NaN, 1 / inf is 0, inf + 1 is inf.",
    params={"dtype": FLOATS},
)
def test_infinity_arithmetic(gpu, torch, dtype):
    infinity = tensor_on(gpu, [math.inf], dtype)
    assert math.isnan(float(infinity - infinity)), f"inf - inf is {float(infinity - infinity)}"
    assert float(1 / infinity) == 0.0, f"1 / inf is {float(1 / infinity)}"
    assert float(infinity + 1) == math.inf, f"inf + 1 is {float(infinity + 1)}"
    assert torch.isinf(infinity).tolist() == [True], "isinf() does not find infinity"


@case(
    "precision/signed-zero",
    spec="Minus zero is kept, equals plus zero, and 1 divided by it is minus infinity.",
    params={"dtype": FLOATS},
)
def test_signed_zero(gpu, torch, dtype):
    zero = tensor_on(gpu, [-0.0], dtype)
    assert torch.signbit(zero).tolist() == [True], "minus zero lost its sign"
    assert (zero == 0).tolist() == [True], "minus zero does not equal zero"
    assert float(1 / zero) == -math.inf, f"1 / -0.0 is {float(1 / zero)}"


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
    "precision/integers-wrap",
    spec="Integer arithmetic wraps around at the ends of its range.",
    params={"dtype": INTEGERS},
    smoke=True,
)
def test_integers_wrap(gpu, torch, dtype):
    kind = getattr(torch, dtype)
    info = torch.iinfo(kind)
    top = torch.tensor([info.max], dtype=kind, device=gpu.device)
    found = int(top + 3)
    assert found == info.min + 2, f"{info.max} + 3 in {dtype} is {found}, not {info.min + 2}"


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
    "precision/large-integers-are-exact",
    spec="A sum of int64 is exact where float64 is not.",
)
def test_large_integers_are_exact(gpu, torch):
    values = torch.tensor([2**53, 1, 1, 1], device=gpu.device)
    assert int(values.sum()) == 2**53 + 3, f"2^53 + 3 is {int(values.sum())}"


@case(
    "precision/small-integers-widen",
    spec="The sum of small integers is an int64 that does not wrap.",
    params={"dtype": ("bool", "int32", "int16", "int8", "uint8")},
)
def test_small_integers_widen(gpu, torch, dtype):
    values = torch.ones(1000, device=gpu.device).to(getattr(torch, dtype))
    total = values.sum()
    assert total.dtype == torch.int64, f"the sum of {dtype} is {total.dtype}"
    assert int(total) == 1000, f"the sum of a thousand ones in {dtype} is {int(total)}"
