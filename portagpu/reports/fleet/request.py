"""What a fleet run is asked for, the record that it begins with, and its steps.

A step runs on some nodes and leaves its results in a folder of its own.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import PortagpuError, ResultError
from portagpu.base.files import check_writable, read_bounded
from portagpu.base.text import excerpt, one_line
from portagpu.base.units import count
from portagpu.reports.bundles.document import read_file
from portagpu.reports.fleet import slurm
from portagpu.reports.fleet.record import (
    ENDED,
    FILE,
    RESULT,
    FleetRecord,
    Step,
    StepState,
    read_record,
    write_record,
)
from portagpu.runs.results.advice import worst_action
from portagpu.runs.results.verdicts import FAILING, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from portagpu.reports.fleet.slurm import Node
    from portagpu.runs.results.run import RunInfo


def single_steps(names: Sequence[str]) -> tuple[Step, ...]:
    """One step for each node."""
    return tuple(Step(id=name, nodes=(name,)) for name in names)


def joint_steps(names: Sequence[str], rounds: int, group: int | None = None) -> tuple[Step, ...]:
    """``rounds`` of pairs in which each node has another partner each time, then groups of nodes.

    A pair that is slow may have a slow node or a slow link: a node's other pairs show which.
    Groups are of neighbours in the list, and load what pairs leave idle: switches and uplinks.
    """
    found = [
        Step(id=f"{first}+{second}", nodes=(first, second), round=number)
        for number, pairs in enumerate(pair_rounds(names)[:rounds])
        for first, second in pairs
    ]
    if group is not None:
        found += [
            Step(id=f"group-{start // group}", nodes=tuple(own), round=rounds)
            for start in range(0, len(names), group)
            if len(own := names[start : start + group]) == group
        ]
    return tuple(found)


def pair_rounds(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """A round robin by the circle method: every two nodes meet once, and no node is twice in a
    round. With an odd number one node rests in each round.
    """
    places: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    return [list(_round(places, number)) for number in range(len(places) - 1)]


def _round(places: Sequence[str | None], number: int) -> Iterator[tuple[str, str]]:
    # the first stays, and the others go round it
    turning = len(places) - 1
    circle = [places[0], *(places[1 + (place + number) % turning] for place in range(turning))]
    for low in range(len(circle) // 2):
        first, second = circle[low], circle[-1 - low]
        if first is not None and second is not None:
            yield min(first, second), max(first, second)


_NO_PROGRAM: Final = (126, 127)
"""A shell's exit codes for a command that cannot be run, and one that is not there."""
OF_SSH: Final = "ssh: "
"""With which a log's last line begins where ssh did not reach the node."""
_INTERRUPTED: Final = 130
"""The command's exit code after Ctrl-C, SIGTERM and SIGHUP."""
_SIGNAL: Final = 128
"""A shell's exit code for a command that a signal ended is above this by the signal's number."""


def came_to_its_end(folder: Path, job: str) -> bool:
    """Whether the step's command ended by itself in that job.

    The folder is listed first: a network file system then asks its server what is there.
    """
    try:
        os.listdir(folder)  # noqa: PTH208 - for its effect alone
        return _ended(folder)[:1] == [job]
    except OSError:
        return False


def collected(folder: Path, step: Step) -> tuple[Step, RunInfo | None]:
    """``step`` with what its result says, DONE or LOST with the reason; and what ran there.

    ``folder`` is that of the step, whose command came to its end.
    """
    try:
        run = read_file(folder / RESULT).run
    except ResultError as error:
        return lost(step, _why_no_result(folder, error)), None
    code = _exit_code(folder) or 0
    if run.info.interrupted:
        why = f"the command was stopped before its end: {one_line(run.why)}"
        # it was not asked to stop: a full disk, or an error of its own
        logged = "" if code == _INTERRUPTED else last_line(folder / "job.log")
        return lost(step, f"{why}; the log ends: {logged}" if logged else why), None
    if code > _SIGNAL and run.verdict not in FAILING:
        number = code - _SIGNAL
        why = f"signal {number} ended the command after it wrote a result without a failure"
        return lost(step, why), None
    failure = run.first_failure
    done = replace(
        step,
        state=StepState.DONE,
        result=f"{step.id}/{RESULT}",
        verdict=str(run.verdict),
        gate=failure.area if failure else None,
        reason="" if run.verdict is Verdict.PASS else one_line(run.why),
        action=str(worst_action(run.results)),
    )
    return done, run.info


def lost(step: Step, reason: str) -> Step:
    """``step`` without a result, and why."""
    return replace(step, state=StepState.LOST, reason=excerpt(one_line(reason), 400))


def _why_no_result(folder: Path, error: ResultError) -> str:
    """Why a command that came to its end left no result."""
    code = _exit_code(folder)
    if code in _NO_PROGRAM or not (folder / RESULT).exists():
        logged = last_line(folder / "job.log")
        if logged.startswith(OF_SSH):
            # the command was never begun
            return logged
        return f"the command left no result and exit code {code}: {logged or 'it logged nothing'}"
    return str(error).removeprefix(f"{folder}/")


def _exit_code(folder: Path) -> int | None:
    try:
        words = _ended(folder)
    except OSError:
        return None
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else None


def _ended(folder: Path) -> list[str]:
    return read_bounded(folder / ENDED, 100).decode("ascii", "replace").split()


def last_line(log: Path) -> str:
    """The last line of a log that portagpu wrote, or else the last of all; empty without a log.

    srun and Slurm add their own lines after the reason. Only the end of the log is read.
    """
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 4096))
            lines = stream.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    logged = [line for line in reversed(lines) if line.strip()]
    own = next((line for line in logged if line.startswith("portagpu: ")), "")
    return excerpt((own or next(iter(logged), "")).removeprefix("portagpu: "))


WHATS: Final = ("bringup", "health", "conform", "bench", "screen", "collectives")


class FleetUsageError(PortagpuError, ValueError):
    """The fleet cannot be run as it was asked for; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What to run, and where.

    ``nodes`` is a list as Slurm writes it, or "all" for those of the partition. Without Slurm,
    ``ssh`` is a set of nodes or a file of them, with the client's ``ssh_config``, and ``local`` a
    number of steps on this machine; there ``drain_with`` is the command that takes nodes away.
    ``arguments`` are
    added to the command on each node, ``program`` begins it. ``drain`` takes nodes out of use whose
    result asks for it. ``gres`` is None for each node's own
    GPUs and "" for none. At most ``at_once`` steps are in Slurm's queue. A step that waits there
    for ``queue_limit_s`` is cancelled, and a job may run for ``minutes``. ``settle_s`` is how long
    a result may take to appear after its job's end; ``answer_limit_s`` how long Slurm may be away.
    Collectives run in ``rounds`` of pairs, then in groups of ``group`` nodes if that is given, with
    ``ranks_per_node`` ranks, by default one for each GPU.
    """

    what: str
    nodes: str = ""
    folder: Path
    program: Sequence[str]
    arguments: Sequence[str] = ()
    minutes: int = 60
    partition: str | None = None
    account: str | None = None
    gres: str | None = None
    exclusive: bool = True
    sbatch: Sequence[str] = ()
    drain: bool = False
    rounds: int = 4
    group: int | None = None
    ranks_per_node: int | None = None
    at_once: int = 64
    queue_limit_s: float | None = None
    settle_s: float = 60.0
    answer_limit_s: float = 600.0
    poll_s: float = 5.0
    local: int | None = None
    ssh: str | None = None
    ssh_config: Path | None = None
    drain_with: str = ""


def chosen_nodes(options: FleetOptions, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    """The names of the nodes; raises FleetUsageError for those that cannot be used together."""
    if options.what not in WHATS:
        raise FleetUsageError(f"fleet run knows {', '.join(WHATS)}, not {options.what!r}")
    if options.local is not None or options.ssh is not None:
        if options.what == "collectives":
            raise FleetUsageError("collectives run on several nodes at once, which needs Slurm")
        if options.drain and not options.drain_with:
            raise FleetUsageError("--drain needs --drain-with: the command that takes a node away")
        return tuple(nodes)
    partition = options.partition
    if partition is not None and partition not in (known := slurm.partitions()):
        there = ", ".join(known) or "none"
        raise FleetUsageError(f"Slurm has no partition {partition!r}; there are: {there}")
    partition = partition or slurm.default_partition()
    if partition is None:
        raise FleetUsageError("this cluster has no default partition: name one with --partition")
    if options.nodes == "all":
        names = tuple(name for name, node in nodes.items() if partition in node.partitions)
        if not names:
            raise FleetUsageError(f"the partition {partition} has no nodes")
        return names
    names = slurm.expand(options.nodes)
    _refuse("Slurm does not know", [name for name in names if name not in nodes])
    others = [name for name in names if partition not in nodes[name].partitions]
    _refuse(f"not in the partition {partition}:", others)
    return names


def _refuse(why: str, names: Sequence[str]) -> None:
    if names:
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise FleetUsageError(f"{why} {shown}")


def gres_of(options: FleetOptions, names: Iterable[str], nodes: Mapping[str, Node]) -> str:
    """What each node is asked for; raises FleetUsageError where that is not the same for all."""
    if options.gres is not None:
        return options.gres
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(nodes[name].gpus, []).append(name)
    if len(kinds) > 1:
        listed = "; ".join(f"{kind or 'no GPU'}: {', '.join(of[:4])}" for kind, of in kinds.items())
        raise FleetUsageError(
            f"the nodes have different GPUs ({listed}): run a fleet for each kind, "
            "each in its folder"
        )
    return next(iter(kinds))


def begun_record(
    options: FleetOptions, names: tuple[str, ...], gres: str, version: str
) -> FleetRecord:
    """The record in the folder, if it is of this run; else a new one, which is written."""
    steps = _steps(options, names)
    by = "" if options.local is None and options.ssh is None else "ssh" if options.ssh else "local"
    asked = {
        "version": version,
        "gres": gres,
        "partition": options.partition or "",
        "executor": by,
        "drain_with": options.drain_with,
    }
    scheduler = {key: value for key, value in asked.items() if value}
    if (options.folder / FILE).exists():
        record = read_record(options.folder)
        wanted = (options.what, tuple(options.arguments), {(step.id, step.nodes) for step in steps})
        own = {(step.id, step.nodes) for step in record.steps}
        if (record.what, record.arguments, own) != wanted:
            words = " ".join([record.what, *record.arguments])
            on = count(len(record.nodes), "node")
            raise FleetUsageError(
                f"{options.folder} holds another fleet run ({words} on {on}): "
                "repeat its command to go on with it, or name another folder"
            )
        record = replace(record, scheduler=scheduler)
    else:
        now = datetime.now(UTC)
        check_writable(options.folder / FILE)
        record = FleetRecord(
            id=f"{now:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}",
            what=options.what,
            arguments=tuple(options.arguments),
            started=f"{now:%Y-%m-%dT%H:%M:%SZ}",
            nodes=names,
            scheduler=scheduler,
            steps=steps,
        )
    write_record(options.folder, record)
    return record


def _steps(options: FleetOptions, names: tuple[str, ...]) -> tuple[Step, ...]:
    """Raises FleetUsageError where there are too few nodes to run anything together."""
    if options.what != "collectives":
        return single_steps(names)
    if len(names) < max(2, options.group or 2):
        raise FleetUsageError(
            f"collectives need at least {max(2, options.group or 2)} nodes, not {len(names)}"
        )
    return joint_steps(names, options.rounds, options.group)


def arguments_of(record: FleetRecord) -> list[str]:
    """The arguments of the command on each node.

    A screen has the day on which the fleet run began, whenever a node's turn comes: so any two
    devices of the fleet have the same operands.
    """
    given = list(record.arguments)
    seeded = any(word == "--seed" or word.startswith("--seed=") for word in given)
    if record.what != "screen" or seeded:
        return given
    return [*given, "--seed", record.started[:10].replace("-", "")]
