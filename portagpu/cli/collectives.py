"""``portagpu collectives``: groups its verbs; ``placement`` and ``doctor`` are here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, TextIO

import click

from portagpu.cli._common import (
    check_outputs,
    chosen_machine,
    json_option,
    print_lines,
    replay_option,
    run_json_option,
    target_option,
    terminal,
    text_stream,
    write_json,
)
from portagpu.cli._tables import finding_lines
from portagpu.cli._verbs import VerbGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.machine.placement import Edge, Groups, Placement


_SHOWN: Final = 8
"""Groups and rings in the text; JSON has all."""
_SIZE: Final = click.IntRange(min=1)


@click.command()
@replay_option("Read a recording instead of this machine, as a topology file.")
@click.option("--tp", type=_SIZE, metavar="N", help="Ranks of a tensor-parallel group.")
@click.option("--pp", type=_SIZE, metavar="N", help="Stages of the pipeline.")
@click.option(
    "--dp", type=_SIZE, metavar="N", help="Data-parallel copies. Default: what tp and pp leave."
)
@click.option(
    "--nodes",
    type=_SIZE,
    default=1,
    show_default=True,
    metavar="N",
    help="Machines like this one.",
)
@target_option("The GPUs' product: its links are assumed where no source states any.")
@json_option
def placement(
    replay: tuple[str, ...],
    tp: int | None,
    pp: int | None,
    dp: int | None,
    nodes: int,
    target: str | None,
    json_to: str | None,
) -> None:
    """Say where ranks belong: by the links between GPUs, and what is near each GPU.

    It prints the domains, the best ring and tree, NUMA node, CPUs and NICs of each GPU. With --tp,
    --pp or --dp also the groups, and which GPU each rank gets. Needs networkx, which comes with
    torch. Exit code 2 for sizes that do not fit.
    """
    from portagpu.facts.targets import load_target
    from portagpu.machine.placement.machine import document, graph_of_machine, place

    check_outputs(json_to)
    assumed = load_target(target) if target is not None else None
    machine = chosen_machine(replay)
    try:
        graph = graph_of_machine(machine, assumed)
        found = place(graph, tp=tp, pp=pp, dp=dp, nodes=nodes)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _show(found, text_stream(json_to))
    write_json(document(found), json_to)


def _show(found: Placement, stream: TextIO) -> None:
    from portagpu.base.text import printable
    from portagpu.cli._tables import print_table

    unknown = "?"
    noun = _noun(found)
    rank_of = {place: rank for rank, place in enumerate(found.order)}
    rows = [
        (
            f"{noun}{number}",
            each.key,
            str(rank_of[number]),
            unknown if each.numa_node is None else str(each.numa_node),
            each.cpus or unknown,
            ", ".join(f"{name} ({path or unknown})" for name, path in each.nics) or unknown,
        )
        for number, each in enumerate(found.graph.places)
    ]
    head = ("", "address", "local rank", "NUMA", "CPUs", "nearest NICs")
    cells = [tuple(map(printable, row)) for row in rows]
    print_table(stream, terminal(stream), head, cells, {"local rank", "NUMA"})
    print_lines(["", *_orders(found)], stream)
    if found.groups is not None:
        print_lines(["", *_groups(found.groups)], stream)
    print_lines(["", *_launch(found)], stream)


def _noun(found: Placement) -> str:
    return "GPU" if found.graph.places[0].is_gpu else "node"


def _orders(found: Placement) -> Iterator[str]:
    from portagpu.machine.placement.graph import numbered

    noun = _noun(found)
    for domain in found.domains[:_SHOWN]:
        joined = "each two joined" if domain.complete else "joined, some through others,"
        yield f"domain: {numbered(domain.places, noun)}, {joined} by {_speed(domain.slowest)}"
    if len(found.domains) > _SHOWN:
        yield f"and {len(found.domains) - _SHOWN} more domains"
    ring, tree = found.ring, found.tree
    if len(found.graph) == 1:
        yield "one place: there is no ring and no tree"
    else:
        yield f"ring: {_words(ring.order)}; slowest: {_speed(ring.slowest)} ({ring.basis})"
        same = ring.slowest is not None and ring.identity is not None
        if same and ring.slowest != ring.identity:
            yield f"ring in the order of the places: slowest: {_speed(ring.identity)}"
        if len(found.rings) > 1:
            words = " | ".join(_words(each) for each in found.rings[:_SHOWN])
            yield f"{len(found.rings)} rings that share no link: {words}"
        edges = ", ".join(
            f"{place}->{parent}" for place, parent in enumerate(tree.parents) if parent is not None
        )
        shape = f"root {tree.root}, depth {tree.depth}"
        yield f"tree: {shape}: {edges}; slowest: {_speed(tree.slowest)}"
        if tree.bound and tree.slowest and tree.bound.level > tree.slowest.level:
            yield f"    with more than two children: slowest: {_speed(tree.bound)}"
    yield from (f"note: {remark}" for remark in found.graph.remarks)


def _speed(edge: Edge | None) -> str:
    from portagpu.base.units import number

    if edge is None:
        return "none"
    if edge.bandwidth_bytes_s is None:
        return f"{edge.word}, bandwidth unknown"
    return f"{edge.word}, {number(edge.bandwidth_bytes_s / 1e9, 3)} GB/s ({edge.source})"


def _words(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers))


def _groups(found: Groups) -> Iterator[str]:
    from portagpu.base.units import count

    machines = count(found.nodes, "machine")
    yield f"mesh: pp {found.pp} x dp {found.dp} x tp {found.tp} over {machines}"
    for title, ranks in (
        ("tensor parallel", found.tensor),
        ("data parallel", found.data),
        ("pipeline", found.pipeline),
    ):
        if len(ranks[0]) > 1:
            more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
            listed = " | ".join(_words(each[:64]) for each in ranks[:_SHOWN])
            yield f"ranks, {title}: {listed}{more}"
    if found.slowest is not None:
        yield f"slowest way within a tensor-parallel group on a machine: {_speed(found.slowest)}"
    yield from (f"finding: {each}" for each in found.findings)


def _launch(found: Placement) -> Iterator[str]:
    """Lines for a shell, in nobody's own words but torch's and the operating system's."""
    from portagpu.machine.placement.graph import numbered

    places = found.graph.places
    local, noun = len(places), _noun(found)
    nodes = found.groups.nodes if found.groups is not None else 1
    pairs = " ".join(f"{rank}:{place}" for rank, place in enumerate(found.order))
    yield f"local rank:{noun}: {pairs}"
    changed = list(found.order) != sorted(found.order)
    if changed and found.environment:
        for name, value in found.environment.items():
            yield f"in this order: {name}={value} (numbers in the order of PCI addresses)"
    several = f"--nnodes={nodes} " if nodes > 1 else ""
    yield f"start: torchrun {several}--nproc-per-node={local} train.py"
    if found.groups is not None:
        shape = f"({found.groups.pp}, {found.groups.dp}, {found.groups.tp})"
        names = 'mesh_dim_names=("pp", "dp", "tp")'
        yield f"in this order: init_device_mesh(device_type, {shape}, {names})"
        if changed:
            first = [list(map(list, plane)) for plane in found.groups.mesh]
            text = str(first) if len(str(first)) < 400 else "the mesh of --json"
            yield f"or with devices as they are: DeviceMesh(device_type, {text}, {names})"
    if any(each.numa_node is not None for each in places):
        bindings: dict[tuple[int, str | None], list[int]] = {}
        for rank, at in enumerate(found.order):
            node = places[at].numa_node
            if node is not None and node >= 0:
                bindings.setdefault((node, places[at].cpus), []).append(rank)
        for (node, cpus), ranks in bindings.items():
            taskset = f", or taskset -c {cpus}" if cpus else ""
            bound = f"numactl --cpunodebind={node} --membind={node}{taskset}"
            yield f"bind {numbered(ranks, 'local rank')}: {bound}"


@click.command()
@click.argument("paths", nargs=-1, metavar="[FILE|FOLDER ...]", type=click.Path())
@replay_option("Look at the settings of this recording.")
@click.option("--strict", is_flag=True, help="Any UNVERIFIED finding lowers PASS to UNVERIFIED.")
@run_json_option
def doctor(
    paths: tuple[str, ...], replay: tuple[str, ...], strict: bool, json_to: str | None
) -> int:
    """Find what makes collectives hang, crawl or lie.

    Files are dumps of torch's flight recorder, logs, and reports in JSON, of all ranks of one run.
    Without files it looks at the settings of this machine. Nothing in a file is run. Each finding
    has its evidence, cause, remedy and source. Exit codes: 0 for PASS, 1 for FAIL or ERROR, 3 if
    nothing was judged, 130 if interrupted.
    """
    from portagpu.checks.collectives_doctor import DoctorOptions
    from portagpu.checks.collectives_doctor import doctor as engine
    from portagpu.cli._run_output import Files, View, deliver

    options = DoctorOptions(
        paths=paths,
        machine=chosen_machine(replay) if replay or not paths else None,
        strict=strict,
        command=["portagpu", *sys.argv[1:]],
    )
    files = Files(json_to)
    run = engine(options, View(files))
    deliver(run, files, list(finding_lines(run)))
    return run.exit_code


_VERBS: Final[dict[str, tuple[str, str]]] = {
    "verify": (
        "portagpu.cli.collectives_sweep:verify",
        "Check the values of collectives and time them, or judge recorded outputs.",
    ),
    "choose": (
        "portagpu.cli.collectives_choose:choose",
        "Say which algorithm would run, how long it takes, and which bucket sizes fit.",
    ),
    "tune": (
        "portagpu.cli.collectives_sweep:tune",
        "Measure ways to perform collectives here, and write a profile of the fastest.",
    ),
    "placement": (
        "portagpu.cli.collectives:placement",
        "Say where ranks belong: rings, domains, affinity and groups over the links of a machine.",
    ),
    "doctor": (
        "portagpu.cli.collectives:doctor",
        "Find what makes collectives hang, crawl or lie.",
    ),
}
"""As ``portagpu.cli._verbs.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def collectives() -> None:
    """Verify, choose, tune and diagnose collectives, and place ranks."""
