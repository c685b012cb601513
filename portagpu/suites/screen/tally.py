"""What was judged of one probe on one device so far, as ranks report it batch by batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.runs.results.advice import Separation

AGAIN: Final = " again"
"""What follows the name of a probe in the step of a rank that runs another's operands."""
BY_UNIT: Final = " by unit"
"""The same of a rank that asks on which unit a wrong product is computed."""
_MAX_READINGS: Final = 512
"""Of one probe on one device."""


@dataclass(slots=True)
class Tally:
    """Counts of one probe on one device, and why there are no more.

    Times are in seconds. ``batches`` are those of the campaign, without the one whose digest is
    published.
    """

    results: int = 0
    inputs: int = 0
    batches: int = 0
    seconds: float = 0.0
    judging_s: float = 0.0
    scale: int = 0
    """The largest that a batch had."""
    refused: str = ""
    """Why the device cannot run it."""
    stopped: str = ""
    """Why it ended early, where nothing was wrong."""
    broke: str = ""
    """The error that it raised."""
    digest: str = ""
    """Of the published seed, in hexadecimal digits."""
    failure: dict[str, Any] | None = None
    """The wrong result: batch, seed, scale, how many, where, and what repetitions gave."""
    separation: Separation | None = None
    """What computed wrong, where its peers were asked."""
    ended: dict[str, Any] | None = None
    """Fields of a result, where the rank died or hung in it."""
    unreadable: str = ""
    """Why clocks, power and temperature cannot be read."""
    readings: list[Mapping[str, float]] = field(default_factory=list)
    """Clocks, power and temperature next to batches."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Count what a rank reports of a batch."""
        self.results += record.get("results", 0)
        self.inputs += record.get("inputs", 0)
        self.batches += record.get("batches", 0)
        self.seconds += record.get("seconds", 0.0)
        self.judging_s += record.get("judging_s", 0.0)
        self.scale = max(self.scale, record.get("scale", 0))
        for key in ("refused", "stopped", "broke", "digest", "failure", "unreadable"):
            setattr(self, key, record.get(key) or getattr(self, key))
        if record.get("telemetry"):
            self.readings.append(record["telemetry"])
            if len(self.readings) > _MAX_READINGS:
                # a long screen keeps every second one, over all of its time
                del self.readings[::2]

    @property
    def open(self) -> bool:
        """Whether further batches may run."""
        reasons = (self.refused, self.stopped, self.broke, self.failure, self.ended)
        return not any(reasons)
