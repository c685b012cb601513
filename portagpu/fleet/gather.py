"""The result files of a fleet, and whose they are: by the record of its run, or by their hosts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from portagpu.bundle.files import find_files
from portagpu.errors import ResultError
from portagpu.fleet.nodes import NodeRun, Unread, read_nodes
from portagpu.fleet.record import FILE, FleetRecord, FleetRecordError, StepState, read_record
from portagpu.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from portagpu.fleet.record import Step

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

    ``missing_joint`` has pairs and groups without a result. ``files`` are all that were read,
    also records.
    """

    nodes: dict[str, list[NodeRun]] = field(default_factory=dict)
    joint: list[Joint] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    missing_joint: list[tuple[tuple[str, ...], Missing]] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    records: list[FleetRecord] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def gather(places: Sequence[Path], processes: int = 0) -> Fleet:
    """Read what ``places`` hold: folders of fleet runs, and files and folders of results.

    A file that cannot be used is told in ``unread`` or as a node's state; the others are used.
    Raises ResultError where none can be used, and FleetRecordError for a damaged record in a place.
    """
    fleet = Fleet()
    steps: dict[Path, tuple[FleetRecord, Step]] = {}
    files: list[Path] = []
    for place in places:
        folders, others = _found_in(place)
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
                continue
            fleet.records.append(record)
            steps |= {path: (record, step) for path, step in _steps_of(folder, record, fleet)}
    paths = list(dict.fromkeys([*steps, *files]))
    fleet.files += paths
    runs: dict[str, Path] = {}
    for path, found in zip(paths, read_nodes(paths, processes), strict=True):
        step = steps[path][1] if path in steps else None
        if found is None:
            if step is not None or path in places:
                _cannot_be_read(fleet, Unread(path, "is no result"), step)
        elif isinstance(found, Unread):
            _cannot_be_read(fleet, found, step)
        elif (other := runs.setdefault(found.run, path)) != path:
            again = f"holds the same run as {one_line(str(other))}"
            _cannot_be_read(fleet, Unread(path, again), step)
        elif step is not None and len(step.nodes) > 1:
            fleet.joint.append(Joint(step.nodes, step.round, found))
        else:
            host = step.nodes[0] if step is not None and step.nodes else found.host
            fleet.nodes.setdefault(host, []).append(replace(found, host=host))
    for own in fleet.nodes.values():
        own.sort(key=lambda each: (each.started, each.run))
    _add_missing(fleet)
    if fleet.nodes or fleet.joint or fleet.missing:
        return fleet
    if fleet.unread:
        first = fleet.unread[0]
        raise ResultError(f"{one_line(str(first.path))}: {first.reason}")
    named = ", ".join(one_line(str(place)) for place in places)
    raise ResultError(f"{named}: no file is a result, and there is no {FILE} of a fleet run")


def _found_in(place: Path) -> tuple[list[Path], list[Path]]:
    """The folders of fleet runs, ``place`` itself or folders below it, and the files elsewhere."""
    if os.path.exists(place / FILE):  # noqa: PTH110 - a name may be too long for Path.exists
        return [place], []
    files = [path for path, _ in find_files([place])]
    folders = {path.parent for path in files if path.name == FILE and path != place}
    return sorted(folders), [path for path in files if folders.isdisjoint(path.parents)]


def _steps_of(folder: Path, record: FleetRecord, fleet: Fleet) -> Iterable[tuple[Path, Step]]:
    """The result file of each step that has one; a node's other steps say why it has none."""
    inside = folder.resolve()
    for step in record.steps:
        if step.result is None:
            continue
        path = folder / step.result
        if not path.resolve().is_relative_to(inside):
            _cannot_be_read(fleet, Unread(path, "is not in the folder of its fleet run"), step)
            continue
        yield path, step


def _cannot_be_read(fleet: Fleet, unread: Unread, step: Step | None) -> None:
    fleet.unread.append(unread)
    if step is not None and len(step.nodes) == 1:
        fleet.missing.append(Missing(step.nodes[0], DAMAGED, unread.reason))


def _add_missing(fleet: Fleet) -> None:
    """The nodes of the records without a result, each with the state of its last step.

    A node with older results is one too: since then it gave none.
    """
    known = {each.node: each for each in fleet.missing}
    newest: dict[str, str] = {}
    for host, run in [
        *((host, run) for host, runs in fleet.nodes.items() for run in runs),
        *((node, joint.run) for joint in fleet.joint for node in joint.nodes),
    ]:
        newest[host] = max(run.started, newest.get(host, ""))
    for record in fleet.records:
        for step in record.steps:
            if len(step.nodes) > 1 and step.result is None and step.state is StepState.LOST:
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
            if node in known or node in done or record.started < newest.get(node, ""):
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


_WITHOUT_REASON: Final = {
    StepState.WAITING: "it was not submitted yet",
    StepState.SUBMITTED: "it waits in the scheduler's queue",
    StepState.RUNNING: "it runs",
    StepState.DONE: "it ended, and its result was not read",
    StepState.LOST: "it ended without a result",
}
