"""Finds a job that has stalled: the device is busy, yet draws little more than when idle.

Utilisation counts the time in which at least one kernel runs, and a kernel that only waits counts
too: a collective whose other ranks never arrive spins for ever. Such a device shows 100 % and close
to idle power. Published readings of stuck jobs are in docs/monitor.md.

The rule. A look is suspicious if utilisation is at least 90 % and power is at most

- idle + 15 % of (limit - idle), where idle is the lowest power that this monitor has seen at a
  utilisation of at most 5 %, but at most 40 % of the limit: power is an average, and a short pause
  of a job shows what it drew before, or
- 25 % of the limit, where the device was not seen idle.

The limit is the device's own present power limit, else its target's. A stall begins once every look
was suspicious for 120 s, and ends once none was for 10 s. What is not known changes nothing; after
30 s without known values the time starts anew. The numbers are this project's choice, over the
published readings; a device without power, limit or utilisation is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

AFTER_S: Final = 120.0
_ENDS_AFTER_S: Final = 10.0
_FORGETS_AFTER_S: Final = 30.0
_BUSY_PERCENT: Final = 90.0
_IDLE_PERCENT: Final = 5.0
_ABOVE_IDLE: Final = 0.15
_OF_LIMIT: Final = 0.25
_MOST_OF_LIMIT: Final = 0.4


@dataclass(slots=True)
class StallWatch:
    """The rule over the samples of one device, in their order."""

    after_s: float = AFTER_S
    stalled: bool = False
    idle_w: float | None = None
    """The lowest power that was seen while the device was idle."""
    _changing_since: float | None = None
    _known_at: float | None = None

    def look(
        self,
        at_s: float,
        utilization_percent: float | None,
        power_w: float | None,
        limit_w: float | None,
    ) -> bool | None:
        """Whether the device is stalled at ``at_s``; None if that cannot be judged."""
        if utilization_percent is None or power_w is None or limit_w is None or limit_w <= 0:
            return True if self.stalled and self._is_recent(at_s) else None
        if not self._is_recent(at_s):
            self.stalled, self._changing_since = False, None
        self._known_at = at_s
        if utilization_percent <= _IDLE_PERCENT:
            self.idle_w = power_w if self.idle_w is None else min(self.idle_w, power_w)
        busy = utilization_percent >= _BUSY_PERCENT
        self._advance(at_s, suspicious=busy and power_w <= self.threshold_w(limit_w))
        return self.stalled

    def threshold_w(self, limit_w: float) -> float:
        """The power up to which a busy device with that limit is suspicious."""
        if self.idle_w is None or self.idle_w >= limit_w:
            return _OF_LIMIT * limit_w
        return min(self.idle_w + _ABOVE_IDLE * (limit_w - self.idle_w), _MOST_OF_LIMIT * limit_w)

    def _is_recent(self, at_s: float) -> bool:
        return self._known_at is not None and at_s - self._known_at <= _FORGETS_AFTER_S

    def _advance(self, at_s: float, *, suspicious: bool) -> None:
        if suspicious is self.stalled:
            self._changing_since = None
            return
        if self._changing_since is None:
            self._changing_since = at_s
        if at_s - self._changing_since >= (_ENDS_AFTER_S if self.stalled else self.after_s):
            self.stalled, self._changing_since = suspicious, None
