"""Whether the ranks of a world waited for a CPU so long that they were slow and nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from portagpu.base.patience import PATIENCE

if TYPE_CHECKING:
    from portagpu.base.patience import Starvation, Watch

NOTICED_S: Final = 0.1
"""A process that ends at once waits some milliseconds for a CPU, as each one does when it begins.
So long a wait is more than that: the scheduler's slices are a few milliseconds."""


def watch_world(limit_s: float = 0.0) -> Watch:
    """A limit on all ranks of this rank's world: one process forks them, and no others."""
    return PATIENCE.watch(limit_s, os.getppid())


def excuse(starved: Starvation | None) -> Starvation | None:
    """How much ranks waited for a CPU, where that was so long that they were slow; else None."""
    if starved is None or starved.waited_s < NOTICED_S or not starved.is_starved:
        return None
    return starved
