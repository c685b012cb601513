"""Changes of level of every measure on every machine, with the software that changed there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from portagpu.reports.history.changepoints import RATE, SHORTEST, change_points
from portagpu.reports.history.model import WORSE, changed_versions, judge, quotient
from portagpu.runs.judges.peers import RELATIVE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.reports.history.model import Machine, MeasureId, Series, StoredRun


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
    long = [part for part in whole if len(part[1]) >= 2 * SHORTEST]
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
