"""Runs compared: two sets of runs, one measure over time, and each machine with its peers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from portagpu.base.stats import Summary, summarise
from portagpu.reports.history.model import MeasureId, Series, judge, quotient
from portagpu.runs.judges.peers import DEVIATIONS, NORMAL, RELATIVE, compare_peers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from portagpu.reports.history.model import Machine, StoredRun
    from portagpu.runs.judges.peers import Peers


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


@dataclass(frozen=True, slots=True)
class Trend:
    """A measure on one machine: ``runs``, ``values`` and ``spreads``, the oldest first.

    Values and spreads (the MAD of a run's samples, None without) are in ``what.unit``.
    """

    machine: Machine
    what: MeasureId
    runs: tuple[StoredRun, ...]
    values: tuple[float, ...]
    spreads: tuple[float | None, ...]

    @property
    def summary(self) -> Summary:
        """Median, spread and extremes over the runs."""
        return summarise(self.values)

    def to_json(self) -> dict[str, Any]:
        """An object for ``--json``."""
        points = zip(self.runs, self.values, self.spreads, strict=True)
        return {
            "target": self.machine.target,
            "host": self.machine.host,
            **self.what.to_json(),
            "median": self.summary.median,
            "mad": self.summary.spread,
            "points": [
                {"run": run.id, "started": run.started, "value": value, "spread": spread}
                for run, value, spread in points
            ],
        }


def trends(series: Sequence[Series], runs: Sequence[StoredRun]) -> list[Trend]:
    """Each series by machine; ``runs`` are those that its positions count, the oldest first."""
    return sorted(
        (trend for each in series for trend in _of_machines(each, runs)),
        key=lambda each: (str(each.what), str(each.machine)),
    )


def _of_machines(series: Series, runs: Sequence[StoredRun]) -> Iterator[Trend]:
    points: dict[Machine, list[tuple[int, float, float]]] = {}
    for at, value, spread in zip(
        series.runs.tolist(), series.values.tolist(), series.spreads.tolist(), strict=True
    ):
        points.setdefault(runs[at].machine, []).append((at, value, spread))
    for machine, found in points.items():
        found.sort()
        yield Trend(
            machine,
            series.what,
            tuple(runs[at] for at, _, _ in found),
            tuple(value for _, value, _ in found),
            tuple(None if math.isnan(spread) else spread for _, _, spread in found),
        )


DEVICES: Final = "devices"
NODES: Final = "nodes"
TIME: Final = "time"
EARLIER: Final = 20
"""How many earlier runs of a machine its newest one is compared with."""


@dataclass(frozen=True, slots=True)
class Unlike:
    """A value of a machine's newest ``run`` with that measure, unlike the ``median`` of its peers.

    ``among`` says who they are: DEVICES of the same run, NODES of the same target, or earlier runs
    of the same machine (TIME). ``who`` is the device, host or run; ``relative`` the distance from
    the median as a fraction of it, None where no number holds that. Values are in ``what.unit``; a
    measure of all devices has no ``what.device``.
    """

    among: str
    machine: Machine
    run: StoredRun
    what: MeasureId
    who: str
    value: float
    median: float
    relative: float | None
    peers: int
    word: str

    def to_json(self) -> dict[str, Any]:
        """An object for ``--json``."""
        names = ("among", "who", "value", "median", "relative", "peers", "word")
        return {
            "target": self.machine.target,
            "host": self.machine.host,
            "run": self.run.id,
            "started": self.run.started,
            **self.what.to_json(),
            **{name: getattr(self, name) for name in names},
        }


@dataclass(frozen=True, slots=True)
class Outliers:
    """What was found, of ``judged`` comparisons; for ``few`` others there were too few peers."""

    found: tuple[Unlike, ...]
    judged: int
    few: int


_Values = dict["MeasureId", dict[int, float]]


def recent(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The newest run of each machine and up to 20 earlier ones, in the order of ``runs``."""
    seen: dict[Machine, int] = {}
    kept = []
    for run in reversed(runs):
        seen[run.machine] = seen.get(run.machine, 0) + 1
        if seen[run.machine] <= EARLIER + 1:
            kept.append(run)
    return kept[::-1]


def outliers(
    series: Sequence[Series], runs: Sequence[StoredRun], relative: float = RELATIVE
) -> Outliers:
    """Compare what each machine measured last; ``runs`` are the recent ones, the oldest first."""
    finder = _Finder(runs, relative)
    of_nodes: dict[tuple[str | None, MeasureId], dict[str, dict[int, list[float]]]] = {}
    of_devices: dict[tuple[int, MeasureId], dict[str, float]] = {}
    for each in series:
        machines: dict[Machine, dict[int, float]] = {}
        for at, value in zip(each.runs.tolist(), each.values.tolist(), strict=True):
            machines.setdefault(runs[at].machine, {})[at] = value
        whole = each.what._replace(device=None)
        for machine, values in machines.items():
            # the newest run that measured it: a later one of other measures says nothing of it
            at = max(values)
            finder.over_time(each.what, at, values)
            hosts = of_nodes.setdefault((machine.target, whole), {})
            hosts.setdefault(machine.host, {}).setdefault(at, []).append(values[at])
            if each.what.device is not None:
                of_devices.setdefault((at, whole), {})[each.what.device] = values[at]
    for (at, what), devices in of_devices.items():
        finder.over_devices(what, at, devices)
    for (_, what), hosts in of_nodes.items():
        newest = {host: max(found) for host, found in hosts.items()}
        finder.over_nodes(
            what, newest, {host: median(hosts[host][at]) for host, at in newest.items()}
        )
    order = (DEVICES, NODES, TIME)
    found = sorted(
        finder.found, key=lambda each: (order.index(each.among), str(each.machine), str(each.what))
    )
    return Outliers(tuple(found), finder.judged, finder.few)


class _Finder:
    """Collects what is unlike its peers, and counts the comparisons."""

    def __init__(self, runs: Sequence[StoredRun], relative: float) -> None:
        self.found: list[Unlike] = []
        self.judged = 0
        self.few = 0
        self._runs = runs
        self._relative = relative

    def over_time(self, what: MeasureId, newest: int, values: Mapping[int, float]) -> None:
        peers = self._compare({self._runs[at].id: value for at, value in values.items()})
        id_ = self._runs[newest].id
        self._keep(TIME, what, {id_: newest}, peers, len(values))

    def over_devices(self, what: MeasureId, at: int, values: Mapping[str, float]) -> None:
        if len(values) > 1:
            peers = self._compare(values)
            self._keep(DEVICES, what, dict.fromkeys(values, at), peers, len(values))

    def over_nodes(
        self, what: MeasureId, at: Mapping[str, int], values: Mapping[str, float]
    ) -> None:
        if len(values) > 1:
            self._keep(NODES, what, at, self._compare(values), len(values))

    def _compare(self, values: Mapping[str, float]) -> Peers:
        peers = compare_peers(values, relative=self._relative)
        self.judged += peers.judged
        self.few += not peers.judged
        return peers

    def _keep(
        self, among: str, what: MeasureId, at: Mapping[str, int], peers: Peers, count: int
    ) -> None:
        for each in peers.outliers:
            if each.name in at and peers.median is not None:
                run = self._runs[at[each.name]]
                self.found.append(
                    Unlike(
                        among=among,
                        machine=run.machine,
                        run=run,
                        what=what,
                        who=each.name,
                        value=each.value,
                        median=peers.median,
                        relative=quotient(each.value - peers.median, abs(peers.median)),
                        peers=count - 1,
                        word=judge(each.value - peers.median, what.unit),
                    )
                )
