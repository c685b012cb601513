"""The result files of a fleet, and whose they are: by the record of its run, or by their hosts."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import ResultError
from portagpu.base.text import one_line
from portagpu.reports.bundles.document import (
    WHOLE,
    Aside,
    claimed_run,
    find_files,
    same_run,
    wrong_clock,
)
from portagpu.reports.condensed.nodes import Found, NodeRun, Other, Unread
from portagpu.reports.condensed.read import read_nodes
from portagpu.reports.fleet.record import (
    FILE,
    FleetRecord,
    FleetRecordError,
    Step,
    StepState,
    read_record,
)
from portagpu.runs.ledger import balance, instant, lines, same_id

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from portagpu.runs.ledger import Balance, Clearance

_STEP_FILES: Final = frozenset({"", ".log", ".out", ".err", ".sh", ".lock", ".txt", ".part"})
DAMAGED: Final = "damaged"
"""The state of a node whose result file cannot be read."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A node without a result: how far its step is, and why."""

    node: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Joint:
    """A result of several nodes together: a pair or a group."""

    nodes: tuple[str, ...]
    round: int
    run: NodeRun


@dataclass(slots=True)
class Fleet:
    """The runs of each node, the oldest first, and what else the files and records say.

    A recording is a node of its own. ``missing_joint`` has pairs and groups without a result,
    ``unread`` files that may be results and cannot be used, ``aside`` what does not count.
    ``files`` are all that were read, also records.
    """

    nodes: dict[str, list[NodeRun]] = field(default_factory=dict)
    joint: list[Joint] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    missing_joint: list[tuple[tuple[str, ...], Missing]] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    aside: list[Aside] = field(default_factory=list)
    clearances: list[Clearance] = field(default_factory=list)
    records: list[FleetRecord] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def balance(self, node: str) -> Balance:
        """What stands of a node after all its runs (``portagpu.runs.ledger``)."""
        clearances = [each for each in self.clearances if each.node == node]
        return balance([each.account for each in self.nodes[node]], clearances)

    def devices(self, node: str) -> set[str]:
        """The identities and addresses of all devices that results of a node name."""
        accounts = [each.account for each in self.nodes[node]]
        stated = {fact.device for each in accounts for fact in each.statements}
        listed = {each.id for account in accounts for each in account.devices}
        listed |= {each.pci for account in accounts for each in account.devices}
        return (stated | listed) - {""}

    def device(self, node: str, text: str) -> str | None:
        """The identity of a device that is given by its UUID, address or name; None if unknown."""
        wanted = same_id(text)
        for run in self.nodes[node]:
            for each in run.account.devices:
                if wanted == each.id or (each.pci and wanted == each.pci and not each.has_uuid):
                    return each.id
        at = {
            each.id
            for run in self.nodes[node]
            for each in run.account.devices
            if wanted in (each.pci, f"{run.account.backend}:{each.number}") and each.id
        }
        if len(at) == 1:
            return at.pop()
        return wanted if wanted in self.devices(node) else None


def gather(
    places: Sequence[Path],
    processes: int = 0,
    now: datetime | None = None,
    known: Callable[[Path], NodeRun | None] | None = None,
) -> Fleet:
    """Read what ``places`` hold: folders of fleet runs, and files and folders of results.

    A file that cannot be used is reported in ``unread`` or as a node's state, and so is a run that
    is later than ``now`` (this moment by default); the others are used. A file whose run is
    ``known`` is not read. Raises ResultError where none can be used, and FleetRecordError for a
    damaged record in a place.
    """
    now = now or datetime.now(UTC)
    fleet = Fleet()
    steps: dict[Path, tuple[FleetRecord, Step]] = {}
    files: list[Path] = []
    for place in places:
        folders, others = _found_in(place, fleet.aside)
        files += others
        for folder in folders:
            fleet.files.append(folder / FILE)
            try:
                record = read_record(folder)
            except FleetRecordError as error:
                if folder == place:
                    raise
                reason = one_line(str(error)).removeprefix(f"{one_line(str(folder / FILE))} ")
                fleet.unread.append(Unread(folder / FILE, reason))
                inside = (path for path, _ in find_files([folder], fleet.aside))
                files += (path for path in inside if path != folder / FILE)
                continue
            fleet.records.append(record)
            own = {path: (record, step) for path, step in _steps_of(folder, record, fleet)}
            steps |= own
            steps |= _next_to(folder, record, own, fleet.aside)
    paths = _without_bundles(list(dict.fromkeys([*steps, *files])))
    fleet.files += paths
    found = list(zip(paths, read_nodes(paths, processes, known), strict=True))
    _assign(fleet, found, {path: step for path, (_, step) in steps.items()}, now, set(places))
    _add_missing(fleet)
    if fleet.nodes or fleet.joint or fleet.missing:
        return fleet
    if fleet.unread:
        first = fleet.unread[0]
        raise ResultError(f"{one_line(str(first.path))}: {first.reason}")
    named = ", ".join(one_line(str(place)) for place in places)
    raise ResultError(f"{named}: none of its files is a result, nor the {FILE} of a fleet run")


def fleet_of(runs: Iterable[NodeRun], now: datetime | None = None) -> Fleet:
    """The fleet of runs that a store has, without the record of a fleet run."""
    fleet = Fleet()
    _assign(fleet, [(run.path, run) for run in runs], {}, now or datetime.now(UTC), ())
    return fleet


def _assign(
    fleet: Fleet,
    files: Iterable[tuple[Path, Found]],
    steps: Mapping[Path, Step],
    now: datetime,
    places: Collection[Path],
) -> None:
    """Add what files hold: to the nodes of their ``steps``, or else to their hosts."""
    runs: dict[str, NodeRun] = {}
    owned: list[NodeRun] = []
    hosts: dict[str, str] = {}
    for path, found in files:
        step = steps.get(path)
        if isinstance(found, Other):
            if found.clearance is not None:
                fleet.clearances.append(found.clearance)
            elif _is_result_of(step, path) or path in places:
                _cannot_be_read(fleet, Unread(path, found.reason), step)
            else:
                fleet.aside.append(Aside(path, found.reason))
        elif isinstance(found, Unread):
            _cannot_be_read(fleet, found, step if _is_result_of(step, path) else None)
        elif wrong := wrong_clock(found.started, now):
            _cannot_be_read(fleet, Unread(path, wrong), step)
        elif (other := runs.setdefault(found.account.run, found)) is not found:
            again = f"holds the same run as {one_line(str(other.path))}"
            _cannot_be_read(fleet, Unread(path, again), step)
            if (found.owner, found.account) != (other.owner, other.account):
                # one of them was edited or copied, and nobody knows which: both count
                name = f"{found.account.run} in {one_line(str(path))}"
                owned.append(replace(found, account=replace(found.account, run=name)))
        elif step is not None and len(step.nodes) > 1:
            fleet.joint.append(Joint(step.nodes, step.round, found))
        else:
            node = step.nodes[0] if step is not None and step.nodes else ""
            if _is_result_of(step, path):
                hosts[node] = found.owner.host
            elif found.owner.host not in ("", hosts.get(node, found.owner.host)):
                # somebody put it into the folder of another node
                node = ""
            owned.append(replace(found, owner=found.owner._replace(node=node)))
    for line in lines([(each.owner, each.account) for each in owned]):
        own_runs = [owned[at] for at in line.entries]
        own_runs.sort(key=lambda each: (each.account.at_s, each.account.run))
        fleet.nodes[line.name] = own_runs
    for each in fleet.clearances:
        if each.node not in fleet.nodes or (
            each.device and same_id(each.device) not in fleet.devices(each.node)
        ):
            named = f"{each.node} {each.device}".rstrip()
            reason = f"no result is of what it clears: {one_line(named)}"
            fleet.aside.append(Aside(Path(one_line(each.node)), reason))


def _without_bundles(paths: list[Path]) -> list[Path]:
    """``paths`` without the bundles of a run whose ``result.json`` is next to them."""
    alone = [path for path in paths if path.name != WHOLE]
    whole = {each.with_name(WHOLE) for each in alone}.intersection(paths)
    claimed = {path: claimed_run(path) for path in whole}
    of_same = {path for path in alone if same_run(path, claimed.get(path.with_name(WHOLE)))}
    return [path for path in paths if path not in of_same]


def _is_result_of(step: Step | None, path: Path) -> bool:
    """Whether the record of the step names the file as its result."""
    return step is not None and step.result is not None and path.name == Path(step.result).name


def _found_in(place: Path, aside: list[Aside]) -> tuple[list[Path], list[Path]]:
    """The folders of fleet runs, ``place`` itself or folders below it, and the files elsewhere."""
    if os.path.exists(place / FILE):  # noqa: PTH110 - a name may be too long for Path.exists
        return [place], []
    found: list[Aside] = []
    files = [path for path, _ in find_files([place], found)]
    folders = {path.parent for path in files if path.name == FILE and path != place}
    aside += (each for each in found if folders.isdisjoint(each.path.parents))
    return sorted(folders), [path for path in files if folders.isdisjoint(path.parents)]


def _next_to(
    folder: Path,
    record: FleetRecord,
    own: Mapping[Path, tuple[FleetRecord, Step]],
    aside: list[Aside],
) -> dict[Path, tuple[FleetRecord, Step]]:
    """Further files of a fleet run's folder, each with the step in whose folder it is.

    Files of a step without a result do not count: its command was stopped, or it goes on.
    """
    by_id = {step.id: step for step in record.steps}
    nobody = Step(id="", nodes=())
    found = {}
    others: list[Aside] = []
    for path, _ in find_files([folder], others):
        if path in own or path == folder / FILE:
            continue
        step = by_id.get(path.relative_to(folder).parts[0])
        if step is not None and step.result is None:
            aside.append(Aside(path, f"is of the step {one_line(step.id)}, which has no result"))
        else:
            found[path] = (record, step or nobody)
    aside += (each for each in others if not _is_of_step(each.path.relative_to(folder), by_id))
    return found


def _is_of_step(path: Path, steps: Collection[str]) -> bool:
    """Whether a run of a fleet wrote the file, which is not a result: a log, or a step's end."""
    return path.suffix in _STEP_FILES and path.parts[0] in {*steps, path.name}


def _steps_of(folder: Path, record: FleetRecord, fleet: Fleet) -> Iterable[tuple[Path, Step]]:
    """The result file of each step that has one; a node's other steps say why it has none."""
    inside = folder.resolve()
    for step in record.steps:
        if step.result is None:
            continue
        path = folder / step.result
        if not (_is_below(folder, step.result) or path.resolve().is_relative_to(inside)):
            _cannot_be_read(fleet, Unread(path, "is not in the folder of its fleet run"), step)
            continue
        yield path, step


def _is_below(folder: Path, name: str) -> bool:
    """Whether the name leads to a place in the folder without a link; few names are otherwise."""
    place = str(folder)
    for part in name.split("/"):
        place = f"{place}/{part}"
        if part in ("", "..") or os.path.islink(place):  # noqa: PTH114 - of thousands of names
            return False
    return True


def _cannot_be_read(fleet: Fleet, unread: Unread, step: Step | None) -> None:
    fleet.unread.append(unread)
    if step is not None and len(step.nodes) == 1:
        fleet.missing.append(Missing(step.nodes[0], DAMAGED, unread.reason))


def _add_missing(fleet: Fleet) -> None:
    """The nodes of the records without a result, each with the state of its last step.

    A node with older results is one too: since then it gave none.
    """
    known = {each.node: each for each in fleet.missing}
    newest: dict[str, float] = {}
    for host, run in [
        *((host, run) for host, runs in fleet.nodes.items() for run in runs),
        *((node, joint.run) for joint in fleet.joint for node in joint.nodes),
    ]:
        newest[host] = max(run.account.at_s, newest.get(host, 0.0))
    for record in fleet.records:
        for step in record.steps:
            if len(step.nodes) > 1 and step.result is None:
                reason = step.reason or _WITHOUT_REASON[step.state]
                fleet.missing_joint.append((step.nodes, Missing(step.id, step.state, reason)))
        # a node's own step says more of it than those with others
        last: Mapping[str, Step] = {
            node: step
            for step in sorted(record.steps, key=lambda step: -len(step.nodes))
            for node in step.nodes
            if step.result is None
        }
        done = {node for step in record.steps if step.result is not None for node in step.nodes}
        for node in record.nodes:
            if node in known or node in done or _began(record) < newest.get(node, 0.0):
                continue
            if node in last:
                step = last[node]
                reason = step.reason or _WITHOUT_REASON[step.state]
                known[node] = Missing(node, step.state, reason)
            else:
                known[node] = Missing(node, StepState.WAITING, "no step of the run is for it")
    fleet.missing = [
        each for each in known.values() if each.state != DAMAGED or each.node not in newest
    ]


def _began(record: FleetRecord) -> float:
    """When a fleet run began; infinity for a text that is not a time: then it is the newest."""
    try:
        return instant(record.started)
    except ValueError:
        return math.inf


_WITHOUT_REASON: Final = {
    StepState.WAITING: "it was not submitted yet",
    StepState.SUBMITTED: "it waits in the scheduler's queue",
    StepState.RUNNING: "it runs",
    StepState.DONE: "it ended, and its result was not read",
    StepState.LOST: "it ended without a result",
}
