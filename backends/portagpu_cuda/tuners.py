"""cuDNN's search for the fastest convolution. No GPU has run this yet.

torch, "CUDA semantics" and ``torch.backends.cudnn.benchmark``: what it found is kept in the process
and in no file. TunableOp is not here: it tunes AMD's libraries only (torch/cuda/tunable.py).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from portagpu.devices.plugin_parts import Tuner, TunerState

if TYPE_CHECKING:
    from collections.abc import Iterator


def _state() -> TunerState:
    import torch

    return TunerState(torch.backends.cudnn.benchmark, None, None, remark="kept in the process only")


@contextmanager
def _switched(on: bool) -> Iterator[None]:
    import torch

    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = on
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


TUNERS: Final = (Tuner("cudnn-benchmark", "convolution", _state, _switched),)
