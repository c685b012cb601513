"""Compare devices or ranks that should be alike with each other, without reference values."""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.base.stats import mad
from portagpu.runs.results.expectations import within

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

MIN_PEERS: Final = 4
"""With three values the median absolute deviation follows any pair that happens to agree."""
NORMAL: Final = 1.4826
"""The MAD times this estimates the standard deviation of a normal distribution: 1 / 0.6745."""
DEVIATIONS: Final = 3.5
"""Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993): the modified z-score of 3.5."""
RELATIVE: Final = 0.05
"""Smaller differences are ignored, however well the others agree."""
FALSE_ALARMS: Final = 0.05
"""The chance that any of many comparisons blames a value that normal noise made."""
_EFFICIENCY: Final = 0.37
"""Of the MAD as an estimate of the standard deviation of normal values."""


def deviations_for(comparisons: int, peers: int | None = None) -> float:
    """How many standard deviations make an outlier where so many values are compared.

    With 3.5 one normal value in 2,149 is an outlier, which is hundreds in a fleet. So it is the
    limit that the largest of all values exceeds with a chance of ``FALSE_ALARMS`` (Bonferroni), and
    never less than ``DEVIATIONS``: 4.4 for 5,000 values, 5.5 for a million.

    The MAD of a few ``peers`` is itself uncertain, as the standard deviation of 0.37 times as many
    would be (Rousseeuw and Croux, 1993). The limit is then that of Student's t, by the first term
    of its expansion (Abramowitz and Stegun, 26.7.5): 6.2 for 40 peers in 10,000 comparisons.
    """
    if comparisons < 1:
        return DEVIATIONS
    normal = -NormalDist().inv_cdf(FALSE_ALARMS / 2 / comparisons)
    freedom = math.inf if peers is None else _EFFICIENCY * max(peers, MIN_PEERS)
    return max(DEVIATIONS, normal + (normal**3 + normal) / (4 * freedom))


class Majority(NamedTuple):
    """The value that most peers have, and how many ``votes`` it has.

    Where it is not ``decided``, there is no outlier: any of those that differ may be wrong.
    """

    usual: Any
    votes: int
    decided: bool


def majority(
    values: Sequence[Hashable], same: Callable[[Any, Any], bool] = operator.eq
) -> Majority:
    """The most frequent of one or more ``values``; ``same`` compares two of them.

    It is decided by more than half of at least three values.
    """
    counts = Counter(values)
    alike = counts
    if same is not operator.eq:
        alike = Counter(
            {
                value: sum(count for other, count in counts.items() if same(value, other))
                for value in counts
            }
        )
    usual = max(alike, key=lambda value: alike[value])
    return Majority(usual, alike[usual], len(values) > 2 and 2 * alike[usual] > len(values))


@dataclass(frozen=True, slots=True)
class Outlier:
    """A value unlike its peers; ``relative`` is its signed distance from their median."""

    name: str
    value: float
    relative: float


@dataclass(frozen=True, slots=True)
class Peers:
    """The comparison; ``median`` and ``mad`` are in the unit of the values.

    ``judged`` is False where there were too few values to compare; ``reason`` then says so.
    """

    median: float | None
    mad: float | None
    outliers: tuple[Outlier, ...]
    judged: bool
    reason: str = ""

    @property
    def sentence(self) -> str:
        """The outliers, worst first, in one sentence; the reason where nothing was judged."""
        if not self.judged or not self.outliers:
            return self.reason
        return ", ".join(self._outlier_sentence(each) for each in self.outliers)

    def _outlier_sentence(self, outlier: Outlier) -> str:
        if not math.isfinite(outlier.value):
            return f"{outlier.name} gave no number"
        side = "below" if outlier.relative < 0 else "above"
        share = f"{abs(outlier.relative):.0%}" if math.isfinite(outlier.relative) else "far"
        return f"{outlier.name} is {share} {side} the median of its peers"


def compare_peers(
    values: Mapping[str, float],
    *,
    deviations: float = DEVIATIONS,
    relative: float = RELATIVE,
) -> Peers:
    """Which of ``values`` (by device or rank) differ from the median of all, worst first.

    An outlier is both more than ``deviations`` standard deviations away, estimated as 1.4826 MAD,
    and more than ``relative`` of the median. Where more than half of the values are equal the MAD
    is 0 and the second condition decides alone. A value that is not finite is an outlier. Fewer
    than four values are not judged.
    """
    numbers = [value for value in values.values() if math.isfinite(value)]
    if len(values) < MIN_PEERS:
        reason = f"too few values to compare: {len(values)}; {MIN_PEERS} are needed"
        return Peers(median(numbers) if numbers else None, None, (), False, reason)
    if len(numbers) < MIN_PEERS:
        return Peers(median(numbers) if numbers else None, None, _without_number(values), True)
    middle, spread = median(numbers), mad(numbers)
    far = [
        Outlier(name, value, _relative_distance(value - middle, middle))
        for name, value in values.items()
        if math.isfinite(value)
        and abs(value - middle) > deviations * NORMAL * spread
        and abs(value - middle) > relative * abs(middle)
    ]
    far.sort(key=lambda each: abs(each.relative), reverse=True)
    return Peers(middle, spread, (*_without_number(values), *far), True)


def peer_expectation(
    compared: Peers, unit: str, relative: float = RELATIVE
) -> dict[str, Any] | None:
    """The median of the peers as an expectation; None where they were not judged, or it is none."""
    middle = compared.median
    if not compared.judged or middle is None or middle < 0 or not math.isfinite(middle):
        return None
    return within(middle, relative, "the median of its peers", unit)


def _without_number(values: Mapping[str, float]) -> tuple[Outlier, ...]:
    lost = [(name, value) for name, value in values.items() if not math.isfinite(value)]
    return tuple(Outlier(name, value, math.nan) for name, value in lost)


def _relative_distance(distance: float, middle: float) -> float:
    return distance / abs(middle) if middle else math.copysign(math.inf, distance)
