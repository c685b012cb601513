"""The support of a dtype on a device: by its facts, and by running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.devices.precision.formats import FLAVOURS, FP8_NAMES
from portagpu.devices.precision.levels import Support

if TYPE_CHECKING:
    import torch

    from portagpu.devices.precision.model import Precision

_RUNS: Final = (Support.NATIVE, Support.EMULATED)
_REFUSED: Final = (RuntimeError, TypeError, ValueError, NotImplementedError)
"""torch's exceptions for a dtype that an operation does not support: ``TORCH_CHECK_VALUE`` in
aten/src/ATen/native/cuda/ScaledBlas.cpp is a ValueError."""


@dataclass(frozen=True, slots=True)
class DtypeSupport:
    """The stated support of a dtype on a device, and the result of a probe.

    Running tells whether there are tensors and whether there is arithmetic. It does not tell
    instructions of its own from emulation: where arithmetic ran as stated, ``found`` is ``stated``.
    """

    dtype: torch.dtype
    stated: Support
    found: Support | None = None
    """None without a probe."""
    reason: str = ""
    """torch's message where it refused."""

    @property
    def disagreement(self) -> str:
        """One sentence where the probe differs from the stated support; empty where it does not.

        A device on which it was not run does not disagree.
        """
        if self.found in (None, self.stated):
            return ""
        said = f" ({self.reason})" if self.reason else ""
        return f"{self.dtype} is stated as {self.stated} and ran as {self.found}{said}"


def dtype_support(
    precision: Precision, dtype: torch.dtype, device: torch.device, *, probe: bool = False
) -> DtypeSupport:
    """The support of ``dtype`` on ``device``; ``probe`` runs it there and waits for the result."""
    stated = precision.support(dtype)
    if not probe:
        return DtypeSupport(dtype, stated)
    reason = ""
    found = Support.NONE
    try:
        _store(dtype, device)
        found = Support.STORAGE
        _compute(dtype, device, paired=stated is Support.NATIVE)
        found = stated if stated in _RUNS else Support.EMULATED
    except _REFUSED as error:
        reason = str(error).partition("\n")[0]
    return DtypeSupport(dtype, stated, found, reason)


def _store(dtype: torch.dtype, device: torch.device) -> None:
    """Copy ones to the device and back; raise if they changed."""
    import torch

    ones = torch.ones(16, 16, device=device).to(dtype)
    if not bool((ones.real.to(torch.float32) == 1).all()):
        raise RuntimeError("ones came back as something else")


def _compute(dtype: torch.dtype, device: torch.device, *, paired: bool) -> None:
    """A product of ones: scaled for fp8, of matrices for floats, else element by element.

    ``paired``, an fp8 dtype meets the e4m3 of its flavour: cuBLASLt multiplies no two matrices of
    e5m2 (ScaledBlas.cpp, "Multiplication of two Float8_e5m2 matrices is not supported").
    """
    import torch

    ones = torch.ones(16, 16, device=device).to(dtype)
    name = str(dtype).removeprefix("torch.")
    if name in FP8_NAMES:
        one = torch.ones((), device=device)
        e4m3 = next(pair[0] for pair in FLAVOURS.values() if name in pair)
        other = torch.ones(16, 16, device=device).to(getattr(torch, e4m3 if paired else name)).t()
        result = torch._scaled_mm(ones, other, one, one, out_dtype=torch.bfloat16)
        expected = 16
    elif dtype.is_floating_point:
        result, expected = ones @ ones, 16
    else:
        result, expected = ones * ones, 1
    if not bool((result.real.to(torch.float32) == expected).all()):
        raise RuntimeError(f"a product of ones is not {expected}")
