"""What is unlike its peers now: devices of one run, nodes of one target, a run among earlier ones.

All three by the rule of :mod:`portagpu.runs.judges.peers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from portagpu.reports.history.model import judge, quotient
from portagpu.runs.judges.peers import RELATIVE, compare_peers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.reports.history.model import Machine, MeasureId, Series, StoredRun
    from portagpu.runs.judges.peers import Peers

DEVICES: Final = "devices"
NODES: Final = "nodes"
TIME: Final = "time"
EARLIER: Final = 20
"""So many earlier runs of a machine are what its newest one is compared with."""


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
