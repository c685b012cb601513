"""Element-by-element arithmetic of integers: what vector units do."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.devices.precision import Support
from portagpu.train.exact.probe import Expected, Probe
from portagpu.train.exact.rule import SIGNIFICANT_BITS

if TYPE_CHECKING:
    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.probe import Work

_COUNT: Final = 1 << 16
_DTYPES: Final = ("float64", "float32", "bfloat16", "float16")


def lacks(dtype: str, gpu: Backend) -> str:
    """Why a device does not compute in a dtype; empty where it does."""
    import torch

    support = gpu.precision.table.get(getattr(torch, dtype), Support.NONE)
    if support in (Support.NATIVE, Support.EMULATED):
        return ""
    return f"the {gpu.name} backend does not compute in {dtype}"


def _add(dtype: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    import torch

    kind = getattr(torch, dtype)
    limit = (1 << min(SIGNIFICANT_BITS[dtype] - 1, 30)) - 1
    count = _COUNT * scale
    a, b = (draws.integers(name, (count,), -limit, limit) for name in "ab")
    left, right = a.to(kind), b.to(kind)
    return Expected(lambda: left + right, (a + b).to(kind), 2 * count)


PROBES: Final = tuple(
    Probe(f"vectors/{dtype}[add]", dtype, partial(_add, dtype), partial(lacks, dtype))
    for dtype in _DTYPES
)
