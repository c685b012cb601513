"""What an operator does about a finding: none, monitor, reset, isolate or replace."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Action(StrEnum):
    """What to do, in order of gravity: ``Action.MONITOR < Action.RESET``, and ``max`` is the worst.

    The order is how much is taken out of use, and not how bad the fault is.
    """

    NONE = "none"
    MONITOR = "monitor"
    RESET = "reset"
    ISOLATE = "isolate"
    REPLACE = "replace"

    @property
    def means(self) -> str:
        """What an operator does, in one sentence."""
        return _MEANINGS[self]

    @property
    def gravity(self) -> int:
        """0 for none, 4 for replace."""
        return _ORDER[self]

    def __lt__(self, other: str) -> bool:
        return self.gravity < Action(other).gravity

    def __le__(self, other: str) -> bool:
        return self.gravity <= Action(other).gravity

    def __gt__(self, other: str) -> bool:
        return self.gravity > Action(other).gravity

    def __ge__(self, other: str) -> bool:
        return self.gravity >= Action(other).gravity


_ORDER: Final = {action: place for place, action in enumerate(Action)}
_MEANINGS: Final = {
    Action.NONE: "Nothing: the device may be used, and nothing is to be watched.",
    Action.MONITOR: "Use it, and watch whether the finding returns or grows.",
    Action.RESET: "Reset the device, or load its driver again, as soon as no job uses it.",
    Action.ISOLATE: "Start no job on the node until somebody has mended it: restart it, reseat a "
    "part, set it as it should be.",
    Action.REPLACE: "Start no job on the node, and have the part replaced.",
}
