"""What a fleet run needs of whoever starts its steps (Slurm, ssh, or this machine alone), and the
nodes that it drains and resumes through them.

A node counts as drained by this run where the record has it with a reason, and Slurm still has it
drained with exactly this reason. A node that somebody else drained, or gave another reason, is
not touched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from portagpu.reports.fleet import slurm
from portagpu.reports.fleet.record import (
    FleetRecord,
    Step,
    StepState,
    locked,
    read_record,
    write_record,
)
from portagpu.runs.results.advice import Action

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from portagpu.reports.fleet.request import FleetOptions
    from portagpu.reports.fleet.slurm import Job, Node, Request


class Scheduler(Protocol):
    """Starts steps on nodes, and says how far they are. ``portagpu.reports.fleet.slurm`` is one."""

    @property
    def TITLE(self) -> str:  # noqa: N802 - a constant of a module
        """Its name for people."""

    @property
    def LASTS(self) -> bool:  # noqa: N802
        """Whether jobs go on without this process."""

    @property
    def SHARES(self) -> bool:  # noqa: N802
        """Whether nodes write into the folder themselves; else the result comes as output."""

    def version(self) -> str: ...

    def nodes(self) -> Mapping[str, Node]: ...

    def jobs(self, name: str, /) -> Mapping[str, Job]: ...

    def submit(self, script: Path, request: Request, /) -> str: ...

    def cancel(self, numbers: Iterable[str], /) -> None: ...

    def pause(self, seconds: float, /) -> None:
        """Wait this long; less where a job ends before."""

    def stop(self) -> None:
        """End what does not go on without this process."""

    def drain(self, name: str, reason: str, /) -> None: ...

    def resume(self, name: str, /) -> None: ...


def scheduler_of(options: FleetOptions) -> Scheduler:
    """Who starts the steps of a run. Raises UnknownNodes and MissingDependency."""
    if options.local is None and options.ssh is None:
        return slurm
    from portagpu.reports.fleet.processes import Processes, nodes_of

    if options.ssh is None:
        names = tuple(f"local-{number}" for number in range(options.local or 0))
        return Processes(names, None, options.drain_with)
    command = ["ssh", *(["-F", str(options.ssh_config)] if options.ssh_config else [])]
    return Processes(nodes_of(options.ssh), command, options.drain_with)


MIN_DRAIN_ACTION: Final = Action.ISOLATE
"""The mildest action for which a node is drained: start no job on it."""
_OF_THE_REQUEST: Final = ("identity/target ", "identity/target:")
"""A reason that begins so has nothing graver than a node that is not the target that was asked for.
Where the request is wrong, that is every node."""
RESUMED: Final = ""
"""The reason in the record of a node that was drained and resumed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a node; ``done`` is False if it was left alone, and ``text`` says why."""

    node: str
    done: bool
    text: str


def to_drain(record: FleetRecord, steps: Collection[Step]) -> dict[str, str]:
    """The nodes that ``steps`` found faulty, and the reason for Slurm. A step of several nodes
    blames none."""
    return {
        step.nodes[0]: slurm.reason_text(
            f"portagpu fleet {record.id}: {step.action}: {step.reason or step.gate}"
        )
        for step in steps
        if step.state is StepState.DONE
        and len(step.nodes) == 1
        and step.action is not None
        and step.nodes[0] not in record.drained
        and Action(step.action) >= MIN_DRAIN_ACTION
        and not step.reason.startswith(_OF_THE_REQUEST)
    }


def drain(
    folder: Path, record: FleetRecord, wanted: Mapping[str, str], scheduler: Scheduler = slurm
) -> tuple[FleetRecord, list[Outcome]]:
    """Drain the nodes for the reasons that are given; returns the record with those that were.

    The record is written first: if this process ends in between, the node's reason in Slurm is not
    the record's, and nothing is resumed. A node that is not in use any more is left as it is.
    """
    outcomes = []
    nodes = scheduler.nodes() if wanted else {}
    for name, reason in wanted.items():
        node = nodes.get(name)
        if node is None or not node.usable:
            why = node.why_unusable if node else "Slurm does not know it any more"
            outcomes.append(Outcome(name, False, f"left alone: {why}"))
            continue
        before = record
        record = replace(record, drained={**record.drained, name: reason})
        write_record(folder, record)
        try:
            scheduler.drain(name, reason)
        except slurm.SlurmError as error:
            record = before
            write_record(folder, record)
            outcomes.append(Outcome(name, False, f"not drained: {error}"))
        else:
            outcomes.append(Outcome(name, True, f"drained: {reason}"))
    return record, outcomes


def resume(folder: Path, names: Collection[str] = ()) -> list[Outcome]:
    """Resume the nodes that the run in ``folder`` drained; all of them without ``names``.

    Raises FleetRecordError, FleetBusy, SlurmError and OutputError.
    """
    outcomes = []
    scheduler = _who_drained(read_record(folder))
    scheduler.version()
    with locked(folder):
        record = read_record(folder)
        nodes = scheduler.nodes()
        ours = [name for name, reason in record.drained.items() if reason != RESUMED]
        for name in names or ours:
            outcome = _resume(name, record.drained.get(name), nodes.get(name), scheduler)
            outcomes.append(outcome)
            if outcome.done:
                # it stays in the record, so that the old finding does not drain it again
                record = replace(record, drained={**record.drained, name: RESUMED})
                write_record(folder, record)
    return outcomes


def _who_drained(record: FleetRecord) -> Scheduler:
    """Slurm, or the command that the record names."""
    if "executor" not in record.scheduler:
        return slurm
    from portagpu.reports.fleet.processes import Processes

    drained = {name: why for name, why in record.drained.items() if why != RESUMED}
    return Processes(record.nodes, None, record.scheduler.get("drain_with", ""), drained)


def _resume(name: str, reason: str | None, node: Node | None, scheduler: Scheduler) -> Outcome:
    if reason is None:
        return Outcome(name, False, "left alone: this run did not drain it")
    if reason == RESUMED:
        return Outcome(name, False, "left alone: it was resumed before")
    if node is None:
        return Outcome(name, False, "left alone: Slurm does not know it any more")
    if not node.drained:
        return Outcome(name, False, f"left alone: it is {node.state}, and not drained")
    if node.reason != reason:
        return Outcome(name, False, f"left alone: its reason is now {node.reason!r}")
    if node.state.endswith("*"):
        return Outcome(name, False, "left alone: it does not answer")
    try:
        scheduler.resume(name)
    except slurm.SlurmError as error:
        return Outcome(name, False, f"not resumed: {error}")
    return Outcome(name, True, "resumed")
