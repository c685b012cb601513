"""Precision: what the table of dtypes claims, rounding, special values, mixed precision.

``u`` in a bound is half the distance from 1 to the next number: 2^-53, 2^-24, 2^-11 and 2^-8 for
float64, float32, float16 and bfloat16. Oracles are float64 or values worked out by hand.
"""

from __future__ import annotations

import math
import struct

import portagpu as pg
from portagpu.contract import Capability
from portagpu.suite import NotClaimed, case, refused

AUTOCAST = Capability.AUTOCAST
CALLS = ("method", "function")
FLOATS = ("float64", "float32", "bfloat16", "float16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
FP8 = {
    # bits of exponent, bits of mantissa, bias, and whether it is of the FNUZ kind
    # (OCP 8-bit floating point specification 1.0; FNUZ: openxla/stablehlo RFC 20230321)
    "float8_e4m3fn": (4, 3, 7, False),
    "float8_e5m2": (5, 2, 15, False),
    "float8_e4m3fnuz": (4, 3, 8, True),
    "float8_e5m2fnuz": (5, 2, 16, True),
}
TABLE = ("bool", *INTEGERS, *FLOATS, "complex64", "complex128", *FP8)
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def _on(gpu, torch, values, dtype):
    return torch.tensor(values, dtype=torch.float64).to(getattr(torch, dtype)).to(gpu.device)


def _list(torch, tensor):
    return tensor.cpu().to(torch.float64).tolist()


def _claimed(gpu, torch, dtype):
    return str(gpu.precision.support(getattr(torch, dtype)))


def _need_to_hold(gpu, torch, *dtypes):
    for dtype in dtypes:
        if _claimed(gpu, torch, dtype) == "none":
            raise NotClaimed(f"{gpu.name} claims no tensors of {dtype}")


def _can_compute(gpu, torch, dtype):
    return _claimed(gpu, torch, dtype) in ("native", "emulated")


@case(
    "precision/support-is-a-level",
    spec="The support of every dtype is one of the four levels.",
    covers=("Precision.support",),
    params={"dtype": TABLE},
)
def test_support_is_a_level(gpu, torch, dtype):
    found = gpu.precision.support(getattr(torch, dtype))
    assert isinstance(found, pg.Support), f"the support for {dtype} is {found!r}"


@case(
    "precision/support-of-unlisted",
    spec="The support for a dtype that is not in the table is none.",
    covers=("Precision.support",),
)
def test_support_of_unlisted(gpu, torch):
    unlisted = [each for each in (torch.quint4x2, torch.bits16) if each not in gpu.precision.table]
    assert unlisted, "the table claims even quint4x2 and bits16"
    found = gpu.precision.support(unlisted[0])
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
        return kept.to(getattr(torch, dtype)).clone().to(torch.complex64).real.cpu().tolist()

    if _claimed(gpu, torch, dtype) == "none":
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
    if not _can_compute(gpu, torch, dtype):
        raise NotClaimed(f"{gpu.name} claims no arithmetic in {dtype}")
    kind = getattr(torch, dtype)
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
        found = value.to(torch.complex128).real.cpu().tolist()
        assert found == by_hand, f"{name} in {dtype} gave {found}, not {by_hand}"


@case(
    "precision/storage-only-does-not-sum",
    spec="A dtype that is for storage only refuses a sum, or sums exactly.",
    covers=("Precision.table",),
    params={"dtype": tuple(FP8)},
    outcome="unsupported",
)
def test_storage_only_does_not_sum(gpu, torch, dtype):
    claimed = _claimed(gpu, torch, dtype)
    if claimed != "storage":
        raise NotClaimed(f"{gpu.name} says that {dtype} is {claimed}, not storage only")
    values = torch.ones(4, device=gpu.device).to(getattr(torch, dtype))
    try:
        found = float(values.sum())
    except (RuntimeError, TypeError):
        return
    assert found == 4.0, f"the sum of four ones in {dtype} is {found}"


def _decode(code, exponent_bits, mantissa_bits, bias, fnuz):
    """The value of an 8-bit code, from the definition of its format."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    top = (1 << exponent_bits) - 1
    if fnuz:
        if code == 0x80:
            return math.nan
    elif mantissa_bits == 3:
        if exponent == top and mantissa == 7:
            return math.nan
    elif exponent == top:
        return math.nan if mantissa else sign * math.inf
    fraction = mantissa / (1 << mantissa_bits)
    if exponent == 0:
        return sign * math.ldexp(fraction, 1 - bias)
    return sign * math.ldexp(1 + fraction, exponent - bias)


def _same(left, right):
    """Equal, both NaN, or both the zero of one sign."""
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return left == right and math.copysign(1, left) == math.copysign(1, right)


@case(
    "precision/fp8-decode",
    spec="Each of the 256 codes of an fp8 format has the value that its definition gives.",
    traps=("P01", "P05"),
    params={"dtype": tuple(FP8)},
    smoke=True,
)
def test_fp8_decode(gpu, torch, dtype):
    _need_to_hold(gpu, torch, dtype)
    codes = torch.arange(256, dtype=torch.uint8, device=gpu.device)
    found = _list(torch, codes.view(getattr(torch, dtype)).to(torch.float32))
    wrong = [
        f"0x{code:02x} is {value}, not {_decode(code, *FP8[dtype])}"
        for code, value in enumerate(found)
        if not _same(value, _decode(code, *FP8[dtype]))
    ]
    assert not wrong, f"{len(wrong)} codes of {dtype} decode wrongly: {'; '.join(wrong[:3])}"


@case(
    "precision/fp8-encode",
    spec="Every finite value of an fp8 format is encoded to a code of that value.",
    traps=("P01",),
    params={"dtype": tuple(FP8)},
)
def test_fp8_encode(gpu, torch, dtype):
    _need_to_hold(gpu, torch, dtype)
    codes = [code for code in range(256) if math.isfinite(_decode(code, *FP8[dtype]))]
    values = [_decode(code, *FP8[dtype]) for code in codes]
    encoded = torch.tensor(values, device=gpu.device).to(getattr(torch, dtype))
    found = encoded.view(torch.uint8).cpu().tolist()
    pairs = zip(values, found, codes, strict=True)
    wrong = [f"{value} became 0x{got:02x}" for value, got, code in pairs if got != code]
    assert not wrong, f"{len(wrong)} values of {dtype} are encoded wrongly: {'; '.join(wrong[:3])}"


@case(
    "precision/fp8-flavours-differ-by-two",
    spec="The same byte is twice as large in the OCP as in the FNUZ format, where both are finite.",
    traps=("P02", "P03"),
    params={"pair": ("e4m3", "e5m2")},
)
def test_fp8_flavours_differ_by_two(gpu, torch, pair):
    ocp, fnuz = (
        ("float8_e4m3fn", "float8_e4m3fnuz")
        if pair == "e4m3"
        else ("float8_e5m2", "float8_e5m2fnuz")
    )
    _need_to_hold(gpu, torch, ocp, fnuz)
    codes = torch.arange(256, dtype=torch.uint8, device=gpu.device)
    both = [
        _list(torch, codes.view(getattr(torch, each)).to(torch.float32)) for each in (ocp, fnuz)
    ]
    ratios = {
        a / b
        for a, b in zip(*both, strict=True)
        if math.isfinite(a) and math.isfinite(b) and a and b
    }
    assert ratios == {2.0}, (
        f"the same bytes in {ocp} and {fnuz} have the ratios {sorted(ratios)[:3]}"
    )


@case(
    "precision/fp8-zero-and-nan",
    spec="NaN stays NaN in fp8; minus zero stays in the OCP formats and is plus zero in FNUZ.",
    traps=("P05",),
    params={"dtype": tuple(FP8)},
)
def test_fp8_zero_and_nan(gpu, torch, dtype):
    _need_to_hold(gpu, torch, dtype)
    cast = torch.tensor([math.nan, -0.0], device=gpu.device).to(getattr(torch, dtype))
    nan, zero = _list(torch, cast.to(torch.float32))
    assert math.isnan(nan), f"NaN became {nan} in {dtype}"
    expected = 1.0 if FP8[dtype][3] else -1.0
    assert zero == 0.0, f"-0.0 became {zero} in {dtype}"
    assert math.copysign(1, zero) == expected, f"-0.0 became {zero} in {dtype}"


@case(
    "precision/fp8-overflow",
    spec="What a cast to fp8 makes of values above the largest one differs by format and version.",
    outcome="undefined",
    traps=("P04",),
    params={"dtype": tuple(FP8)},
)
def test_fp8_overflow(gpu, torch, dtype, record):
    _need_to_hold(gpu, torch, dtype)
    found = torch.tensor([1e6, math.inf], device=gpu.device).to(getattr(torch, dtype))
    record(f"1e6 and infinity become {_list(torch, found.to(torch.float32))} in {dtype}")


@case(
    "precision/fp8-flavour-is-one",
    spec="The native fp8 pair is of one flavour, or there is none.",
    covers=("Precision.fp8", "Fp8.e4m3", "Fp8.e5m2"),
    traps=("P01",),
    smoke=True,
)
def test_fp8_flavour_is_one(gpu, torch):
    pair = gpu.precision.fp8
    if pair is None:
        raise NotClaimed(f"{gpu.name} claims no native fp8")
    kinds = {str(each).endswith("fnuz") for each in (pair.e4m3, pair.e5m2)}
    assert len(kinds) == 1, f"{pair.e4m3} and {pair.e5m2} are of two flavours"
    assert "e4m3" in str(pair.e4m3), f"e4m3 is {pair.e4m3}"
    assert "e5m2" in str(pair.e5m2), f"e5m2 is {pair.e5m2}"


@case(
    "precision/fp8-flavour-is-native",
    spec="The fp8 dtypes with native arithmetic are those of the native pair, and no other.",
    covers=("Precision.fp8", "Precision.support"),
    traps=("P01",),
)
def test_fp8_flavour_is_native(gpu, torch):
    pair = gpu.precision.fp8
    native = {each for each in FP8 if _claimed(gpu, torch, each) == "native"}
    named = (
        set()
        if pair is None
        else {str(each).removeprefix("torch.") for each in (pair.e4m3, pair.e5m2)}
    )
    assert native == named, f"native are {sorted(native)}, the pair names {sorted(named)}"


@case(
    "precision/fp8-flavour-of-target",
    spec="The native fp8 flavour is the one that the target's facts state, where they do.",
    covers=("Precision.fp8",),
    traps=("P01",),
)
def test_fp8_flavour_of_target(gpu, target):
    stated = None if target is None else target.value("matrix.fp8_flavour")
    if stated is None:
        raise NotClaimed("no target states the fp8 flavour of this device")
    pair = gpu.precision.fp8
    found = "none" if pair is None else "fnuz" if str(pair.e4m3).endswith("fnuz") else "ocp"
    assert found == stated, f"the native fp8 flavour is {found}, {target.id} states {stated}"


@case(
    "precision/bf16-support",
    spec="is_bf16_supported() says what the table says, for hardware and with emulation.",
    covers=("Backend.is_bf16_supported", "portagpu.is_bf16_supported"),
    traps=("P14",),
    params={"call": CALLS},
    smoke=True,
)
def test_bf16_support(gpu, torch, call):
    ask = (gpu if call == "method" else pg).is_bf16_supported
    claimed = _claimed(gpu, torch, "bfloat16")
    hardware, any_way = ask(including_emulation=False), ask()
    assert hardware is (claimed == "native"), f"bfloat16 is {claimed}, hardware support {hardware}"
    assert any_way is (claimed in ("native", "emulated")), f"bfloat16 is {claimed}, but {any_way}"


@case(
    "precision/finfo",
    spec="torch's limits of a format are those of its definition.",
    params={"dtype": FLOATS},
)
def test_finfo(torch, dtype):
    info = torch.finfo(getattr(torch, dtype))
    by_hand = {
        "float64": (sys_max(11, 52), 2.0**-1022, 2.0**-52),
        "float32": (sys_max(8, 23), 2.0**-126, 2.0**-23),
        "float16": (65504.0, 2.0**-14, 2.0**-10),
        "bfloat16": (sys_max(8, 7), 2.0**-126, 2.0**-7),
    }[dtype]
    found = (info.max, info.tiny, info.eps)
    assert found == by_hand, f"max, tiny, eps of {dtype} are {found}, not {by_hand}"


def sys_max(exponent_bits, mantissa_bits):
    """The largest finite number of an IEEE format."""
    bias = (1 << (exponent_bits - 1)) - 1
    return (2.0 - 2.0**-mantissa_bits) * 2.0**bias


@case(
    "precision/rounds-to-nearest-even",
    spec="A conversion rounds to the nearest number, and a tie to the even one.",
    params={"dtype": ("float32", "bfloat16", "float16")},
    smoke=True,
)
def test_rounds_to_nearest_even(gpu, torch, dtype):
    step = 2 * UNIT[dtype]
    half = step / 2
    values = [1 + half, 1 + 3 * half, 1 + half * 1.01, 1 + half * 0.99, -1 - half, -1 - 3 * half]
    by_hand = [1.0, 1 + 2 * step, 1 + step, 1.0, -1.0, -1 - 2 * step]
    source = torch.tensor(values, dtype=torch.float64, device=gpu.device)
    found = _list(torch, source.to(getattr(torch, dtype)))
    assert found == by_hand, f"{values} became {found} in {dtype}, not {by_hand}"


@case(
    "precision/overflows-to-infinity",
    spec="A value beyond the largest number of a format becomes infinity, one at it stays.",
    params={"dtype": ("float32", "bfloat16", "float16")},
)
def test_overflows_to_infinity(gpu, torch, dtype):
    largest = torch.finfo(getattr(torch, dtype)).max
    source = torch.tensor([largest, largest * 1.1, -largest * 1.1], dtype=torch.float64)
    found = _list(torch, source.to(gpu.device).to(getattr(torch, dtype)))
    assert found == [largest, math.inf, -math.inf], f"at and beyond the largest: {found}"


@case(
    "precision/keeps-subnormals",
    spec="The smallest number of a format is stored, and is not flushed to zero when doubled.",
    traps=("P13",),
    params={"dtype": FLOATS},
)
def test_keeps_subnormals(gpu, torch, dtype):
    smallest = {
        "float64": 2.0**-1074,
        "float32": 2.0**-149,
        "float16": 2.0**-24,
        "bfloat16": 2.0**-133,
    }[dtype]
    tensor = _on(gpu, torch, [smallest, -smallest], dtype)
    stored, doubled = _list(torch, tensor), _list(torch, tensor * 2)
    assert stored == [smallest, -smallest], f"the smallest {dtype} is stored as {stored}"
    assert doubled == [2 * smallest, -2 * smallest], f"twice the smallest {dtype} is {doubled}"


@case(
    "precision/nan-propagates",
    spec="A NaN stays a NaN through sums, products, minimum and maximum.",
    traps=("P20",),
    params={"dtype": FLOATS},
)
def test_nan_propagates(gpu, torch, dtype):
    values = _on(gpu, torch, [1.0, math.nan, 3.0], dtype)
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
    values = _on(gpu, torch, [math.nan, 1.0], dtype)
    assert (values == values).tolist() == [False, True], "a NaN equals itself"
    assert torch.isnan(values).tolist() == [True, False], "isnan() does not find the NaN"


@case(
    "precision/infinity-arithmetic",
    spec="Infinity follows IEEE 754: inf - inf is NaN, 1 / inf is 0, inf + 1 is inf.",
    params={"dtype": FLOATS},
)
def test_infinity_arithmetic(gpu, torch, dtype):
    infinity = _on(gpu, torch, [math.inf], dtype)
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
    zero = _on(gpu, torch, [-0.0], dtype)
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
    found = int(top + 1)
    assert found == info.min, f"{info.max} + 1 in {dtype} is {found}, not {info.min}"


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


@case(
    "precision/sum-is-accurate",
    spec="The sum of random numbers is near the sum in float64.",
    outcome="bounded: n u' sum|x| + u |sum|, u' = 2^-24 for the sum, u of the dtype for the end",
    params={"dtype": FLOATS},
)
def test_sum_is_accurate(gpu, torch, dtype):
    count = 4096
    values = torch.randn(count, dtype=torch.float64).to(getattr(torch, dtype))
    exact = math.fsum(values.double().tolist())
    total = float(values.to(gpu.device).sum())
    inner = max(UNIT["float32"] if dtype != "float64" else UNIT["float64"], UNIT["float64"])
    bound = count * inner * float(values.double().abs().sum()) + UNIT[dtype] * abs(exact) * 1.01
    assert abs(total - exact) <= bound, f"off by {abs(total - exact)}, at most {bound} is allowed"


@case(
    "precision/mean-of-ones",
    spec="The mean of 100000 ones is 1 in every format.",
    params={"dtype": FLOATS},
)
def test_mean_of_ones(gpu, torch, dtype):
    found = float(torch.ones(100_000, device=gpu.device).to(getattr(torch, dtype)).mean())
    assert found == 1.0, f"the mean of ones in {dtype} is {found}: a narrow sum was kept"


@case(
    "precision/matmul-of-small-integers",
    spec="A product of matrices of small integers is exact.",
    params={"dtype": FLOATS, "n": (1, 16, 33, 128)},
    smoke=True,
)
def test_matmul_of_small_integers(gpu, torch, dtype, n):
    generator = torch.Generator().manual_seed(n)
    left = torch.randint(-1, 2, (n, n), generator=generator)
    right = torch.randint(-1, 2, (n, n), generator=generator)
    exact = left @ right
    kind = getattr(torch, dtype)
    found = (left.to(gpu.device).to(kind) @ right.to(gpu.device).to(kind)).cpu().to(torch.int64)
    wrong = int((found != exact).sum())
    assert wrong == 0, f"{wrong} of {n * n} entries of a product in {dtype} are wrong"


@case(
    "precision/matmul-is-accurate",
    spec="A product of random matrices is near the product in float64.",
    outcome="bounded: |A||B| * (k * u' + 2 u), u' = 2^-24 for the sum, u of the dtype for the end",
    traps=("P08", "P21"),
    params={"dtype": FLOATS},
)
def test_matmul_is_accurate(gpu, torch, dtype):
    kind, inner = getattr(torch, dtype), 256
    left = torch.randn(48, inner, dtype=torch.float64).to(kind)
    right = torch.randn(inner, 40, dtype=torch.float64).to(kind)
    exact = left.double() @ right.double()
    magnitude = left.double().abs() @ right.double().abs()
    sums = UNIT["float64"] if dtype == "float64" else UNIT["float32"]
    bound = magnitude * (inner * sums) + 2 * UNIT[dtype] * exact.abs()
    off = ((left.to(gpu.device) @ right.to(gpu.device)).cpu().double() - exact).abs()
    worst = float((off / bound.clamp_min(1e-300)).max())
    assert worst <= 1.0, f"an entry of the product in {dtype} is {worst:.2f} times the bound off"


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
        assert found == value, f"{value!r} came out of a float32 product as {found!r}"


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
    spec="A float16 product of a subnormal number with the identity keeps the number.",
    traps=("P13",),
)
def test_matmul_keeps_subnormals(gpu, torch):
    tiny = 2.0**-20
    found = _through_a_product(gpu, torch, tiny, torch.float16)
    assert found == tiny, f"{tiny} came out of a float16 product as {found}"


@case(
    "precision/matmul-bfloat16-subnormals",
    spec="What a bfloat16 product makes of a subnormal number is recorded: AVX512_BF16 takes it as "
    "zero, whatever the processor's mode, and other units keep it.",
    traps=("P13",),
    outcome="undefined",
)
def test_matmul_bfloat16_subnormals(gpu, torch, record):
    tiny = 2.0**-130
    found = _through_a_product(gpu, torch, tiny, torch.bfloat16)
    record(f"{tiny} comes out of a bfloat16 product as {found}")


def _through_a_product(gpu, torch, number, dtype):
    identity = torch.eye(32, device=gpu.device).to(dtype)
    return float(((identity * number) @ identity)[3, 3])


@case(
    "precision/matmul-repeats",
    spec="The same product twice is bitwise the same.",
    traps=("P18", "P19"),
    params={"dtype": FLOATS},
)
def test_matmul_repeats(gpu, torch, dtype):
    left = torch.randn(128, 128).to(getattr(torch, dtype)).to(gpu.device)
    first = left @ left
    again = [torch.equal(left @ left, first) for _ in range(5)]
    assert all(again), f"{again.count(False)} of five repeated products in {dtype} differ"


@case(
    "precision/matmul-strides",
    spec="A product of transposed and strided matrices is that of their copies.",
    params={"dtype": ("float64", "float32", "bfloat16")},
)
def test_matmul_strides(gpu, torch, dtype):
    base = (torch.arange(40 * 40) % 5).reshape(40, 40).to(getattr(torch, dtype)).to(gpu.device)
    left, right = base.t()[::2], base[:, 1::3]
    found = (left @ right).double().cpu()
    exact = left.double().cpu() @ right.double().cpu()
    assert torch.equal(found, exact), f"a product of strided matrices in {dtype} is wrong"


@case(
    "precision/matmul-of-nothing",
    spec="A product over no element is zero, and one with no row has no row.",
)
def test_matmul_of_nothing(gpu, torch):
    empty = torch.empty(3, 0, device=gpu.device) @ torch.empty(0, 2, device=gpu.device)
    assert empty.tolist() == [[0.0, 0.0]] * 3, f"a sum over nothing is {empty.tolist()}"
    none = torch.empty(0, 4, device=gpu.device) @ torch.ones(4, 2, device=gpu.device)
    assert tuple(none.shape) == (0, 2), f"a product without rows has the shape {tuple(none.shape)}"


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
    "precision/gradients-are-right",
    spec="The gradient of a sum of squares is twice the value.",
    params={"dtype": FLOATS},
    smoke=True,
)
def test_gradients_are_right(gpu, torch, dtype):
    value = _on(gpu, torch, [1.0, -2.0, 3.5], dtype).requires_grad_()
    (value * value).sum().backward()
    found = _list(torch, value.grad)
    assert found == [2.0, -4.0, 7.0], f"the gradient of the sum of squares in {dtype} is {found}"


@case(
    "precision/training-follows-float64",
    spec="Twenty steps of training in float32 follow the same steps in float64 on the host.",
    outcome="bounded: 1e-4 relative on the loss",
    smoke=True,
)
def test_training_follows_float64(gpu, torch):
    def losses(dtype, device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        ).to(device=device, dtype=dtype)
        inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1)).to(device, dtype)
        wanted = inputs.sum(1, keepdim=True)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        found = []
        for _ in range(20):
            optimiser.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), wanted)
            loss.backward()
            optimiser.step()
            found.append(float(loss))
        return found

    reference, here = losses(torch.float64, "cpu"), losses(torch.float32, gpu.device)
    assert reference[-1] < reference[0] / 2, "the reference does not learn"
    worst = max(abs(a - b) / a for a, b in zip(reference, here, strict=True))
    assert worst <= 1e-4, f"the losses differ by {worst:.2e}: {reference[-1]} and {here[-1]}"


@case(
    "precision/autocast-changes-products",
    spec="Inside autocast a product of float32 matrices is of autocast's dtype, outside it is not.",
    capability=AUTOCAST,
    covers=("Backend.autocast", "portagpu.autocast"),
    params={"call": CALLS},
    smoke=True,
)
def test_autocast_changes_products(gpu, torch, call):
    left = torch.ones(8, 8, device=gpu.device)
    with (gpu if call == "method" else pg).autocast(torch.bfloat16):
        inside = left @ left
    assert inside.dtype == torch.bfloat16, f"inside autocast a product is {inside.dtype}"
    assert (left @ left).dtype == torch.float32, "after autocast a product is not float32"
    assert inside.cpu().double().unique().tolist() == [8.0], "a product inside autocast is wrong"


@case(
    "precision/autocast-disabled",
    spec="enabled=False leaves products in float32, also inside another autocast.",
    capability=AUTOCAST,
    covers=("Backend.autocast",),
)
def test_autocast_disabled(gpu, torch):
    left = torch.ones(8, 8, device=gpu.device)
    with gpu.autocast(torch.bfloat16), gpu.autocast(enabled=False):
        inside = left @ left
    assert inside.dtype == torch.float32, f"a product with autocast disabled is {inside.dtype}"


@case(
    "precision/autocast-default",
    spec="Without a dtype autocast uses torch's default for the device's type.",
    capability=AUTOCAST,
    covers=("Backend.autocast",),
)
def test_autocast_default(gpu, torch):
    left = torch.ones(8, 8, device=gpu.device)
    with gpu.autocast():
        inside = left @ left
    expected = torch.get_autocast_dtype(gpu.device.type)
    assert inside.dtype == expected, f"autocast made {inside.dtype}, torch's default is {expected}"


@case(
    "precision/autocast-keeps-weights",
    spec="Weights and their gradients stay float32 under autocast.",
    capability=AUTOCAST,
    covers=("Backend.autocast",),
)
def test_autocast_keeps_weights(gpu, torch):
    layer = torch.nn.Linear(8, 8).to(gpu.device)
    with gpu.autocast(torch.bfloat16):
        result = layer(torch.ones(4, 8, device=gpu.device))
    result.float().sum().backward()
    assert result.dtype == torch.bfloat16, f"the layer's result is {result.dtype}"
    assert layer.weight.dtype == torch.float32, f"the weight is {layer.weight.dtype}"
    assert layer.weight.grad.dtype == torch.float32, f"the gradient is {layer.weight.grad.dtype}"


@case(
    "precision/autocast-is-accurate",
    spec="A product under autocast in bfloat16 is near the product in float64.",
    outcome="bounded: |A||B| * (k * 2^-24 + 2 u) + u |AB|, u = 2^-8",
    capability=AUTOCAST,
    covers=("Backend.autocast",),
)
def test_autocast_is_accurate(gpu, torch):
    left, right = torch.randn(64, 128), torch.randn(128, 64)
    with gpu.autocast(torch.bfloat16):
        found = (left.to(gpu.device) @ right.to(gpu.device)).cpu().double()
    exact, unit = left.double() @ right.double(), UNIT["bfloat16"]
    magnitude = left.double().abs() @ right.double().abs()
    bound = magnitude * (128 * UNIT["float32"] + 2.01 * unit) + 1.01 * unit * exact.abs()
    worst = float(((found - exact).abs() / bound).max())
    assert worst <= 1.0, f"a product under autocast is {worst:.2f} times the bound off"


@case(
    "precision/autocast-ends-after-error",
    spec="An exception inside autocast passes through, and autocast is off again.",
    capability=AUTOCAST,
    covers=("Backend.autocast",),
)
def test_autocast_ends_after_error(gpu, torch):
    def body():
        with gpu.autocast(torch.bfloat16):
            raise KeyError("on purpose")

    refused(body, KeyError, "an exception inside autocast")
    left = torch.ones(4, 4, device=gpu.device)
    assert (left @ left).dtype == torch.float32, "autocast stayed on after an exception"


@case(
    "precision/autocast-of-a-bool-is-refused",
    spec="autocast(True), which older torch code writes for enabled, is a TypeError.",
    capability=AUTOCAST,
    outcome="unsupported",
    covers=("Backend.autocast",),
)
def test_autocast_of_a_bool_is_refused(gpu):
    gpu.autocast(enabled=False)
    refused(lambda: gpu.autocast(True), TypeError, "autocast(True)")


def _step(gpu, torch, scaler, gradient):
    """One step of SGD from 1.0 with that gradient: the weight and the scale afterwards."""
    weight = torch.ones(1, device=gpu.device, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=0.5)
    scaler.scale((weight * gradient).sum()).backward()
    scaler.step(optimiser)
    scaler.update()
    return float(weight.detach()), scaler.get_scale()


@case(
    "precision/scaler-steps",
    spec="A step through a GradScaler is the step without one.",
    capability=AUTOCAST,
    covers=("Backend.GradScaler", "portagpu.GradScaler"),
    params={"call": CALLS},
    smoke=True,
)
def test_scaler_steps(gpu, torch, call):
    scaler = (gpu if call == "method" else pg).GradScaler(init_scale=1024.0)
    weight, _ = _step(gpu, torch, scaler, 0.25)
    assert weight == 0.875, f"1 - 0.5 * 0.25 through a GradScaler is {weight}"


@case(
    "precision/scaler-skips-infinity",
    spec="A step whose gradient is infinite is skipped, and the scale halves.",
    capability=AUTOCAST,
    covers=("Backend.GradScaler",),
)
def test_scaler_skips_infinity(gpu, torch):
    scaler = gpu.GradScaler(init_scale=1024.0)
    weight, scale = _step(gpu, torch, scaler, math.inf)
    assert weight == 1.0, f"an infinite gradient moved the weight to {weight}"
    assert scale == 512.0, f"after an infinite gradient the scale is {scale}, not 512"


@case(
    "precision/scaler-grows",
    spec="After its interval of good steps the scale doubles.",
    capability=AUTOCAST,
    covers=("Backend.GradScaler",),
)
def test_scaler_grows(gpu, torch):
    scaler = gpu.GradScaler(init_scale=8.0, growth_interval=2)
    scales = [_step(gpu, torch, scaler, 0.25)[1] for _ in range(4)]
    assert scales == [8.0, 16.0, 16.0, 32.0], f"the scale went {scales}"


@case(
    "precision/scaler-disabled",
    spec="A GradScaler that is disabled scales nothing.",
    capability=AUTOCAST,
    covers=("Backend.GradScaler",),
)
def test_scaler_disabled(gpu, torch):
    scaler = gpu.GradScaler(enabled=False)
    value = torch.tensor(3.0, device=gpu.device)
    assert float(scaler.scale(value)) == 3.0, "a disabled scaler changed the loss"
    assert _step(gpu, torch, scaler, 0.25)[0] == 0.875, "a disabled scaler changed the step"


@case(
    "precision/scaler-state",
    spec="A GradScaler's state restores its scale.",
    capability=AUTOCAST,
    covers=("Backend.GradScaler",),
)
def test_scaler_state(gpu, torch):
    source = gpu.GradScaler(init_scale=1024.0)
    _step(gpu, torch, source, math.inf)
    other = gpu.GradScaler()
    other.load_state_dict(source.state_dict())
    assert other.get_scale() == 512.0, f"the restored scale is {other.get_scale()}, not 512"
