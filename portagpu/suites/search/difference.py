"""What a program shows of a device: a clause, and of which kind it is.

The kind says what else can be its cause. No load of the machine makes a value wrong. But a limit
of time may be met by ranks that wait for a CPU (:func:`excuse`), processes may be killed where
memory ends, and a counter of resident memory counts more than tensors.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from portagpu.base.patience import PATIENCE
from portagpu.base.text import error_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.base.patience import Starvation, Watch

NOTICED_S: Final = 0.1
"""A process that ends at once waits some milliseconds for a CPU, as each one does when it begins.
So long a wait is more than that: the scheduler's slices are a few milliseconds."""


class Kind(StrEnum):
    """What is different."""

    VALUE = "value"
    """A result, an order or an error; every difference that states no kind."""
    HANG = "hang"
    """Something did not end within its limit."""
    DEATH = "death"
    """The process ended."""
    COUNTER = "counter"
    """A count of bytes is out of its bounds."""


class Difference(str):
    """The clause of a difference, with its kind."""

    kind: Kind

    def __new__(cls, text: str, kind: Kind) -> Difference:
        made = super().__new__(cls, text)
        made.kind = kind
        return made

    @classmethod
    def from_json(cls, pair: Sequence[str]) -> Difference:
        """The difference that :func:`to_json` made a pair of."""
        text, kind = pair
        return cls(text, Kind(kind))


def kind_of(difference: str) -> Kind:
    """The kind of a difference; VALUE where it states none."""
    return difference.kind if isinstance(difference, Difference) else Kind.VALUE


def to_json(difference: str) -> list[str]:
    """The clause and its kind, as JSON keeps them."""
    return [str(difference), str(kind_of(difference))]


def raised(error: Exception) -> str:
    """The difference of a program that raised; an error may state a ``kind`` of its own."""
    usual = Kind.HANG if isinstance(error, TimeoutError) else Kind.VALUE
    return Difference(f"it raised {error_line(error)}", getattr(error, "kind", usual))


def watch_world(limit_s: float = 0.0) -> Watch:
    """A limit on all ranks of this rank's world: one process forks them, and no others."""
    return PATIENCE.watch(limit_s, os.getppid())


def excuse(starved: Starvation | None) -> Starvation | None:
    """How much ranks waited for a CPU, where that was so long that they were slow; else None."""
    if starved is None or starved.waited_s < NOTICED_S or not starved.is_starved:
        return None
    return starved
