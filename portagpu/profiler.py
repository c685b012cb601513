"""``torch.cuda.profiler``: when the vendor's profiler that is attached to the process records."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from portagpu.functions import profiler_start as start
from portagpu.functions import profiler_stop as stop

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["profile", "start", "stop"]


@contextmanager
def profile() -> Iterator[None]:
    """Record inside the block."""
    start()
    try:
        yield
    finally:
        stop()
