"""Scaled matrix products: with native instructions where the device has them, else in bfloat16."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import Unsupported
from portagpu.devices.precision.levels import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from portagpu.devices.precision.model import Precision
    from portagpu.devices.precision.scaling import Scaled

_OUT: Final = ("bfloat16", "float16", "float32")
_MULTIPLE: Final = 16
"""torch requires K and N as multiples of it (pytorch, aten/src/ATen/native/cuda/ScaledBlas.cpp)."""


@contextmanager
def wide_partial_sums() -> Iterator[None]:
    """No partial sum of a 16-bit product is rounded to 16 bits inside the block.

    By default torch allows it on GPUs: a library that splits K between blocks writes what each of
    them came to in the dtype of the product.
    """
    import torch

    switches = torch.backends.cuda.matmul
    names = [f"allow_{kind}_reduced_precision_reduction" for kind in ("fp16", "bf16")]
    before = [getattr(switches, name) for name in names]
    for name in names:
        setattr(switches, name, False)
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(switches, name, value)


def scaled_matmul(
    precision: Precision,
    left: Scaled,
    right: Scaled,
    out_dtype: torch.dtype | None = None,
    *,
    native_only: bool = False,
) -> torch.Tensor:
    """The product (M, N) of two scaled matrices, (M, K) and (K, N), in ``out_dtype`` or bfloat16.

    Where :func:`why_not_native` has a reason, the way out is a product in bfloat16, in which every
    fp8 value is exact: rounded to bfloat16, multiplied by the scales in float32, then rounded to
    ``out_dtype``. Into float32 it is a product of float32. ``native_only`` raises Unsupported with
    that reason instead. ``out_dtype`` is bfloat16, float16 or float32. Raises ValueError for
    another, for shapes that do not fit and for a mixture of flavours.
    """
    import torch

    out_dtype = out_dtype or torch.bfloat16
    if str(out_dtype).removeprefix("torch.") not in _OUT:
        raise ValueError(f"a scaled product is made in {', '.join(_OUT)}, not {out_dtype}")
    _check(left, right)
    reason = why_not_native(precision, left, right, out_dtype)
    if not reason:
        return torch._scaled_mm(
            left.data.contiguous(),
            right.data.t().contiguous().t(),
            _native_scale(left),
            _native_scale(right),
            out_dtype=out_dtype,
        )
    if native_only:
        raise Unsupported(f"no scaled product with instructions of its own: {reason}")
    wide = torch.float32 if out_dtype is torch.float32 else torch.bfloat16
    if left.recipe is Recipe.MX or right.recipe is Recipe.MX:
        return (left.dequantize(wide) @ right.dequantize(wide)).to(out_dtype)
    product = left.data.to(wide) @ right.data.to(wide)
    return (product.float() * left.scale * right.scale).to(out_dtype)


def why_not_native(
    precision: Precision, left: Scaled, right: Scaled, out_dtype: torch.dtype
) -> str:
    """Why the device has no native instructions for this product; empty where it has.

    The limits are those that all vendors' libraries share (ScaledBlas.cpp): two e5m2 operands are
    refused by cuBLASLt, rows and blocks need e4m3 and give bfloat16, and K and N are multiples
    of 16.
    """
    import torch

    if precision.fp8 is None:
        return "the device has no fp8 instructions"
    pair = (precision.fp8.e4m3, precision.fp8.e5m2)
    dtypes = (left.data.dtype, right.data.dtype)
    if not set(dtypes) <= set(pair):
        return f"the device's fp8 is {pair[0]} and {pair[1]}"
    if left.recipe is not right.recipe or left.recipe not in precision.recipes:
        return f"the device has no product of scales by {left.recipe} and {right.recipe}"
    if any(each.scale.dtype is torch.float32 for each in (left, right)) and (
        left.recipe is Recipe.MX
    ):
        return "the scales left the range of float8_e8m0fnu"
    whole = left.recipe is Recipe.TENSOR
    if dtypes == (pair[1], pair[1]) or not (whole or dtypes == (pair[0], pair[0])):
        return f"there is no product of {dtypes[0]} and {dtypes[1]} by {left.recipe}"
    allowed = (torch.bfloat16, torch.float16, torch.float32) if whole else (torch.bfloat16,)
    if out_dtype not in allowed:
        return f"a product by {left.recipe} is not made in {out_dtype}"
    if any(size % _MULTIPLE for size in right.data.shape):
        return f"{tuple(right.data.shape)} are no multiples of {_MULTIPLE}"
    return ""


def mx_blocked(scale: torch.Tensor) -> torch.Tensor:
    """The scales (rows, columns) of MX blocks as a flat tensor in the order of cuBLASLt.

    Tiles of 128 rows and 4 columns, padded with zero bytes, one after another by rows of tiles.
    Inside one, row i and column j are at ``(i % 32) * 16 + (i // 32) * 4 + j``. Source: cuBLAS
    12.8, "1D Block Scaling Factors Layout" (docs.nvidia.com/cuda/cublas).
    """
    import torch

    codes = scale.view(torch.uint8)
    rows, columns = codes.shape
    padded = torch.nn.functional.pad(codes, (0, -columns % 4, 0, -rows % 128))
    tiles = padded.view(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(-1).view(scale.dtype)


def _check(left: Scaled, right: Scaled) -> None:
    shapes = (tuple(left.data.shape), tuple(right.data.shape))
    if shapes[0][1] != shapes[1][0] or (left.dim, right.dim) != (1, 0):
        raise ValueError(
            f"a product takes (M, K) scaled along 1 and (K, N) scaled along 0, "
            f"not {shapes[0]} along {left.dim} and {shapes[1]} along {right.dim}"
        )
    if left.flavour != right.flavour:
        raise ValueError(
            f"the operands are of flavour {left.flavour} and {right.flavour}: convert one"
        )


def _native_scale(operand: Scaled) -> torch.Tensor:
    if operand.recipe is not Recipe.MX:
        return operand.scale.contiguous()
    return mx_blocked(operand.scale if operand.dim == 1 else operand.scale.t())
