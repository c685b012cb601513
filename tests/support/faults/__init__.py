"""The catalogue of faults by which the search is measured: which call, where, and which way wrong.

Each module here is one area's: ``faults()`` combines tables, so that nobody has chosen what is
found. ``python -m tests.support.fault_score`` draws some and counts which the programs find.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

AREAS = (
    "collectives",
    "generators",
    "ordering",
    "memory",
    "ranges",
    "numbers",
    "autocast",
    "scaler",
    "operators",
)
"""The areas with faults, each in the module of that name."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the CPU backend or of torch; ``apply()`` is a block in which it is there.

    ``name`` is "call: region: what goes wrong". One of ``words``, where there are any, stands in
    the sentence of a failure that names the fault. ``device`` makes the device to search on, where
    that is not the CPU.
    """

    area: str
    name: str
    apply: Callable[[], AbstractContextManager[Any]]
    words: tuple[str, ...] = ()
    device: Callable[[], Any] | None = None


@contextlib.contextmanager
def replaced(place: Any, name: str, change: Callable[..., Any]) -> Iterator[None]:
    """``place.name`` is ``change(good, ...)`` inside the block."""
    good = getattr(place, name)

    def changed(*given: Any, **named: Any) -> Any:
        return change(good, *given, **named)

    setattr(place, name, changed)
    try:
        yield
    finally:
        setattr(place, name, good)


def faults_of(area: str) -> list[Fault]:
    """All faults of an area, or of those areas whose names begin with it: "operators-nn"."""
    found: list[Fault] = import_module(f"tests.support.faults.{area.partition('-')[0]}").faults()
    return found


def drawn(area: str, seed: int, count: int) -> list[Fault]:
    """``count`` different faults of an area by that seed, or all where there are fewer."""
    every = faults_of(area)
    chosen = random.Random(f"{seed} {area}")  # noqa: S311 - a choice, no secret
    return chosen.sample(every, min(count, len(every)))
