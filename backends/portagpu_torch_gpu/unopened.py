"""What torch answers before it opens a GPU, under the names of ``Backend``.

torch.cuda counts devices, keeps a seed for later and makes events without opening a device, so that
a process may still fork, and choose its device by a variable. The names that are not here are
looked up in torch.cuda at each use.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from portagpu.devices.training import checked_autocast, checked_scaler, pop_range, push_range
from portagpu.facts.captures.marked_blocks import Annotation
from portagpu_torch_gpu.device import TorchRanges

autocast = partial(checked_autocast, "cuda", any_dtype=True)
GradScaler = partial(checked_scaler, "cuda")
range_pop = pop_range


def range_push(msg: str) -> int:
    """Open a range of the vendor's profiler; returns its depth, from 0."""
    return push_range(Annotation(msg, domain="", tool=TorchRanges))


def mark(msg: str) -> None:
    """Mark this moment for the vendor's profiler."""
    TorchRanges().mark(msg)


def __getattr__(name: str) -> Any:
    return getattr(torch.cuda, name)
