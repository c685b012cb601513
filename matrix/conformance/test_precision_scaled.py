"""Precision: products of fp8 matrices with their scales, by every recipe and on every device."""

from __future__ import annotations

import math

from portagpu.base.errors import Unsupported
from portagpu.devices.precision import Recipe, Scaled, quantize
from portagpu.devices.precision.products import mx_blocked
from portagpu.suites.conformance import NotClaimed, case, refused
from portagpu.suites.conformance.closeness import check_near, require_dtypes

RECIPES = ("tensor", "row", "mx")
PAIRS = ("e4m3-e4m3", "e4m3-e5m2", "e5m2-e4m3", "e5m2-e5m2")


def _dtypes(gpu, torch, pair="e4m3-e4m3"):
    """The fp8 dtypes of a pair, in the device's flavour; in OCP's if it has none."""
    native = gpu.precision.fp8
    by_name = {
        "e4m3": native.e4m3 if native else torch.float8_e4m3fn,
        "e5m2": native.e5m2 if native else torch.float8_e5m2,
    }
    found = [by_name[each] for each in pair.split("-")]
    require_dtypes(gpu, *(str(each).removeprefix("torch.") for each in found))
    return found


def _small_integers(gpu, torch, shape, dtype, recipe, dim):
    """A matrix of -1, 0 and 1 with scales that are powers of two, and its values in float64."""
    data = torch.randint(-1, 2, shape).float()
    powers = {"tensor": (), "row": [1 if each == dim else size for each, size in enumerate(shape)]}
    blocks = [size // 32 if each == dim else size for each, size in enumerate(shape)]
    scale = torch.randint(-2, 3, powers.get(recipe, blocks)).float().exp2()
    spread = scale.repeat_interleave(32, dim) if recipe == "mx" else scale
    kept = scale.to(torch.float8_e8m0fnu) if recipe == "mx" else scale
    scaled = Scaled(data.to(gpu.device).to(dtype), kept.to(gpu.device), Recipe(recipe), dim)
    return scaled, (data * spread).double()


@case(
    "precision/scaled-matmul-is-exact",
    spec="A scaled product of small integers is exact, by any recipe and in any pair of formats.",
    covers=("Backend.scaled_matmul",),
    traps=("P03", "P06"),
    params={"recipe": RECIPES, "pair": PAIRS},
    smoke=True,
)
def test_scaled_matmul_is_exact(gpu, torch, recipe, pair):
    one, other = _dtypes(gpu, torch, pair)
    left, exact_left = _small_integers(gpu, torch, (48, 32), one, recipe, 1)
    right, exact_right = _small_integers(gpu, torch, (32, 64), other, recipe, 0)
    found = gpu.scaled_matmul(left, right)
    assert found.dtype is torch.bfloat16, f"a scaled product is {found.dtype}"
    wrong = int((found.cpu().double() != exact_left @ exact_right).sum())
    assert wrong == 0, f"{wrong} of {found.numel()} entries of a scaled product are wrong"


@case(
    "precision/scaled-matmul-is-accurate",
    spec="A scaled product is near that of the same values in float64.",
    outcome="bounded: |A||B| (128 * 2^-13 + k 2^-24) + 2 u |AB|, u of the result's dtype; "
    "fp8 matrix units may add 128 products in 14 bits (arXiv 2412.19437, section 3.3.2)",
    covers=("Backend.scaled_matmul", "precision.quantize"),
    traps=("P06",),
    params={"recipe": RECIPES, "out": ("bfloat16", "float16", "float32")},
)
def test_scaled_matmul_is_accurate(gpu, torch, recipe, out):
    dtype, _ = _dtypes(gpu, torch)
    inner = 256
    left = quantize(torch.randn(64, inner).to(gpu.device), dtype, recipe, 1)
    right = quantize(torch.randn(inner, 80).to(gpu.device), dtype, recipe, 0)
    found = gpu.scaled_matmul(left, right, getattr(torch, out))
    assert found.dtype is getattr(torch, out), f"a product in {out} is {found.dtype}"
    a, b = (each.dequantize().cpu().double() for each in (left, right))
    exact, magnitude = a @ b, a.abs() @ b.abs()
    roundoff = {"bfloat16": 2.0**-8, "float16": 2.0**-8, "float32": 2.0**-24}[out]
    bound = magnitude * (128 * 2.0**-13 + inner * 2.0**-24) + 2 * roundoff * exact.abs()
    check_near(found, exact, bound, f"a scaled product in {out}")


@case(
    "precision/scaled-matmul-keeps-float32",
    spec="A scaled product into float32 keeps what bfloat16 has no bits for.",
    covers=("Backend.scaled_matmul",),
)
def test_scaled_matmul_keeps_float32(gpu, torch):
    kind, _ = _dtypes(gpu, torch)
    ones = torch.ones(16, 272)
    ones[:, 0] = 2
    one = torch.ones((), device=gpu.device)
    left = Scaled(ones.to(gpu.device).to(kind), one)
    right = Scaled(torch.ones(272, 16, device=gpu.device).to(kind), one, dim=0)
    found = set(gpu.scaled_matmul(left, right, torch.float32).cpu().flatten().tolist())
    assert found == {273.0}, f"2 and 271 ones add up to {sorted(found)} in float32"


@case(
    "precision/quantize-is-near",
    spec="Quantizing a matrix changes no value by more than half a step of its format.",
    outcome="bounded: 2^-4 |x| + scale * smallest subnormal / 2 in e4m3, 2^-3 |x| in e5m2; "
    "values that a power of two as scale saturates are up to 1/8 or 1/4 lower",
    covers=("precision.quantize",),
    traps=("P02", "P04"),
    params={"recipe": RECIPES, "pair": ("e4m3", "e5m2")},
)
def test_quantize_is_near(gpu, torch, recipe, pair):
    (dtype,) = _dtypes(gpu, torch, pair)
    matrix = torch.randn(32, 128) * torch.logspace(-3, 3, 32)[:, None]
    scaled = quantize(matrix.to(gpu.device), dtype, recipe)
    step = {"e4m3": 2.0**-4, "e5m2": 2.0**-3}[pair]
    least = torch.finfo(dtype).tiny * step * float(scaled.scale.float().max())
    saturation = 2 * step if recipe == "mx" else 0.0
    bound = matrix.double().abs() * max(step, saturation) * (1 + 2.0**-20) + least
    check_near(scaled.dequantize(), matrix, bound, f"a matrix in {pair}")


@case(
    "precision/mx-scales-are-powers",
    spec="The scale of an MX block is the power of two that its largest value and format give.",
    covers=("precision.quantize",),
    traps=("P07",),
)
def test_mx_scales_are_powers(gpu, torch):
    dtype, _ = _dtypes(gpu, torch)
    rows = [448.0, 256.0, 255.0, 1.0, 3.0, 0.0, 2.0**-120]
    matrix = torch.tensor(rows, device=gpu.device)[:, None].repeat(1, 32)
    scaled = quantize(matrix, dtype, "mx")
    top = math.frexp(torch.finfo(dtype).max)[1] - 1
    expected = [8 - top, 8 - top, 7 - top, -top, 1 - top, 0, -120 - top]
    codes = scaled.scale.view(torch.uint8).flatten().tolist()
    # a power below 2^-127 is kept at it
    by_hand = [max(0, each + 127) for each in expected]
    assert codes == by_hand, f"the scales of rows of {rows} are {codes}, not {by_hand}"


@case(
    "precision/mx-scale-layout",
    spec="Packed MX scales have tiles of 128 by 4, with row i, column j at 16 (i % 32) + 4 (i / 32)"
    " + j.",
    traps=("P07",),
    params={"rows": (1, 128, 200), "columns": (1, 4, 9)},
)
def test_mx_scale_layout(gpu, torch, rows, columns):
    codes = (torch.arange(rows * columns) % 254 + 1).reshape(rows, columns).to(torch.uint8)
    packed = mx_blocked(codes.to(gpu.device).view(torch.float8_e8m0fnu))
    found = packed.view(torch.uint8).cpu().tolist()
    across = -(-columns // 4)
    by_hand = [0] * (-(-rows // 128) * 128 * across * 4)
    for i in range(rows):
        for j in range(columns):
            tile = (i // 128) * across + j // 4
            place = tile * 512 + (i % 32) * 16 + (i % 128 // 32) * 4 + j % 4
            by_hand[place] = int(codes[i, j])
    assert found == by_hand, f"the scales of {rows} rows and {columns} columns are out of place"


@case(
    "precision/recipes-run",
    spec="A recipe that is claimed runs with instructions of its own; another is Unsupported.",
    covers=("Precision.recipes", "Backend.scaled_matmul"),
    traps=("P01", "P06", "P07"),
    params={"recipe": RECIPES},
    smoke=True,
)
def test_recipes_run(gpu, torch, recipe):
    dtype, _ = _dtypes(gpu, torch)
    left, exact_left = _small_integers(gpu, torch, (128, 128), dtype, recipe, 1)
    right, exact_right = _small_integers(gpu, torch, (128, 256), dtype, recipe, 0)

    def native():
        return gpu.scaled_matmul(left, right, native_only=True)

    if recipe not in gpu.precision.recipes:
        refused(native, Unsupported, f"a native product by {recipe}")
        return
    exact = (exact_left @ exact_right).to(torch.bfloat16)
    wrong = int((native().cpu() != exact).sum())
    assert wrong == 0, f"{wrong} entries of a product by {recipe} are wrong"


@case(
    "precision/recipes-of-target",
    spec="The recipes are those that the target's facts state, and need a native fp8 flavour.",
    covers=("Precision.recipes",),
    traps=("P06",),
)
def test_recipes_of_target(backend, target):
    if backend.precision.fp8 is None:
        assert not backend.precision.recipes, (
            f"{backend.precision.recipes} without fp8 instructions"
        )
    if target is None:
        raise NotClaimed("no target states the recipes of this device")
    stated = set(target.value("matrix.scaled_recipes") or ())
    found = {str(each) for each in backend.precision.recipes}
    assert found == stated, f"the recipes are {found}, {target.id} states {stated}"


@case(
    "precision/flavours-do-not-mix",
    spec="A product of an OCP and a FNUZ matrix is a ValueError on every device.",
    outcome="unsupported",
    covers=("Backend.scaled_matmul",),
    traps=("P03", "P06"),
)
def test_flavours_do_not_mix(gpu, torch):
    require_dtypes(gpu, "float8_e4m3fn", "float8_e4m3fnuz")
    matrix = torch.ones(32, 32, device=gpu.device)
    left = quantize(matrix, torch.float8_e4m3fn, dim=1)
    right = quantize(matrix, torch.float8_e4m3fnuz, dim=0)
    refused(lambda: gpu.scaled_matmul(left, right), ValueError, "a product of two flavours")


@case(
    "precision/scaled-shapes-that-do-not-fit",
    spec="Operands whose shapes or scaled dimensions do not fit are a ValueError.",
    outcome="unsupported",
    covers=("Backend.scaled_matmul", "precision.quantize"),
)
def test_scaled_shapes_that_do_not_fit(gpu, torch):
    dtype, _ = _dtypes(gpu, torch)
    left = quantize(torch.ones(16, 32, device=gpu.device), dtype)
    across = quantize(torch.ones(48, 16, device=gpu.device), dtype, dim=0)
    refused(lambda: gpu.scaled_matmul(left, across), ValueError, "a sum over 32 and 48")
    refused(lambda: gpu.scaled_matmul(left, left), ValueError, "a right operand scaled along 1")
    short = torch.ones(16, 40, device=gpu.device)
    refused(lambda: quantize(short, dtype, "mx"), ValueError, "MX blocks of 40 elements")
