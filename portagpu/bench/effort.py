"""How long to measure: how many samples of which length, within which time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Effort(StrEnum):
    """``QUICK`` takes seconds for the whole suite, ``FULL`` minutes."""

    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Pace:
    """How one size of one measure is timed.

    Calls warm up for ``warmup_s``; a sample repeats the call until it lasts ``sample_s``; there are
    as many samples as fit ``point_s``, within ``least`` and ``most``.
    """

    warmup_s: float
    sample_s: float
    point_s: float
    least: int
    most: int
    timeout_s: float
    """The hard limit of one measure, the start of its ranks included."""


PACES: Final[dict[Effort, Pace]] = {
    Effort.QUICK: Pace(0.03, 0.001, 0.15, 5, 20, 60.0),
    Effort.FULL: Pace(0.2, 0.005, 0.8, 10, 50, 180.0),
}
