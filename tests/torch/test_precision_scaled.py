"""Scaled matrices: flavours, products, and the calls that other devices would get."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from portagpu.base.errors import Unsupported
from portagpu.devices.precision import FORMATS, Fp8, Precision, Recipe, Scaled, convert, quantize
from portagpu.devices.precision.casts import _tables
from portagpu.devices.precision.products import mx_blocked, scaled_matmul, why_not_native

pytestmark = pytest.mark.torch

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
OCP = Precision({}, Fp8(E4M3, E5M2), recipes=frozenset(Recipe))
FNUZ = Precision({}, Fp8(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz), frozenset({Recipe.TENSOR}))
NOTHING = Precision({})


def test_flavour_tables_by_hand() -> None:
    codes, lost = _tables("float8_e4m3fn", "float8_e4m3fnuz")
    changed = {code: codes[code] for code in range(256) if codes[code] != code}
    assert changed == {0x80: 0x00, 0x7F: 0x80, 0xFF: 0x80}, "minus zero and both NaN change alone"
    assert not any(lost)
    codes, lost = _tables("float8_e4m3fnuz", "float8_e4m3fn")
    assert {code: codes[code] for code in range(256) if codes[code] != code} == {
        0x80: 0x7F,
        0x7F: 0x7E,
        0xFF: 0xFE,
    }
    assert [code for code in range(256) if lost[code]] == [0x7F, 0xFF]


@pytest.mark.parametrize("size", [0, 1, (1 << 22) + 3])
def test_matrices_of_any_size_are_converted(size) -> None:
    data = (torch.arange(size) % 256).to(torch.uint8)
    expected = (data.masked_fill(data == 0x80, 0)).masked_fill((data & 0x7F) == 0x7F, 0x80)
    scaled = Scaled(data[None].view(E4M3), torch.tensor(1.0))
    found = convert(scaled, "fnuz").data.view(torch.uint8)[0]
    assert torch.equal(found, expected)


def test_a_transposed_matrix_is_converted() -> None:
    scaled = quantize(torch.randn(16, 8, generator=torch.Generator().manual_seed(3)), E4M3)
    turned = Scaled(scaled.data.t(), scaled.scale, dim=0)
    assert torch.equal(convert(turned, "fnuz").dequantize(), scaled.dequantize().t())


def test_mx_scales_become_float32_and_keep_their_values() -> None:
    scaled = quantize(torch.full((1, 32), 448.0 * 2.0**119), E4M3, "mx")
    assert float(scaled.scale.float()) == 2.0**119
    converted = convert(scaled, "fnuz")
    assert converted.scale.dtype is torch.float32
    assert float(converted.scale) == 2.0**120
    assert torch.equal(converted.dequantize(), scaled.dequantize())


def test_a_flavour_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="ocp or fnuz"):
        convert(quantize(torch.ones(2, 2), E4M3), "ieee")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": torch.ones(2, 2)}, "fp8 dtype"),
        ({"data": torch.ones(2).to(E4M3)}, "two dimensions"),
        ({"scale": torch.ones(2)}, r"has the shape \(\)"),
        ({"scale": torch.tensor(1.0, dtype=torch.float64)}, "a scale is float32"),
        ({"recipe": Recipe.ROW}, r"has the shape \(2, 1\)"),
        ({"recipe": Recipe.MX}, "blocks of 32"),
        ({"dim": 2}, "two dimensions"),
    ],
)
def test_scales_that_do_not_fit_are_refused(change, said) -> None:
    parts = {"data": torch.ones(2, 2).to(E4M3), "scale": torch.tensor(1.0)}
    with pytest.raises(ValueError, match=said):
        Scaled(**{**parts, **change})


@pytest.mark.parametrize("recipe", ["tensor", "row", "mx"])
def test_specials_do_not_spread_over_a_matrix(recipe) -> None:
    matrix = torch.ones(4, 64)
    matrix[0, 0], matrix[1, 0], matrix[2, 0] = math.inf, math.nan, -math.inf
    found = quantize(matrix, E4M3, recipe).dequantize()
    assert torch.equal(found[:, 1:], matrix[:, 1:]), "the infinity or the NaN reached other values"
    assert math.isfinite(found[0, 0]) and found[0, 0] >= 1.0, "an infinity did not saturate"
    assert math.isnan(found[1, 0]), "the NaN is gone"
    assert math.isfinite(found[2, 0]) and found[2, 0] <= -1.0, "minus infinity did not saturate"


@pytest.mark.parametrize("recipe", ["tensor", "row", "mx"])
@pytest.mark.parametrize("value", [0.0, 1e-45, 2.0**-126, 3e38])
def test_extreme_matrices_stay_finite(recipe, value) -> None:
    scaled = quantize(torch.full((2, 32), value), E4M3, recipe)
    found = scaled.dequantize()
    assert bool(torch.isfinite(found).all()), f"{value} became {found[0, 0]}"
    assert float((found - value).abs().max()) <= max(value * 2**-3, 2.0**-126 * 2**-9)


@pytest.mark.parametrize("recipe", ["tensor", "row", "mx"])
@pytest.mark.parametrize("shape", [(0, 32), (32, 0)])
def test_an_empty_matrix_has_scales(recipe, shape) -> None:
    scaled = quantize(torch.empty(shape), E4M3, recipe)
    assert scaled.dequantize().shape == shape


def test_what_is_finite_in_float64_alone_becomes_the_largest() -> None:
    found = quantize(torch.tensor([[1e300, -2.0]], dtype=torch.float64), E4M3).dequantize()
    assert float(found[0, 0]) >= 3e38, f"1e300 became {found[0, 0]}"


def test_a_recipe_may_be_named() -> None:
    data = torch.ones(2, 32).to(E4M3)
    assert Scaled(data, torch.tensor(1.0), "tensor").recipe is Recipe.TENSOR
    with pytest.raises(ValueError, match="'column' is not a valid Recipe"):
        Scaled(data, torch.ones(2, 1), "column")


@pytest.mark.parametrize(
    ("dtype", "scale", "flavour"), [(E4M3, 3e38, "fnuz"), (torch.float8_e4m3fnuz, 1e-45, "ocp")]
)
def test_a_scale_that_cannot_follow_is_an_error(dtype, scale, flavour) -> None:
    scaled = Scaled(torch.ones(2, 2).to(dtype), torch.tensor(scale))
    with pytest.raises(OverflowError, match="times the scale is not a float32"):
        convert(scaled, flavour, lossy="saturate")


@pytest.mark.parametrize("out", [E4M3, torch.int8, torch.float64])
def test_a_product_in_another_dtype_is_refused(out) -> None:
    with pytest.raises(ValueError, match="is made in bfloat16, float16, float32"):
        scaled_matmul(NOTHING, *operands(), out)


def operands(recipe="tensor", shape=(32, 64, 48), dtypes=(E4M3, E4M3)):
    rows, inner, columns = shape
    generator = torch.Generator().manual_seed(5)
    left = quantize(torch.randn(rows, inner, generator=generator), dtypes[0], recipe, 1)
    right = quantize(torch.randn(inner, columns, generator=generator), dtypes[1], recipe, 0)
    return left, right


@pytest.mark.parametrize(
    ("precision", "change", "out", "said"),
    [
        (NOTHING, {}, torch.bfloat16, "no fp8 instructions"),
        (FNUZ, {}, torch.bfloat16, "the device's fp8 is torch.float8_e4m3fnuz"),
        (OCP, {"dtypes": (E5M2, E5M2)}, torch.bfloat16, "no product of torch.float8_e5m2"),
        (OCP, {"dtypes": (E4M3, E5M2), "recipe": "row"}, torch.bfloat16, "by row"),
        (OCP, {"recipe": "row"}, torch.float32, "is not made in torch.float32"),
        (OCP, {"shape": (32, 40, 48)}, torch.bfloat16, "must be multiples of 16"),
        (OCP, {"shape": (32, 64, 40)}, torch.bfloat16, "must be multiples of 16"),
        (OCP, {"shape": (3, 64, 48)}, torch.bfloat16, ""),
        (OCP, {"dtypes": (E4M3, E5M2)}, torch.float16, ""),
        (OCP, {"recipe": "mx"}, torch.bfloat16, ""),
    ],
)
def test_a_device_has_the_product_or_says_why_not(precision, change, out, said) -> None:
    left, right = operands(**change)
    reason = why_not_native(precision, left, right, out)
    assert said in reason and bool(said) is bool(reason), f"the reason is {reason!r}"
    if reason:
        with pytest.raises(Unsupported, match="no scaled product"):
            scaled_matmul(precision, left, right, out, native_only=True)


def test_a_recipe_that_is_not_claimed_takes_the_way_out() -> None:
    converted = [convert(each, "fnuz") for each in operands("row")]
    reason = why_not_native(FNUZ, *converted, torch.bfloat16)
    assert reason == "the device has no product of scales by row and row"
    found = scaled_matmul(FNUZ, *converted)
    assert torch.equal(found, scaled_matmul(NOTHING, *operands("row")))


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("recipe", ["tensor", "row"])
def test_the_native_call_and_the_way_out_agree(recipe) -> None:
    """On a CPU torch answers the call that GPUs get, so that its arguments can be checked."""
    left, right = operands(recipe)
    native = scaled_matmul(OCP, left, right, native_only=True)
    other = scaled_matmul(NOTHING, left, right)
    exact = left.dequantize().double() @ right.dequantize().double()
    magnitude = left.dequantize().double().abs() @ right.dequantize().double().abs()
    for found in (native, other):
        bound = 64 * 2.0**-24 * magnitude + 2 * 2.0**-8 * exact.abs()
        assert bool(((found.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("recipe", ["tensor", "row", "mx"])
@pytest.mark.parametrize("shape", [(32, 64, 48), (128, 128, 256), (1, 32, 16), (200, 96, 80)])
def test_the_native_call_passes_torch_s_own_checks_of_a_gpu(recipe, shape) -> None:
    rows, inner, columns = shape
    parts = {"tensor": ((), ()), "row": ((rows, 1), (1, columns))}
    blocks = ((rows, inner // 32), (inner // 32, columns))
    kind = torch.float8_e8m0fnu if recipe == "mx" else torch.float32
    # torch checks a tensor without a device as one of a GPU (device_hint in _meta_registrations.py)
    scales = [torch.empty(each, device="meta", dtype=kind) for each in parts.get(recipe, blocks)]
    left = Scaled(torch.empty(rows, inner, device="meta").to(E4M3), scales[0], Recipe(recipe))
    data = torch.empty(inner, columns, device="meta").to(E4M3)
    right = Scaled(data, scales[1], Recipe(recipe), 0)
    found = scaled_matmul(OCP, left, right, native_only=True)
    assert tuple(found.shape) == (rows, columns)


def test_torch_refuses_a_gpu_scales_that_are_not_packed() -> None:
    """Otherwise the test above would show nothing."""
    left = torch.empty(200, 96, device="meta").to(E4M3)
    scale = torch.empty(200, 3, device="meta", dtype=torch.float8_e8m0fnu)
    right = torch.empty(80, 96, device="meta").to(E4M3).t()
    with pytest.raises(RuntimeError):
        torch._scaled_mm(left, right, scale, scale, out_dtype=torch.bfloat16)


def test_mx_blocked_by_hand() -> None:
    """The example of cuBLAS: row i and column j of a tile at (i % 32) * 16 + (i // 32) * 4 + j."""
    codes = torch.arange(128 * 4).reshape(128, 4) % 251
    packed = mx_blocked(codes.to(torch.uint8).view(torch.float8_e8m0fnu)).view(torch.uint8)
    for row, column, place in ((0, 0, 0), (0, 3, 3), (1, 0, 16), (31, 3, 499), (32, 0, 4)):
        assert int(packed[place]) == int(codes[row, column]), f"row {row}, column {column}"
    assert int(packed[511]) == int(codes[127, 3])
    assert packed.numel() == 512


def test_scaled_formats_are_those_of_the_table() -> None:
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        scaled = quantize(torch.tensor([[3.0, -5.0]]), getattr(torch, name))
        assert float(scaled.data.float().abs().max()) == FORMATS[name].max
