"""One switch for the arithmetic of float32 products, and a probe of the actual arithmetic.

torch has two interfaces for it. The older, ``set_float32_matmul_precision`` and ``allow_tf32``,
means another thing on each device: "medium" is bfloat16 on a CPU and TF32 on CUDA, and neither
reaches convolutions on a CPU. The newer, ``torch.backends.*.fp32_precision``, makes the older
raise once they disagree (torch 2.9 to 2.13). Defaults differ too: convolutions are TF32 with cuDNN
and float32 with MIOpen.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.devices.precision.levels import Arithmetic

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

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
"""Two numbers that tell the arithmetics apart, since a product with 1 rounds nothing else."""
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
