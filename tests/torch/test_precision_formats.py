"""Number formats against values by hand, ml_dtypes, numpy's or torch's own, code by code."""

from __future__ import annotations

import math

import pytest

from portagpu.devices.precision import FORMATS, Kind, format_of

SMALL = [form.name for form in FORMATS.values() if form.bits <= 16]

# name: largest, smallest normal, smallest positive; worked out from the specifications
BY_HAND = {
    "float64": (1.7976931348623157e308, 2.2250738585072014e-308, 5e-324),
    "float32": (3.4028234663852886e38, 1.1754943508222875e-38, 2.0**-149),
    "tf32": ((2 - 2**-10) * 2.0**127, 2.0**-126, 2.0**-136),
    "xf32": ((2 - 2**-10) * 2.0**127, 2.0**-126, 2.0**-136),
    "bfloat16": ((2 - 2**-7) * 2.0**127, 2.0**-126, 2.0**-133),
    "float16": (65504.0, 2.0**-14, 2.0**-24),
    "float8_e4m3fn": (448.0, 2.0**-6, 2.0**-9),
    "float8_e5m2": (57344.0, 2.0**-14, 2.0**-16),
    "float8_e4m3fnuz": (240.0, 2.0**-7, 2.0**-10),
    "float8_e5m2fnuz": (57344.0, 2.0**-15, 2.0**-17),
    "float8_e8m0fnu": (2.0**127, 2.0**-127, None),
    "float6_e2m3fn": (7.5, 1.0, 0.125),
    "float6_e3m2fn": (28.0, 0.25, 0.0625),
    "float4_e2m1fn": (6.0, 1.0, 0.5),
    "int8": (127.0, 1.0, None),
}


def test_every_format_has_values_by_hand() -> None:
    assert set(BY_HAND) == set(FORMATS)


@pytest.mark.parametrize("name", BY_HAND)
def test_limits_by_hand(name: str) -> None:
    form = FORMATS[name]
    assert (form.max, form.min_normal, form.min_subnormal) == BY_HAND[name]


def test_special_codes_by_hand() -> None:
    def codes(name: str) -> tuple[list[int], list[int]]:
        form = FORMATS[name]
        return list(form.infinity_codes), [code for part in form.nan_codes for code in part]

    assert codes("float8_e4m3fn") == ([], [0x7F, 0xFF])
    assert codes("float8_e5m2") == ([0x7C, 0xFC], [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF])
    assert codes("float8_e4m3fnuz") == codes("float8_e5m2fnuz") == ([], [0x80])
    assert codes("float8_e8m0fnu") == ([], [0xFF])
    assert codes("float6_e2m3fn") == codes("float4_e2m1fn") == codes("int8") == ([], [])
    assert FORMATS["float16"].infinity_codes == (0x7C00, 0xFC00)
    assert FORMATS["float32"].infinity_codes == (0x7F800000, 0xFF800000)
    assert FORMATS["float64"].nan_codes[0].start == 0x7FF0000000000001


def test_widths_in_memory_and_of_information() -> None:
    assert (FORMATS["tf32"].bits, FORMATS["tf32"].storage_bits) == (19, 32)
    for name, form in FORMATS.items():
        assert form.bits == form.storage_bits or name in ("tf32", "xf32"), f"{name} has padding"


@pytest.mark.parametrize("name", ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "int8"])
def test_formats_without_minus_zero(name: str) -> None:
    form = FORMATS[name]
    values = [form.decode(code) for code in range(256)]
    assert not form.has_minus_zero
    assert not any(value == 0 and math.copysign(1, value) < 0 for value in values)


@pytest.mark.parametrize("name", SMALL)
def test_limits_are_those_of_all_codes(name: str) -> None:
    form = FORMATS[name]
    values = [form.decode(code) for code in range(1 << form.bits)]
    finite = [value for value in values if math.isfinite(value)]
    positive = [value for value in finite if value > 0]
    assert (max(finite), min(finite)) == (form.max, form.min), f"the ends of {name}"
    assert min(positive) == (form.min_subnormal or form.min_normal), f"the smallest {name}"
    after_one = min(value for value in positive if value > 1)
    assert after_one - 1 == form.eps, f"the step of {name} at 1"


@pytest.mark.parametrize("name", [name for name in SMALL if name not in ("float16", "int8")])
def test_every_code_decodes_as_ml_dtypes_does(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numpy = pytest.importorskip("numpy")
    form = FORMATS[name]
    codes = numpy.arange(1 << form.bits).astype(numpy.uint16 if form.bits > 8 else numpy.uint8)
    # by one and not all at once: numpy warns of the NaNs that it widens
    theirs = [float(each) for each in codes.view(getattr(ml_dtypes, name))]
    wrong = [code for code, value in enumerate(theirs) if not same(form.decode(code), value)]
    assert not wrong, f"{name}: ml_dtypes decodes {wrong[:4]} differently"


@pytest.mark.torch
@pytest.mark.parametrize("name", [name for name in SMALL if FORMATS[name].storage_bits >= 8])
def test_every_code_decodes_as_torch_does(name: str) -> None:
    torch = pytest.importorskip("torch")
    form = FORMATS[name]
    kind, codes = (torch.int16, 1 << 16) if form.bits == 16 else (torch.uint8, 256)
    theirs = torch.arange(codes).to(kind).view(getattr(torch, name)).double().tolist()
    wrong = [code for code, value in enumerate(theirs) if not same(form.decode(code), value)]
    assert not wrong, f"{name}: torch decodes {wrong[:4]} differently"


def same(left: float, right: float) -> bool:
    """Equal, with the same sign of zero, or both NaN."""
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return left == right and math.copysign(1, left) == math.copysign(1, right)


def test_float32_and_float64_decode_as_struct_does() -> None:
    import random
    import struct

    source = random.Random(20261121)  # noqa: S311 - test data
    for name, bits, unsigned, number in (("float32", 32, "<I", "<f"), ("float64", 64, "<Q", "<d")):
        codes = [source.getrandbits(bits) for _ in range(2000)]
        codes += [0, 1, 1 << (bits - 1), (1 << bits) - 1, *FORMATS[name].infinity_codes]
        for code in codes:
            theirs = struct.unpack(number, struct.pack(unsigned, code))[0]
            assert same(FORMATS[name].decode(code), theirs), f"{name} 0x{code:x} is {theirs}"


def test_same_bytes_differ_by_two_between_flavours() -> None:
    for ocp, fnuz, count in (
        ("float8_e4m3fn", "float8_e4m3fnuz", 252),
        ("float8_e5m2", "float8_e5m2fnuz", 246),
    ):
        pairs = [(FORMATS[ocp].decode(c), FORMATS[fnuz].decode(c)) for c in range(256)]
        ratios = [a / b for a, b in pairs if math.isfinite(a) and math.isfinite(b) and a and b]
        assert set(ratios) == {2.0}, f"{ocp} and {fnuz} differ by {set(ratios)}"
        assert len(ratios) == count, f"{len(ratios)} codes are finite in {ocp} and {fnuz}"


def test_formats_are_found_by_name_and_by_dtype() -> None:
    assert format_of("bfloat16") is format_of("torch.bfloat16") is FORMATS["bfloat16"]
    assert format_of("torch.float4_e2m1fn_x2").bits == 4
    assert FORMATS["int8"].kind is Kind.INTEGER
    with pytest.raises(ValueError, match="no number format is called float128"):
        format_of("float128")


@pytest.mark.parametrize("code", [-1, 256])
def test_a_code_with_too_many_bits_is_refused(code: int) -> None:
    with pytest.raises(ValueError, match="codes of 8 bits"):
        FORMATS["float8_e5m2"].decode(code)


@pytest.mark.processes(1, "this process has imported torch")
def test_formats_and_operations_import_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, portagpu.devices.precision; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False", "portagpu.devices.precision imports torch"
