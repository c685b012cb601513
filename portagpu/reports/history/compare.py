"""Two sets of runs, measure by measure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from portagpu.reports.history.model import MeasureId, Series, judge, quotient
from portagpu.runs.judges.peers import DEVIATIONS, NORMAL, RELATIVE

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

ALIKE: Final = "alike"
UNJUDGED: Final = "not judged"


@dataclass(frozen=True, slots=True)
class Difference:
    """A measure in both sets: the medians ``a`` and ``b`` of its values, in ``what.unit``.

    ``ratio`` is b / a, None where no number holds it. ``spread`` is the standard deviation of the
    difference, estimated as 1.4826 MAD, or None where no side has one. ``beyond`` says whether the
    difference is more than 3.5 of it. ``word`` is WORSE, BETTER or DIFFERENT where it is also more
    than the least that counts; else ALIKE, or UNJUDGED without a spread.
    """

    what: MeasureId
    a: float
    b: float
    ratio: float | None
    spread: float | None
    beyond: bool | None
    word: str
    runs_a: int
    runs_b: int

    def to_json(self) -> dict[str, Any]:
        """An object for ``--json``."""
        numbers = {name: getattr(self, name) for name in _KEYS}
        return {**self.what.to_json(), **numbers}


_KEYS: Final = ("a", "b", "ratio", "spread", "beyond", "word", "runs_a", "runs_b")


@dataclass(frozen=True, slots=True)
class Comparison:
    """``differences`` in the order of the ids, and what only one set has measured."""

    differences: tuple[Difference, ...]
    only_a: tuple[MeasureId, ...]
    only_b: tuple[MeasureId, ...]

    def count(self, word: str) -> int:
        """How many measures have that word."""
        return sum(each.word == word for each in self.differences)


def compare(
    series: Sequence[Series], a: Collection[int], b: Collection[int], least: float = RELATIVE
) -> Comparison:
    """Compare the runs at the positions ``a`` of the list of runs with those at ``b``.

    The spread of a set is the larger one of two: the median of what its runs recorded, and the MAD
    of its values, where it has at least two. ``least`` is a fraction of a.
    """
    differences = []
    only: tuple[list[MeasureId], list[MeasureId]] = ([], [])
    last = max((int(each.runs.max()) for each in series), default=0)
    masks = [np.isin(np.arange(last + 1), list(side)) for side in (a, b)]
    for each in series:
        sides = [chosen[each.runs] for chosen in masks]
        if all(side.any() for side in sides):
            differences.append(_difference(each, sides[0], sides[1], least))
        else:
            for found, side in zip(only, sides, strict=True):
                if side.any():
                    found.append(each.what)
    return Comparison(tuple(differences), tuple(only[0]), tuple(only[1]))


def _difference(series: Series, in_a: Any, in_b: Any, least: float) -> Difference:
    middles = [float(np.median(series.values[side])) for side in (in_a, in_b)]
    spreads = [_spread(series.values[side], series.spreads[side]) for side in (in_a, in_b)]
    change = middles[1] - middles[0]
    known = [each for each in spreads if each is not None]
    spread = NORMAL * math.hypot(*known) if known else None
    beyond = None if spread is None else abs(change) > DEVIATIONS * spread
    word = UNJUDGED if beyond is None else ALIKE
    if beyond and abs(change) > least * abs(middles[0]):
        word = judge(change, series.what.unit)
    return Difference(
        series.what, middles[0], middles[1], quotient(middles[1], middles[0]), spread, beyond,
        word, int(in_a.sum()), int(in_b.sum()),
    )  # fmt: skip


def _spread(values: Any, recorded: Any) -> float | None:
    known = recorded[np.isfinite(recorded)]
    found = [float(np.median(known))] if len(known) else []
    if len(values) > 1:
        # stats.mad of an array, in a hundredth of the time that it takes for a list
        found.append(float(np.median(np.abs(values - np.median(values)))))
    return max(found, default=None)
