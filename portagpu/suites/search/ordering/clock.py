"""What elapsed_time may say: bounds from the host's clock, which brackets every event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from portagpu.suites.search.ordering.kernels import Kernels
    from portagpu.suites.search.ordering.model import Model

SLACK_MS: Final = 1.0
"""How far two clocks may differ beside their rates."""
RATE: Final = 1e-3
"""Crystals of two clocks differ by 100 parts per million at most; ten times that is allowed."""
BACK_MS: Final = 0.01
"""How far below zero an ordered pair may be: ``streams/elapsed-time-never-negative``."""


@dataclass(slots=True)
class Clock:
    """When the events were recorded and known to have happened, in seconds of the host.

    An event happens after the host began to record it, and before the host knew that it had.
    """

    kernels: Kernels
    model: Model
    began: dict[Any, float] = field(default_factory=dict)
    known: dict[Any, float] = field(default_factory=dict)

    def recording(self, event: Any) -> None:
        """The event is recorded next."""
        self.began[event] = self.kernels.now()
        self.known.pop(event, None)

    def looked(self) -> None:
        """The host waited or asked: take the time for the events that it now knows of."""
        now = self.kernels.now()
        for event in self.began:
            if event not in self.known and self.model.known("event", event):
                self.known[event] = now

    def wrong_time(self, shown: str, first: Any, second: Any, value: Any) -> str:
        """What is wrong with the milliseconds between two events that the host knows of."""
        if not isinstance(value, float):
            return f"{shown} is a {type(value).__name__}"
        low = (self.began[second] - self.known[first]) * 1e3
        high = (self.known[second] - self.began[first]) * 1e3
        slack = SLACK_MS + RATE * max(abs(low), abs(high))
        if not low - slack <= value <= high + slack:
            return f"{shown} is {value:.6g} ms, and the host saw {low:.6g} to {high:.6g} ms"
        ordered = not self.model.events[first] & ~self.model.events[second]
        if ordered and value < -BACK_MS:
            return f"{shown}, which comes later, is {value:.6g} ms"
        return ""
