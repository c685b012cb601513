"""How a measure is distributed over a fleet: a histogram with its median and spread."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from portagpu.reports.fleet.measures import Table

BINS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A measure of one target: ``n`` values in ``unit`` from ``low`` to ``high``.

    ``counts`` are those of equally wide bins between the two. ``outliers`` names what is unlike its
    peers, the farthest first, and ``far`` has those of their values that are numbers; ``lost`` of
    the values are none.
    """

    hardware: str
    measure: str
    unit: str
    n: int
    lost: int
    median: float
    mad: float
    low: float
    high: float
    counts: tuple[int, ...]
    outliers: tuple[str, ...]
    far: tuple[float, ...]


def distributions_of(tables: Iterable[Table]) -> Iterator[Distribution]:
    """The distribution of each measure whose peers were judged."""
    for table in tables:
        compared = table.compared
        numbers = [value for value in table.values.values() if math.isfinite(value)]
        if compared is None or compared.median is None or compared.mad is None:
            continue
        low, high = min(numbers), max(numbers)
        counts = [0] * BINS
        step = (high - low) / BINS
        for value in numbers:
            counts[min(int((value - low) / step), BINS - 1) if step else 0] += 1
        yield Distribution(
            hardware=table.hardware,
            measure=table.name,
            unit=table.unit or "1",
            n=len(numbers),
            lost=len(table.values) - len(numbers),
            median=compared.median,
            mad=compared.mad,
            low=low,
            high=high,
            counts=tuple(counts),
            outliers=tuple(each.name for each in compared.outliers),
            far=tuple(each.value for each in compared.outliers if math.isfinite(each.value)),
        )
