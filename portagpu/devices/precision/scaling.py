"""Matrices in fp8 with their scales: one object, so that data and scale change together."""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp
from typing import TYPE_CHECKING, Final

from portagpu.devices.precision.casts import cast
from portagpu.devices.precision.formats import FLAVOURS, format_of
from portagpu.devices.precision.levels import Recipe

if TYPE_CHECKING:
    import torch

MX_BLOCK: Final = 32
"""Elements that share a scale (OCP microscaling formats specification 1.0, section 5.1)."""


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """A matrix of shape (rows, columns) whose values are ``data * scale``.

    ``dim`` is the dimension that a product sums over: 1 in a left operand, 0 in a right one. The
    scale is float32: of shape () for a tensor; for rows that of the data, with 1 at ``dim``; for
    MX with a 32nd at ``dim``, and of dtype float8_e8m0fnu unless it left that range. Raises
    ValueError where they do not fit one another.
    """

    data: torch.Tensor
    scale: torch.Tensor
    recipe: Recipe = Recipe.TENSOR
    dim: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", Recipe(self.recipe))
        if self.data.dim() != 2 or self.dim not in (0, 1):
            raise ValueError(f"a scaled matrix has two dimensions, not {tuple(self.data.shape)}")
        expected = scale_shape(tuple(self.data.shape), self.recipe, self.dim)
        if tuple(self.scale.shape) != expected:
            raise ValueError(
                f"the scale of a matrix of shape {tuple(self.data.shape)} by {self.recipe} has "
                f"the shape {expected}, not {tuple(self.scale.shape)}"
            )
        allowed = ("float32", "float8_e8m0fnu") if self.recipe is Recipe.MX else ("float32",)
        if str(self.scale.dtype).removeprefix("torch.") not in allowed:
            raise ValueError(f"a scale is {' or '.join(allowed)}, not {self.scale.dtype}")
        self.flavour  # noqa: B018 - refuses other dtypes

    @property
    def flavour(self) -> str:
        """ "ocp" or "fnuz"."""
        name = str(self.data.dtype).removeprefix("torch.")
        for flavour, names in FLAVOURS.items():
            if name in names:
                return flavour
        raise ValueError(f"a scaled matrix is of an fp8 dtype, not {self.data.dtype}")

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """``data * scale`` in float32, then in ``dtype``."""
        import torch

        scale = self.scale.float()
        if self.recipe is Recipe.MX:
            scale = scale.repeat_interleave(MX_BLOCK, self.dim)
        return (self.data.float() * scale).to(dtype or torch.float32)


def scale_shape(shape: tuple[int, ...], recipe: Recipe, dim: int) -> tuple[int, ...]:
    """The shape of the scale of a matrix. Raises ValueError where no MX blocks fit it."""
    if recipe is Recipe.TENSOR:
        return ()
    if recipe is Recipe.MX and shape[dim] % MX_BLOCK:
        raise ValueError(f"MX scales blocks of {MX_BLOCK}: {shape[dim]} is no multiple of it")
    shared = 1 if recipe is Recipe.ROW else shape[dim] // MX_BLOCK
    return (shared, shape[1]) if dim == 0 else (shape[0], shared)


def quantize(
    x: torch.Tensor, dtype: torch.dtype, recipe: Recipe | str = Recipe.TENSOR, dim: int = 1
) -> Scaled:
    """The matrix ``x`` in the fp8 ``dtype``, scaled so that the largest value uses its range.

    Scales of tensors and rows are ``amax / finfo(dtype).max``, those of MX blocks the power of two
    ``2^(floor(log2(amax)) - e)``, e the exponent of the largest number (OCP microscaling formats
    1.0, section 6.3). ``amax`` is over finite values; infinities saturate and NaN stays NaN. Where
    all values are zero the scale is 1.
    """
    import torch

    recipe = Recipe(recipe)
    form = format_of(dtype)
    if x.dim() != 2 or dim not in (0, 1):
        raise ValueError(f"quantize takes a matrix, not the shape {tuple(x.shape)}")
    scale_shape(tuple(x.shape), recipe, dim)
    # beyond the range of float32 a number is finite all the same
    wide = cast(x, torch.float32, infinity="keep") if x.dtype is torch.float64 else x.float()
    finite = wide.abs().nan_to_num(nan=0.0, posinf=0.0)
    if recipe is Recipe.MX:
        blocks = finite.unflatten(dim, (-1, MX_BLOCK)).amax(dim + 1)
        exponent = blocks.frexp().exponent - 1 - _exponent(form.max)
        exponent = exponent.clamp(-127, 127).where(blocks > 0, 0)
        factor = torch.ldexp(torch.ones_like(blocks), -exponent).repeat_interleave(MX_BLOCK, dim)
        scale = (exponent + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
        return Scaled(cast(wide * factor, dtype), scale, recipe, dim)
    if recipe is Recipe.ROW:
        empty = finite.new_zeros(scale_shape(tuple(x.shape), recipe, dim))
        amax = finite.amax(dim, keepdim=True) if x.shape[dim] else empty
    else:
        amax = finite.amax() if finite.numel() else finite.new_zeros(())
    scale = (amax / form.max).clamp_min(torch.finfo(torch.float32).tiny).where(amax > 0, 1.0)
    return Scaled(cast(wide / scale, dtype), scale, recipe, dim)


def _exponent(value: float) -> int:
    """floor(log2(value)) of a positive number."""
    return frexp(value)[1] - 1
