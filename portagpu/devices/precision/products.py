"""Matrix products: the arithmetic of float32, and scaled products with or without instructions."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import Unsupported
from portagpu.devices.precision.model import Arithmetic, Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from portagpu.devices.precision.casts import Scaled
    from portagpu.devices.precision.model import Precision

_MODES: Final = (Arithmetic.IEEE, Arithmetic.TF32)
_PARENTS: Final = ("", "cudnn")
"""The settings that the operations below inherit while theirs is "none"."""
_OPERATIONS: Final = (
    "cuda.matmul",
    "cudnn.conv",
    "cudnn.rnn",
    "mkldnn.matmul",
    "mkldnn.conv",
    "mkldnn.rnn",
)
"""Below ``torch.backends``; those called cuda and cudnn are HIP's and MIOpen's in a ROCm build."""
_OVERRIDE: Final = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
_SIZE: Final = 512
_VALUES: Final = (1 + 2.0**-12, 1 + 2.0**-9 + 2.0**-23)
"""Two numbers that distinguish the arithmetics: a product with 1 rounds nothing else."""
_READINGS: Final = {
    (1 + 2.0**-12, 1 + 2.0**-9 + 2.0**-23): Arithmetic.IEEE,
    (1.0, 1 + 2.0**-9): Arithmetic.TF32,
    (1 + 2.0**-12, 1 + 2.0**-9): Arithmetic.BF16X3,
    (1.0, 1.0): Arithmetic.BF16,
}
"""The results: tf32 keeps 10 bits of mantissa, bfloat16 7, and two pieces of bfloat16 8 bits each,
with a gap between."""


class Float32Switch:
    """Sets the arithmetic of this process's float32 products.

    It acts when it is created, like ``torch.set_grad_enabled``. As a context manager it restores
    all of torch's switches at the end.

    :param precision: what the device has.
    :param requested: "ieee" or "tf32"; a device without tf32 computes in "ieee", and ``reason``
        says so.
    :raises ValueError: for another arithmetic.
    """

    __slots__ = ("_before", "arithmetic", "reason", "requested")

    def __init__(self, precision: Precision, requested: Arithmetic | str) -> None:
        if requested not in _MODES:
            raise ValueError(f"float32 products run in {' or '.join(_MODES)}, not {requested!r}")
        self.requested: Arithmetic = Arithmetic(requested)
        """The requested arithmetic."""
        fast = self.requested is Arithmetic.TF32 and precision.tf32 is not Arithmetic.IEEE
        self.arithmetic: Arithmetic = precision.tf32 if fast else Arithmetic.IEEE
        """The arithmetic that this device uses for it, by its facts."""
        self.reason: str = ""
        """Why it differs from the requested one; empty where it does not."""
        if self.arithmetic is not self.requested:
            self.reason = f"this device has no tf32; float32 products run in {self.arithmetic}"
        self._before = _Switches.current()
        _set_switches(fast)

    def __repr__(self) -> str:
        return f"<float32 products in {self.arithmetic}, {self.requested} was asked for>"

    def __enter__(self) -> Float32Switch:
        return self

    def __exit__(self, *_: object) -> None:
        self._before.restore()


def switched_by_variable() -> str:
    """The variable with which torch starts with rounded float32 products, NAME=value; else empty.

    NVIDIA's containers set it. Source: aten/src/ATen/Context.h, ``allow_tf32_cublas_override``;
    torch takes "1" for true (c10/util/env.h, ``check_env``).
    """
    value = os.environ.get(_OVERRIDE, "")
    return f"{_OVERRIDE}={value}" if value == "1" else ""


def _set_switches(fast: bool) -> None:
    """Set both interfaces for products, convolutions and RNNs, so that both can be read."""
    import torch

    for path in _PARENTS:
        _set_switch(path, "none")
    torch.set_float32_matmul_precision("high" if fast else "highest")
    torch.backends.cudnn.allow_tf32 = fast
    for path in _OPERATIONS:
        _set_switch(path, "tf32" if fast else "ieee")


@dataclass(frozen=True, slots=True)
class _Switches:
    """torch's switches; None for those of the older interface that cannot be read."""

    values: tuple[str, ...]
    products: str | None
    convolutions: bool | None

    @classmethod
    def current(cls) -> _Switches:
        """The present values."""
        import torch

        products: str | None = None
        convolutions: bool | None = None
        with suppress(RuntimeError):
            products = torch.get_float32_matmul_precision()
        with suppress(RuntimeError):
            convolutions = torch.backends.cudnn.allow_tf32
        values = tuple(_get_switch(path) for path in (*_PARENTS, *_OPERATIONS))
        return cls(values, products, convolutions)

    def restore(self) -> None:
        """Restore the older interface first. The newer one corrects what that writes."""
        import torch

        if self.products is not None:
            torch.set_float32_matmul_precision(self.products)
        if self.convolutions is not None:
            torch.backends.cudnn.allow_tf32 = self.convolutions
        for path, value in zip((*_PARENTS, *_OPERATIONS), self.values, strict=True):
            _set_switch(path, value)


def _owner(path: str) -> Any:
    import torch

    owner: Any = torch.backends
    for part in path.split(".") if path else ():
        owner = getattr(owner, part)
    return owner


def _get_switch(path: str) -> str:
    value: str = _owner(path).fp32_precision
    return value


def _set_switch(path: str, value: str) -> None:
    _owner(path).fp32_precision = value


def product_function(operation: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The function that multiplies matrices by "matmul", or by "conv" with one pixel."""
    import torch

    def convolved(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        pixels = left.t()[None, :, :, None]
        return torch.nn.functional.conv2d(pixels, right.t()[:, :, None, None])[0, :, :, 0].t()

    by_name: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]
    by_name = {"matmul": torch.mm, "conv": convolved}
    if operation not in by_name:
        raise ValueError(f"an operation is {' or '.join(by_name)}, not {operation!r}")
    return by_name[operation]


def measure_arithmetic(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], device: torch.device
) -> Arithmetic:
    """The arithmetic of ``multiply`` for float32 matrices of shape (512, 512).

    One operand is the identity, so that the result is the other operand as it was read. That number
    differs for each arithmetic, and is exact for any order of the sum. The probe does not
    distinguish float32 from pieces that keep all its bits, and does not cover other shapes. OTHER
    where the entries of the result differ or are none of those numbers. Waits for the device.
    """
    import torch

    identity = torch.eye(_SIZE, device=device)
    found = []
    for value in _VALUES:
        result = multiply(torch.full((_SIZE, _SIZE), value, device=device), identity)
        found.append(set(result.unique().tolist()))
    if any(len(values) != 1 for values in found):
        return Arithmetic.OTHER
    first, second = (values.pop() for values in found)
    return _READINGS.get((first, second), Arithmetic.OTHER)


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
        return f"the sides {tuple(right.data.shape)} must be multiples of {_MULTIPLE}"
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
