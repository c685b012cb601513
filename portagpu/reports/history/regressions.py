"""Where a series of values changed its level, with a stated rate of false alarms.

Runs whose level never changed could have come in any order. For each place to cut a series, the
ranks of the values before it are summed. By chance that sum has the mean k (n + 1) / 2 and the
variance k (n - k) / (n (n - 1)) * S over n values, k of them before the cut, where S is the sum of
the squared deviations of all ranks from their mean: Wilcoxon's rank sum test (Biometrics Bulletin
1, 1945) with the exact variance of sampling without replacement, which holds for ties too. The
largest standardised sum over all cuts is the statistic, as in Pettitt, "A non-parametric approach
to the change-point problem" (Applied Statistics 28, 1979), but standardised at each cut, so that a
change near the end, which matters most, is not missed. Its p-value is that of a normal distribution
times the number of cuts, after Bonferroni.

Over many series, Benjamini and Hochberg (Journal of the Royal Statistical Society B 57, 1995)
decide: at most ``rate`` of the calls over series that never changed find anything, and at most
``rate`` of what is found is false on average. The change is placed where the deviations from the
medians of both sides have the smallest sum. Both parts of a series that changed are searched in
the same way, until nothing is found.

The values before and after a change must be independent of their neighbours: a machine that drifts
has more false alarms than stated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from portagpu.reports.history.model import WORSE, changed_versions, judge, quotient
from portagpu.runs.judges.peers import MIN_PEERS, RELATIVE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.reports.history.model import Machine, MeasureId, Series, StoredRun


RATE: Final = 0.05
MIN_LEVEL_RUNS: Final = MIN_PEERS
"""How many values there must be on each side of a change."""


class Change(NamedTuple):
    """A change of series number ``series`` before its value number ``at``.

    ``begin`` and ``end`` bound the part of the series that it divides; ``p`` is the probability of
    such a change by chance, for this part alone.
    """

    series: int
    begin: int
    at: int
    end: int
    p: float


def change_points(series: Sequence[Any], rate: float = RATE) -> list[Change]:
    """Every change of level, by series and place; each series is an array of finite values."""
    found: list[Change] = []
    parts = [(index, 0, len(values)) for index, values in enumerate(series)]
    while parts:
        changes = _most_likely(series, parts)
        kept = _benjamini_hochberg([each.p for each in changes], rate)
        chosen = [
            each._replace(at=each.begin + _place(series[each.series], each))
            for each, keep in zip(changes, kept, strict=True)
            if keep
        ]
        found += chosen
        parts = [
            part
            for each in chosen
            for part in ((each.series, each.begin, each.at), (each.series, each.at, each.end))
        ]
    return sorted(found, key=lambda each: (each.series, each.at))


def best_cuts(values: Any) -> tuple[Any, Any]:
    """For each row of a matrix: where to cut it, and the standardised rank sum there.

    A row must have at least ``2 * MIN_LEVEL_RUNS`` values.
    """
    count = values.shape[1]
    scores = _ranks(values) - (count + 1) / 2
    squares = (scores**2).sum(axis=1, keepdims=True)
    before = np.arange(MIN_LEVEL_RUNS, count - MIN_LEVEL_RUNS + 1)
    sums = np.abs(np.cumsum(scores, axis=1)[:, before - 1])
    variance = before * (count - before) / (count * (count - 1)) * squares
    # 1/2, as a sum of ranks is a whole number: the continuity correction
    above = np.maximum(sums - 0.5, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        standard = np.where(variance > 0, above / np.sqrt(variance), 0.0)
    best = standard.argmax(axis=1)
    return before[best], standard[np.arange(len(values)), best]


def _most_likely(series: Sequence[Any], parts: Sequence[tuple[int, int, int]]) -> list[Change]:
    """The most likely change of each part that is long enough; parts of one length together."""
    by_length: dict[int, list[tuple[int, int, int]]] = {}
    for part in parts:
        by_length.setdefault(part[2] - part[1], []).append(part)
    found = []
    for length, same_length in by_length.items():
        if length < 2 * MIN_LEVEL_RUNS:
            continue
        matrix = np.stack([series[index][begin:end] for index, begin, end in same_length])
        cuts, standard = best_cuts(matrix)
        number = length - 2 * MIN_LEVEL_RUNS + 1
        for (index, begin, end), cut, z in zip(
            same_length, cuts.tolist(), standard.tolist(), strict=True
        ):
            p = min(1.0, number * math.erfc(z / math.sqrt(2)))
            found.append(Change(index, begin, begin + cut, end, p))
    return found


def _place(values: Any, change: Change) -> int:
    """Where the deviations from the medians before and after a change have the smallest sum.

    Ranks say best whether a level changed, and values where: of two levels far apart, ranks see
    only that they differ.
    """
    part = values[change.begin : change.end]
    cut = change.at - change.begin
    low, high = np.median(part[:cut]), np.median(part[cut:])
    cost = np.cumsum(np.abs(part - low) - np.abs(part - high))
    return MIN_LEVEL_RUNS + int(cost[MIN_LEVEL_RUNS - 1 : len(part) - MIN_LEVEL_RUNS].argmin())


def _ranks(values: Any) -> Any:
    """The ranks of each row from 1, equal values with the mean of theirs."""
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    place = np.arange(values.shape[1])
    new = np.ones(values.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.maximum.accumulate(np.where(new, place, 0), axis=1)
    last_one = np.ones(values.shape, dtype=bool)
    last_one[:, :-1] = new[:, 1:]
    last = np.where(last_one, place, values.shape[1])
    last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, (first + last) / 2 + 1, axis=1)
    return ranks


def _benjamini_hochberg(p: Sequence[float], rate: float) -> list[bool]:
    """Which hypotheses are rejected at that false discovery rate."""
    limits = [rate * (place + 1) / len(p) for place in range(len(p))]
    below = [value for value, limit in zip(sorted(p), limits, strict=True) if value <= limit]
    return [bool(below) and value <= below[-1] for value in p]


@dataclass(frozen=True, slots=True)
class LevelChange:
    """The median of a measure changed from ``before`` to ``after``, both in ``what.unit``.

    ``last`` is the last run of the old level and ``first`` the first of the new one; ``versions``
    is what differs between the two. ``p`` is the probability by chance in this series alone.
    ``word`` is WORSE, BETTER or DIFFERENT.
    """

    machine: Machine
    what: MeasureId
    before: float
    after: float
    last: StoredRun
    first: StoredRun
    versions: Mapping[str, tuple[str, str]]
    p: float
    word: str

    @property
    def ratio(self) -> float | None:
        """after / before; None where no number holds it."""
        return quotient(self.after, self.before)

    def to_json(self) -> dict[str, Any]:
        """An object for ``--json``."""
        return {
            "target": self.machine.target,
            "host": self.machine.host,
            **self.what.to_json(),
            "before": self.before,
            "after": self.after,
            "ratio": self.ratio,
            "p": self.p,
            "word": self.word,
            "last_run": self.last.id,
            "first_run": self.first.id,
            "started": self.first.started,
            "versions": {name: list(pair) for name, pair in self.versions.items()},
        }


@dataclass(frozen=True, slots=True)
class LevelChanges:
    """What changed, of ``searched`` series; ``short`` ones had too few runs to be searched."""

    changes: tuple[LevelChange, ...]
    searched: int
    short: int

    @property
    def worse(self) -> tuple[LevelChange, ...]:
        """The regressions."""
        return tuple(each for each in self.changes if each.word == WORSE)


def level_changes(
    series: Sequence[Series],
    runs: Sequence[StoredRun],
    *,
    rate: float = RATE,
    least: float = RELATIVE,
) -> LevelChanges:
    """Every change of at least ``least`` of the level, with a rate of false alarms of ``rate``.

    ``runs`` are those that the positions of the series count, the oldest first. Each machine is a
    series of its own.
    """
    numbers: dict[Machine, int] = {}
    of_run = np.array([numbers.setdefault(run.machine, len(numbers)) for run in runs])
    whole = [part for each in series for part in _by_machine(each, of_run)]
    long = [part for part in whole if len(part[1]) >= 2 * MIN_LEVEL_RUNS]
    found = []
    for change in change_points([values for _, _, values in long], rate):
        what, at, values = long[change.series]
        before = float(np.median(values[change.begin : change.at]))
        after = float(np.median(values[change.at : change.end]))
        by = after - before
        if not by or abs(by) < least * abs(before):
            continue
        last, first = runs[at[change.at - 1]], runs[at[change.at]]
        found.append(
            LevelChange(
                machine=first.machine,
                what=what,
                before=before,
                after=after,
                last=last,
                first=first,
                versions=changed_versions(last, first),
                p=change.p,
                word=judge(by, what.unit),
            )
        )
    found.sort(key=lambda each: (str(each.machine), str(each.what), each.first.started_s))
    return LevelChanges(tuple(found), len(long), len(whole) - len(long))


def _by_machine(series: Series, of_run: Any) -> list[tuple[MeasureId, Any, Any]]:
    """The positions of runs and the values of each machine, the oldest first.

    ``of_run`` is the number of the machine of each run.
    """
    order = np.lexsort((series.runs, of_run[series.runs]))
    at, values = series.runs[order], series.values[order]
    cuts: Any = np.flatnonzero(np.diff(of_run[at])) + 1
    parts = zip(np.split(at, cuts), np.split(values, cuts), strict=True)
    return [(series.what, places, found) for places, found in parts]
