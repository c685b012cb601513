"""The options of a monitor, and their bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from portagpu.checks.monitor.tracker import AFTER_S, GRACE_S

MIN_INTERVAL_S: Final = 0.1
"""The shortest interval: devices average their own values over as much or more."""
MAX_INTERVAL_S: Final = 86400.0
"""The longest interval, a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorOptions:
    """What to do. The monitor ends after ``count`` looks or ``duration_s``, or never."""

    interval_s: float = 1.0
    count: int | None = None
    duration_s: float | None = None
    stall_after_s: float = AFTER_S

    @property
    def stale_s(self) -> float:
        """The age from which a device's last values are no longer shown."""
        return max(GRACE_S, 3 * self.interval_s)
