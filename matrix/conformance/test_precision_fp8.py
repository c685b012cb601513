"""Precision: the fp8 formats, casts to them, and both flavours."""

from __future__ import annotations

import math

from portagpu.devices.precision import Scaled, cast, convert, format_of, quantize
from portagpu.suites.conformance import NotClaimed, case, refused
from portagpu.suites.conformance.closeness import (
    FP8,
    claimed_support,
    float64_values,
    require_dtypes,
)

SOURCES = ("float64", "float32", "bfloat16", "float16")
FLAVOURS = {
    # from, to, the dtypes of both, and the codes of the first that the second has no value for
    "e4m3-to-fnuz": ("ocp", "fnuz", "float8_e4m3fn", "float8_e4m3fnuz", ()),
    "e5m2-to-fnuz": ("ocp", "fnuz", "float8_e5m2", "float8_e5m2fnuz", (0x7C, 0xFC)),
    "e4m3-to-ocp": ("fnuz", "ocp", "float8_e4m3fnuz", "float8_e4m3fn", (0x7F, 0xFF)),
    "e5m2-to-ocp": (
        "fnuz",
        "ocp",
        "float8_e5m2fnuz",
        "float8_e5m2",
        (*range(0x7C, 0x80), *range(0xFC, 0x100)),
    ),
}


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
    require_dtypes(gpu, ocp, fnuz)
    codes = torch.arange(256, dtype=torch.uint8, device=gpu.device)
    both = [
        float64_values(codes.view(getattr(torch, each)).to(torch.float32)) for each in (ocp, fnuz)
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
    "precision/fp8-overflow",
    spec="What a cast to fp8 makes of values above the largest one differs by format and version.",
    outcome="undefined",
    traps=("P04",),
    params={"dtype": tuple(FP8)},
)
def test_fp8_overflow(gpu, torch, dtype, record):
    require_dtypes(gpu, dtype)
    found = torch.tensor([1e6, math.inf], device=gpu.device).to(getattr(torch, dtype))
    record(f"1e6 and infinity become {float64_values(found.to(torch.float32))} in {dtype}")


@case(
    "precision/fp8-flavour-is-one",
    spec="The native fp8 pair is of one flavour, or there is none.",
    covers=("Precision.fp8", "Fp8.e4m3", "Fp8.e5m2"),
    traps=("P01",),
    smoke=True,
)
def test_fp8_flavour_is_one(backend):
    pair = backend.precision.fp8
    if pair is None:
        raise NotClaimed(f"{backend.name} claims no native fp8")
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
def test_fp8_flavour_is_native(backend):
    pair = backend.precision.fp8
    native = {each for each in FP8 if claimed_support(backend, each) == "native"}
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
def test_fp8_flavour_of_target(backend, target):
    stated = None if target is None else target.value("matrix.fp8_flavour")
    if stated is None:
        raise NotClaimed("no target states the fp8 flavour of this device")
    pair = backend.precision.fp8
    found = "none" if pair is None else "fnuz" if str(pair.e4m3).endswith("fnuz") else "ocp"
    assert found == stated, f"the native fp8 flavour is {found}, {target.id} states {stated}"


@case(
    "precision/format-limits",
    spec="torch's limits of an fp8 dtype are those of its format, but for the eps that it errs in.",
    traps=("P02",),
    params={"dtype": tuple(FP8)},
    does_not_show="eps: torch 2.13 gives float8_e5m2fnuz that of e4m3",
)
def test_format_limits(torch, dtype):
    info, form = torch.finfo(getattr(torch, dtype)), format_of(dtype)
    finite = [value for value in map(form.decode, range(256)) if math.isfinite(value) and value > 0]
    by_hand = {"e4m3fn": 448.0, "e4m3fnuz": 240.0}.get(dtype.removeprefix("float8_"), 57344.0)
    assert info.max == form.max == max(finite) == by_hand, f"the largest {dtype} is {info.max}"
    assert info.tiny == form.min_normal, f"the smallest normal {dtype} is {info.tiny}"
    assert min(finite) == form.min_subnormal, f"the smallest {dtype} is {min(finite)}"


@case(
    "precision/cast-saturates",
    spec="A cast of values above the largest, and of infinity, gives the largest; NaN stays NaN.",
    covers=("precision.cast",),
    traps=("P04", "P05"),
    params={"dtype": (*FP8, "float16"), "source": SOURCES},
    smoke=True,
)
def test_cast_saturates(gpu, torch, dtype, source):
    require_dtypes(gpu, dtype, source)
    largest = {"float16": 65504.0}.get(dtype) or format_of(dtype).max
    above = min(torch.finfo(getattr(torch, source)).max, 70000.0)
    values = [above, -above, math.inf, -math.inf, math.nan, 1.0, 0.0]
    given = torch.tensor(values, device=gpu.device, dtype=getattr(torch, source))
    *found, nan, one, zero = float64_values(cast(given, getattr(torch, dtype)).float())
    assert found == [largest, -largest] * 2, f"{values[:4]} in {source} became {found} in {dtype}"
    assert math.isnan(nan), f"NaN in {source} became {nan} in {dtype}"
    assert (one, zero) == (1.0, 0.0), f"1 and 0 in {source} became {one} and {zero} in {dtype}"


@case(
    "precision/cast-rounds-to-nearest-even",
    spec="Between two values of a format a cast takes the nearer, and in the middle the even one.",
    covers=("precision.cast",),
    traps=("P04",),
    params={"dtype": tuple(FP8)},
)
def test_cast_rounds_to_nearest_even(gpu, torch, dtype):
    require_dtypes(gpu, dtype)
    codes = [code for code in range(0x80) if math.isfinite(_decode(code, *FP8[dtype]))]
    values = [_decode(code, *FP8[dtype]) for code in codes]
    given, expected = [], []
    for code, low, high in zip(codes, values, values[1:], strict=False):
        middle = (low + high) / 2
        given += [low, middle, middle * (1 - 2**-20), middle * (1 + 2**-20)]
        expected += [low, low if code % 2 == 0 else high, low, high]
    there = torch.tensor([given, [-each for each in given]], device=gpu.device)
    found = float64_values(cast(there, getattr(torch, dtype)).float())
    for sign, line in zip((1, -1), found, strict=True):
        wrong = [
            f"{sign * value} became {got}"
            for value, got, right in zip(given, line, expected, strict=True)
            if got != sign * right
        ]
        assert not wrong, f"{len(wrong)} roundings to {dtype} are wrong: {'; '.join(wrong[:3])}"


@case(
    "precision/cast-policies",
    spec="Infinity and NaN become what is asked for, and what a format lacks is a ValueError.",
    covers=("precision.cast",),
    traps=("P05",),
    params={"dtype": (*FP8, "bfloat16")},
)
def test_cast_policies(gpu, torch, dtype):
    require_dtypes(gpu, dtype)
    kind, largest = getattr(torch, dtype), torch.finfo(getattr(torch, dtype)).max
    given = torch.tensor([math.inf, -math.inf, math.nan, 2.0], device=gpu.device)

    def cast_values(**policies):
        return float64_values(cast(given, kind, **policies).float())

    assert cast_values(nan="zero") == [largest, -largest, 0.0, 2.0], (
        f"NaN as zero: {cast_values(nan='zero')}"
    )
    as_nan = [math.isnan(each) for each in cast_values(infinity="nan")]
    assert as_nan == [True, True, True, False], f"infinity as NaN: {cast_values(infinity='nan')}"
    refused(lambda: cast_values(infinity="raise"), OverflowError, "an infinity to be refused")
    refused(lambda: cast_values(nan="raise"), ValueError, "a NaN to be refused")
    if dtype in ("float8_e5m2", "bfloat16"):
        kept = cast_values(infinity="keep", nan="zero")
        assert kept == [math.inf, -math.inf, 0.0, 2.0], f"infinity kept: {kept}"
    else:
        refused(lambda: cast_values(infinity="keep"), ValueError, f"infinity kept in {dtype}")


@case(
    "precision/cast-to-int8",
    spec="A cast to int8 rounds to even, saturates, and asks what NaN becomes.",
    covers=("precision.cast",),
    params={"source": ("float32", "bfloat16", "float16")},
)
def test_cast_to_int8(gpu, torch, source):
    require_dtypes(gpu, source, "int8")
    values = [0.5, 1.5, 2.5, -0.5, 127.0, 200.0, -200.0, math.inf, -math.inf, math.nan]
    given = torch.tensor(values, device=gpu.device, dtype=getattr(torch, source))
    found = cast(given, torch.int8, nan="zero").tolist()
    by_hand = [0, 2, 2, 0, 127, 127, -128, 127, -128, 0]
    assert found == by_hand, f"{values} became {found}, not {by_hand}"
    refused(lambda: cast(given, torch.int8), ValueError, "NaN kept in int8")


@case(
    "precision/scale-uses-the-range",
    spec="A matrix is scaled by its dtype's own largest number, which its largest value becomes.",
    covers=("precision.quantize",),
    traps=("P02",),
    params={"dtype": tuple(FP8), "recipe": ("tensor", "row")},
)
def test_scale_uses_the_range(gpu, torch, dtype, recipe):
    require_dtypes(gpu, dtype)
    matrix = (torch.rand(8, 32) - 0.5) * 1e-3
    matrix[3] = 0.0
    scaled = quantize(matrix.to(gpu.device), getattr(torch, dtype), recipe)
    largest = _decode({"float8_e4m3fn": 0x7E, "float8_e5m2": 0x7B}.get(dtype, 0x7F), *FP8[dtype])
    codes = scaled.data.float().cpu().abs()
    filled = codes.amax(1) if recipe == "row" else codes.amax().reshape(1)
    used = {value for value in filled.tolist() if value}
    assert used == {largest}, f"the largest values became {used}, not {largest}"
    amax = matrix.abs().amax(1, keepdim=True) if recipe == "row" else matrix.abs().amax()
    expected = (amax.double() / largest).where(amax > 0, 1.0)
    off = float((scaled.scale.cpu().double() / expected - 1).abs().max())
    assert off <= 2.0**-23, f"the scale is off by {off} from amax / {largest}"
    assert bool(torch.isfinite(scaled.dequantize().cpu()).all()), "a value became NaN or infinite"


@case(
    "precision/convert-keeps-values",
    spec="A matrix of one fp8 flavour has the same values in the other, its scale changed by two.",
    covers=("precision.convert",),
    traps=("P03",),
    params={"way": tuple(FLAVOURS)},
    smoke=True,
)
def test_convert_keeps_values(gpu, torch, way):
    _, flavour, old, new, lost = FLAVOURS[way]
    require_dtypes(gpu, old, new)
    codes = [code for code in range(256) if code not in lost]
    data = torch.tensor([codes], dtype=torch.uint8, device=gpu.device).view(getattr(torch, old))
    scale = torch.tensor(0.75, device=gpu.device)
    converted = convert(Scaled(data, scale), flavour)
    assert converted.data.dtype is getattr(torch, new), f"the data is {converted.data.dtype}"
    factor = {"fnuz": 2.0, "ocp": 0.5}[flavour]
    assert float(converted.scale) == 0.75 * factor, f"the scale 0.75 became {converted.scale}"
    found = float64_values(converted.dequantize())[0]
    by_hand = [0.75 * _decode(code, *FP8[old]) for code in codes]
    wrong = [
        f"{right} became {got}"
        for got, right in zip(found, by_hand, strict=True)
        if not (got == right or (math.isnan(got) and math.isnan(right)))
    ]
    assert not wrong, f"{len(wrong)} values changed from {old} to {new}: {'; '.join(wrong[:3])}"


@case(
    "precision/convert-once",
    spec="A second conversion to the same flavour is a ValueError, and there and back is exact.",
    covers=("precision.convert",),
    traps=("P03",),
    params={"pair": ("e4m3", "e5m2")},
)
def test_convert_once(gpu, torch, pair):
    name = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}[pair]
    require_dtypes(gpu, name)
    scaled = quantize(torch.randn(8, 64).to(gpu.device), getattr(torch, name), "row")
    converted = convert(scaled, "fnuz")
    refused(lambda: convert(converted, "fnuz"), ValueError, "a second conversion")
    refused(lambda: convert(scaled, "ocp"), ValueError, "a conversion to its own flavour")
    back = convert(converted, "ocp", lossy="saturate")
    assert torch.equal(back.scale, scaled.scale), "the scale changed on the way there and back"
    assert torch.equal(back.dequantize(), scaled.dequantize()), "values changed there and back"


@case(
    "precision/convert-refuses-loss",
    spec="Values that the other flavour lacks are an OverflowError, or saturate where asked to.",
    covers=("precision.convert",),
    traps=("P03", "P05"),
    params={"way": tuple(way for way, case in FLAVOURS.items() if case[4])},
)
def test_convert_refuses_loss(gpu, torch, way):
    _, flavour, old, new, lost = FLAVOURS[way]
    require_dtypes(gpu, old, new)
    data = torch.tensor([lost], dtype=torch.uint8, device=gpu.device).view(getattr(torch, old))
    scaled = Scaled(data, torch.tensor(1.0, device=gpu.device))
    refused(lambda: convert(scaled, flavour), OverflowError, f"{old} without a {new}")
    found = {
        abs(each) for each in float64_values(convert(scaled, flavour, lossy="saturate").data)[0]
    }
    largest = torch.finfo(getattr(torch, new)).max
    assert found == {largest}, f"{old} without a {new} saturated to {found}, not {largest}"
