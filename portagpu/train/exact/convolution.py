"""Convolutions of integers: each is a matrix product of patches and weights, judged as one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.train.exact.probe import Probe
from portagpu.train.exact.products import Operands, Rounded, Rows, exact_arithmetic
from portagpu.train.exact.rule import ACCUMULATOR_BITS, check_subset, subset_bound
from portagpu.train.exact.vectors import lacks

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.probe import Work

_IMAGES: Final = 2
"""Times ``scale``."""
_CHANNELS: Final = (16, 24)
"""In and out."""
_EDGE: Final = 20
_KERNEL: Final = 3
_LARGEST: Final = {"float32": 255, "bfloat16": 255, "float16": 15}
"""The largest integer of both operands: 144 products of two of float16 are below 65,504."""


def _make(dtype: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    import torch
    from torch.nn.functional import conv2d

    (into, out), largest = _CHANNELS, _LARGEST[dtype]
    x = draws.integers("x", (_IMAGES * scale, into, _EDGE, _EDGE), -largest, largest)
    weight = draws.integers("weight", (out, into, _KERNEL, _KERNEL), -largest, largest)
    patches, weights = _patches(x), weight.flatten(1).t()
    check_subset(subset_bound(patches, weights), ACCUMULATOR_BITS[dtype], f"a sum in {dtype}")
    units = (torch.ones((length, 1), device=x.device) for length in (len(patches), out))
    operands = Operands(patches, weights, next(units), next(units).t(), dtype)

    def compute(kind: torch.dtype) -> Callable[[], torch.Tensor]:
        left, right = (each.to(torch.float32).to(kind) for each in (x, weight))

        def convolved() -> torch.Tensor:
            with exact_arithmetic(gpu, dtype):
                return conv2d(left, right).permute(0, 2, 3, 1).reshape(-1, out)

        return convolved

    if dtype == "float32":
        return Rows(compute(torch.float32), operands, draws)
    wide = Rows(compute(torch.float32), operands, draws)
    return Rounded(compute(getattr(torch, dtype)), wide)


def _patches(x: torch.Tensor) -> torch.Tensor:
    """What each output sums over; shape (images rows columns, channels kernel kernel)."""
    import torch

    count = _EDGE - _KERNEL + 1
    shifted = [
        x[:, :, dy : dy + count, dx : dx + count] for dy in range(_KERNEL) for dx in range(_KERNEL)
    ]
    return torch.stack(shifted, 2).permute(0, 3, 4, 1, 2).reshape(-1, x.shape[1] * _KERNEL**2)


PROBES: Final = tuple(
    Probe(f"convolution/{dtype}[3x3]", dtype, partial(_make, dtype), partial(lacks, dtype))
    for dtype in _LARGEST
)
