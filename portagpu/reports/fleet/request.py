"""What a fleet run is asked for, whether that can be run, and the record that it begins with."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import PortagpuError
from portagpu.base.files import check_writable
from portagpu.base.units import count
from portagpu.reports.fleet import slurm
from portagpu.reports.fleet.record import FILE, FleetRecord, Step, read_record, write_record
from portagpu.reports.fleet.steps import joint_steps, single_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from portagpu.reports.fleet.slurm import Node

WHATS: Final = ("bringup", "conform", "bench", "screen", "collectives")


class FleetUsageError(PortagpuError, ValueError):
    """The fleet cannot be run as it was asked for; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What to run, and where.

    ``nodes`` is a list as Slurm writes it, or "all" for those of the partition. ``arguments`` are
    added to the command on each node, ``program`` begins it. ``drain`` takes nodes out of use whose
    result asks for it. ``gres`` is None for each node's own
    GPUs and "" for none. At most ``at_once`` steps are in Slurm's queue. A step that waits there
    for ``queue_limit_s`` is cancelled, and a job may run for ``minutes``. ``settle_s`` is how long
    a result may take to appear after its job's end; ``answer_limit_s`` how long Slurm may be away.
    Collectives run in ``rounds`` of pairs, then in groups of ``group`` nodes if that is given, with
    ``ranks_per_node`` ranks, by default one for each GPU.
    """

    what: str
    nodes: str
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


def chosen_nodes(options: FleetOptions, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    """The names of the nodes; raises FleetUsageError for those that cannot be used together."""
    if options.what not in WHATS:
        raise FleetUsageError(f"fleet run knows {', '.join(WHATS)}, not {options.what!r}")
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
    asked = {"version": version, "gres": gres, "partition": options.partition or ""}
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
