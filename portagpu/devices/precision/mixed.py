"""Precision settings of a training loop for a device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from portagpu.base.errors import Unsupported
from portagpu.devices.precision.levels import Support

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from portagpu.devices.precision.model import Precision


@dataclass(frozen=True, slots=True)
class Deterministic:
    """Settings with which the same program on the same device repeats its results exactly.

    ``env`` has to be set before the process starts: the vendor's libraries read it once. It is
    returned and never written: ``{**os.environ, **env}`` is for a child process or a launcher.
    """

    env: Mapping[str, str]

    def missing(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables of ``env`` that are missing or different in ``environ`` or here."""
        have = os.environ if environ is None else environ
        return {name: value for name, value in self.env.items() if have.get(name) != value}

    def enable(self) -> None:
        """Set torch's own switches in this process; what has no such implementation then raises.

        They are torch's deterministic algorithms, and no search for the fastest convolution.
        Raises RuntimeError, and sets nothing, where variables are missing.
        """
        import torch

        missing = self.missing()
        if missing:
            wanted = " ".join(f"{name}={value}" for name, value in missing.items())
            raise RuntimeError(f"results would not repeat: start the process with {wanted}")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """The choices of a training loop on one device."""

    autocast: torch.dtype | None
    """The dtype for ``autocast``; None where float32 is the right choice and autocast stays off."""
    scaler: bool
    """Whether gradients need a GradScaler: only in float16, whose exponent has 5 bits."""
    reduce_dtype: torch.dtype
    """The dtype in which ranks sum gradients: float32, because a sum of n bfloat16 numbers loses
    log2(n) of its 8 bits, and no library reduces the FNUZ formats."""
    alignment: int | None
    """The multiple of elements in dimensions of weights and batches that fills the matrix unit's
    tiles; None where unknown."""
    deterministic: Deterministic


def mixed_precision(precision: Precision, dtype: torch.dtype | None = None) -> MixedPrecision:
    """The settings of a training loop on a device with this precision.

    ``dtype`` is bfloat16 or float16 for autocast, or float32 for none. None chooses the first of
    bfloat16, float16 that the device has instructions for, else float32: emulation is slower.
    Raises Unsupported for a dtype that the device does not compute in, and ValueError for one
    that autocast does not take.
    """
    import torch

    halves = (torch.bfloat16, torch.float16)
    if dtype is None:
        native = (each for each in halves if precision.support(each) is Support.NATIVE)
        dtype = next(native, torch.float32)
    if dtype not in (*halves, torch.float32):
        raise ValueError(f"autocast takes bfloat16 or float16, and float32 for none; not {dtype}")
    support = precision.support(dtype)
    if support not in (Support.NATIVE, Support.EMULATED):
        raise Unsupported(f"this device does not compute in {dtype}: its support is {support}")
    return MixedPrecision(
        autocast=None if dtype is torch.float32 else dtype,
        scaler=dtype is torch.float16,
        reduce_dtype=torch.float32,
        alignment=precision.alignment.get(dtype),
        deterministic=Deterministic(precision.deterministic_env),
    )
