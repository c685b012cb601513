"""Takes failed nodes out of Slurm's use, and gives back those alone that this took out.

A node counts as drained by this where the record has it with a reason, and Slurm still has it
drained with the very same reason. A node that somebody else drained, or gave another reason, is
theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from portagpu.reports.fleet import slurm
from portagpu.reports.fleet.lock import locked
from portagpu.reports.fleet.record import FleetRecord, Step, StepState, read_record, write_record
from portagpu.runs.results.advice import Action

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from portagpu.reports.fleet.slurm import Node

LEAST: Final = Action.ISOLATE
"""The mildest action for which a node is drained: start no job on it."""
_OF_THE_REQUEST: Final = ("identity/target ", "identity/target:")
"""A reason that begins so has nothing graver than a node that is not the target that was asked for.
Where the request is wrong, that is every node."""
RESUMED: Final = ""
"""The reason in the record of a node that was drained and resumed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a node; ``done`` is False where it was left alone, and ``told`` says why."""

    node: str
    done: bool
    told: str


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
        and Action(step.action) >= LEAST
        and not step.reason.startswith(_OF_THE_REQUEST)
    }


def drain(
    folder: Path, record: FleetRecord, wanted: Mapping[str, str]
) -> tuple[FleetRecord, list[Outcome]]:
    """Drain the nodes for the reasons that are given; returns the record with those that were.

    The record is written first: if this process ends in between, the node's reason in Slurm is not
    the record's, and nothing is resumed. A node that is not in use any more is left as it is.
    """
    outcomes = []
    nodes = slurm.nodes() if wanted else {}
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
            slurm.drain(name, reason)
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
    slurm.version()
    outcomes = []
    read_record(folder)
    with locked(folder):
        record = read_record(folder)
        nodes = slurm.nodes()
        ours = [name for name, reason in record.drained.items() if reason != RESUMED]
        for name in names or ours:
            outcome = _resume(name, record.drained.get(name), nodes.get(name))
            outcomes.append(outcome)
            if outcome.done:
                # it stays in the record, so that the old finding does not drain it again
                record = replace(record, drained={**record.drained, name: RESUMED})
                write_record(folder, record)
    return outcomes


def _resume(name: str, reason: str | None, node: Node | None) -> Outcome:
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
        slurm.resume(name)
    except slurm.SlurmError as error:
        return Outcome(name, False, f"not resumed: {error}")
    return Outcome(name, True, "resumed")
