"""``portagpu fleet``: many nodes. ``fleet run`` and ``fleet status`` are in ``fleet_run.py``."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from portagpu.base.errors import ResultError
from portagpu.base.text import one_line, shortened
from portagpu.base.units import count
from portagpu.cli._common import (
    check_kept,
    check_outputs,
    expect_devices_option,
    json_option,
    print_lines,
    require_torch,
    target_option,
    terminal,
    text_stream,
    usage_errors,
    without_collector,
    write_json,
)
from portagpu.cli._process import FAILED
from portagpu.cli._verbs import VerbGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from portagpu.reports.fleet.report import FleetReport
    from portagpu.reports.fleet.result_files import Fleet


_F = TypeVar("_F", bound="Callable[..., Any]")


def program_option(function: _F) -> _F:
    """Add ``--program`` to a verb."""
    return click.option(
        "--program",
        metavar="WORDS",
        help="How a node calls portagpu: a path, or a command in quotes. Default: as here.",
    )(function)


def program_words(given: str | None) -> list[str]:
    """The words of ``--program``; raises UsageError."""
    if given is None:
        from portagpu.base.subprocesses.start import python_command

        return python_command("portagpu")
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise click.UsageError(f"--program {given!r} is not a command: {error}") from error
    if not words:
        raise click.UsageError("--program is empty: give a path, or a command in quotes")
    return words


def _out_option(words: str) -> Callable[[_F], _F]:
    """``--out``, a folder that is needed; ``words`` say what is written there."""
    path = click.Path(file_okay=False, path_type=Path)
    return click.option("-o", "--out", required=True, type=path, metavar="FOLDER", help=words)


@click.command()
@_out_option("Rank 0 writes result.json to this folder.")
@click.option("--backend", metavar="NAME", help="Use this backend. Default: this machine's.")
def rank(out: Path, backend: str | None) -> int:
    """Check and time an all_reduce between the ranks that srun started; fleet run calls this.

    Exit codes: 0 for PASS, 1 for FAIL or ERROR. Only rank 0 writes and prints.
    """
    require_torch("fleet rank")
    from portagpu.devices import registry
    from portagpu.reports.fleet.all_reduce_check import all_reduce
    from portagpu.runs.results.run import new_run

    run = new_run(["portagpu", *sys.argv[1:]])
    done = all_reduce(run, registry.backend(backend))
    if done is None:
        return 0
    written = done.finish().write_json(out / "result.json")
    print_lines([done.summary_line(), f"wrote {written}"], sys.stdout)
    return done.exit_code


@click.command()
@_out_option("Write the scripts and their instructions to this folder.")
@program_option
@expect_devices_option("The option of portagpu health.")
@target_option("The option of portagpu health.")
def scripts(out: Path, program: str | None, expect_devices: int | None, target: str | None) -> int:
    """Write a prolog, an epilog and a HealthCheckProgram that call portagpu health on each node.

    Nothing is installed: README.txt in the folder says how. The prolog and the epilog call no Slurm
    command. The HealthCheckProgram drains a node for a fault, and resumes only what it drained.
    """
    from portagpu.facts.targets import load_target
    from portagpu.facts.targets.load import file_of
    from portagpu.reports.fleet.scripts import write_scripts

    options = []
    if expect_devices is not None:
        options += ["--expect-devices", str(expect_devices)]
    if target is not None:
        found = load_target(target)
        options += ["--target", str(file_of(found) or found.id)]
    written = write_scripts(out.absolute(), program_words(program), options)
    print_lines([f"wrote {path}" for path in written], sys.stdout)
    return 0


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--nodes", metavar="LIST", help="Only these. Default: all nodes that the run in FOLDER drained."
)
def resume(folder: Path, nodes: str | None) -> int:
    """Resume nodes that the fleet run in FOLDER drained, and no others.

    A node is left alone unless Slurm still has it drained with exactly the reason in the record:
    one that an administrator drained, or gave another reason, is theirs. Exit codes: 1 if a node
    was left alone, else 0.
    """
    from portagpu.reports.fleet.scheduler import resume as resume_nodes
    from portagpu.reports.fleet.slurm import UnknownNodes, expand

    with usage_errors(UnknownNodes):
        names = () if nodes is None else expand(nodes)
    outcomes = resume_nodes(folder, names)
    lines = [f"{each.node}  {each.text}" for each in outcomes]
    print_lines(lines or ["no node of this run is drained"], sys.stdout)
    return 0 if all(each.done for each in outcomes) else FAILED


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--node", required=True, metavar="NAME", help="The node, as fleet report names it.")
@click.option(
    "--device",
    default="",
    metavar="ID",
    help="Its UUID, or its PCI address, or its name.  [default: all devices of the node]",
)
@click.option("--replaced", is_flag=True, help="Another device is in its place.")
@click.option(
    "--cleared", is_flag=True, help="The device was examined, and the cause was somewhere else."
)
@click.option("--reason", required=True, metavar="TEXT", help="What was done, in one line.")
def clear(folder: Path, node: str, device: str, replaced: bool, cleared: bool, reason: str) -> None:
    """Record that a device was replaced or cleared, in FOLDER next to its results.

    A value that was silently wrong, and a device that is missing, stay failures until then,
    whatever passes later. After --replaced nothing of the old device counts. After --cleared its
    wrong values no longer count, and the node is INCONCLUSIVE until what failed is run again.
    """
    from portagpu.base.text import did_you_mean, one_line
    from portagpu.reports.bundles.document import write_clearance
    from portagpu.reports.fleet.record import FleetRecordError
    from portagpu.reports.fleet.result_files import gather
    from portagpu.runs.ledger import Relief

    if replaced == cleared:
        raise click.UsageError("give either --replaced or --cleared")
    if not reason.strip():
        raise click.UsageError("--reason is empty: write what was done")
    with usage_errors(ResultError, FleetRecordError):
        results = gather([folder])
    if node not in results.nodes:
        known = list(results.nodes)
        hint = did_you_mean(node, known, f"nodes are {', '.join(known[:5])}")
        raise click.UsageError(f"{folder} has no result of the node {one_line(node)!r}: {hint}")
    identity = results.device(node, device) if device else ""
    if identity is None:
        known = sorted(results.devices(node))
        hint = did_you_mean(device, known, f"devices are {', '.join(known) or 'not named'}")
        raise click.UsageError(f"no result of {node} names the device {one_line(device)!r}: {hint}")
    path = write_clearance(
        folder,
        node=node,
        device=identity,
        what=Relief.REPLACED if replaced else Relief.CLEARED,
        reason=one_line(reason),
        now=datetime.now(UTC),
    )
    click.echo(f"wrote {path}")


_MAX_ROWS: Final = 12
"""Groups and outliers that are printed; the page and the JSON have all."""
_MAX_NAMES: Final = 4
_MAX_CHARS: Final = 60


@click.command()
@click.argument("places", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the page to this file.",
)
@click.option(
    "--history",
    "store",
    metavar="FILE|URL",
    help="Take results from this store (portagpu matrix history): those of the files in PATH that "
    "it has, which are not read again, or without PATH all of its runs.",
)
@click.option(
    "--of",
    "which",
    metavar="RUNS",
    help="Only these runs of the store, such as since=2026-01-01. Not with PATH.",
)
@json_option
def report(
    places: tuple[Path, ...],
    out: Path | None,
    store: str | None,
    which: str | None,
    json_to: str | None,
) -> int:
    """Say what the results of a fleet show: which nodes failed, and which differ from the others.

    PATH is a folder of a fleet run, or a result file, a bundle, or a folder of these. Nodes of one
    target are compared with each other: measures, levels, noise, pairs and versions. Files that
    cannot be used are named, and the others are used. Beyond some thousand nodes, import the
    results into a store as they come, and name it with --history. Exit codes: 0 for PASS, 1 if a
    node failed or is worse than its peers, 3 if a node or a file could not be judged.
    """
    if not places and store is None:
        raise click.UsageError("Missing argument 'PATH...', or --history with a store of results")
    if which is not None and (places or store is None):
        raise click.UsageError("--of chooses runs of --history, where no PATH is given")
    check_outputs(out, json_to)
    with without_collector():
        return _report(places, out, store, which, json_to)


def _report(
    places: tuple[Path, ...],
    out: Path | None,
    store: str | None,
    which: str | None,
    json_to: str | None,
) -> int:
    from portagpu.cli._tables import VERDICT, print_table
    from portagpu.reports.fleet.report import judge
    from portagpu.runs.results.verdicts import exit_code

    fleet = _fleet(places, store, which, json_to)
    check_kept(fleet.files, out, json_to)
    found = judge(fleet)
    if out is not None:
        from portagpu.reports.html.fleet_page import write_fleet_page

        write_fleet_page(found, out)
    write_json(found.to_json(), json_to)
    stream = text_stream(json_to)
    groups = list(_groups(found))
    if groups:
        head = (VERDICT, "nodes", "gate", "action", "reason")
        print_table(stream, terminal(stream), head, groups, {"nodes"})
        click.echo(file=stream)
    print_lines(list(_lines(found)), stream)
    if out is not None:
        click.echo(f"wrote {out}", file=stream)
    return exit_code(found.verdict)


def _fleet(
    places: tuple[Path, ...], place: str | None, which: str | None, json_to: str | None
) -> Fleet:
    """What the places hold, and what of it the store at ``place`` has; without places its runs."""
    from portagpu.reports.fleet.record import FleetRecordError
    from portagpu.reports.fleet.result_files import fleet_of, gather

    known = None
    if place is not None:
        from portagpu.cli.matrix_history import chosen, open_for
        from portagpu.reports.condensed.packed import KnownFiles

        with open_for(place, json_to) as store:
            if not places:
                return fleet_of(store.node_runs(chosen(store, which)))
            known = KnownFiles({mark: packed for _, mark, packed in store.condensed()})
    with usage_errors(ResultError, FleetRecordError):
        return gather(places, known=known)


def _groups(found: FleetReport) -> Iterator[tuple[str, ...]]:
    from portagpu.cli._tables import first_few
    from portagpu.suites.performance.fleet import peer_name

    for each in found.reasons[:_MAX_ROWS]:
        blamed = zip(each.nodes, each.devices, strict=True)
        names = first_few((_name(peer_name(*who)) for who in blamed), _MAX_NAMES)
        verdict = str(each.verdict or "INCONCLUSIVE")
        where = _name(each.gate or each.state)
        reason = shortened(one_line(each.reason))
        yield verdict, str(len(each.nodes)), where, each.action or "-", f"{reason}: {names}"


def _lines(found: FleetReport) -> Iterator[str]:
    from portagpu.cli._tables import aside_lines, first_few
    from portagpu.reports.fleet.measures import by_node

    if (more := len(found.reasons) - _MAX_ROWS) > 0:
        yield f"and {count(more, 'reason')} more"
    for unread in found.unread[:_MAX_ROWS]:
        yield f"not read: {one_line(str(unread.path))}: {one_line(unread.reason)}"
    if (more := len(found.unread) - _MAX_ROWS) > 0:
        yield f"and {count(more, 'file')} more"
    for name, why in list(found.several_machines.items())[:_MAX_ROWS]:
        yield f"{_name(name)}: two machines may have this name: {one_line(why)}"
    yield from aside_lines(found.aside)
    if several := sum(each.earlier > 0 for each in found.nodes):
        has = "has" if several == 1 else "have"
        yield f"{count(several, 'node')} {has} several results: a failure stays until it passes"
    for slow in found.slow[:_MAX_ROWS]:
        yield one_line(slow.sentence)
    worse = by_node(found.worse)
    for node, unlike in list(worse.items())[:_MAX_ROWS]:
        yield f"{_name(node)}: {one_line(first_few((each.short for each in unlike), 2))}"
    if (more := len(worse) - _MAX_ROWS) > 0:
        yield f"and {count(more, 'node')} more that differ from their peers"
    for each in found.differing:
        usual = f"{each.usual or 'none'} on {count(each.votes, 'node')}"
        most = usual if each.decided else f"{usual}, no majority"
        others = [
            f"{one_line(group.version or 'none')} on {count(len(group.nodes), 'node')}: "
            + first_few(map(_name, group.nodes), _MAX_NAMES)
            for group in each.groups[:_MAX_NAMES]
        ]
        if (more := len(each.groups) - len(others)) > 0:
            others.append(f"{count(more, 'version')} more")
        what = f"{_name(each.component)} of {_name(each.hardware)}"
        yield "; ".join([f"{what}: {most}", *others])
        for group in each.groups:
            far = sorted(group.effects, key=lambda effect: -abs(effect.relative))
            if far:
                measures = first_few((f"{e.measure} {e.relative:+.1%}" for e in far), 3)
                yield f"  with {one_line(group.version or 'none')}: {one_line(measures)}"
    counted = ", ".join(f"{number} {what}" for what, number in found.counts.items())
    yield (
        f"{found.verdict}: {count(len(found.nodes), 'node')}: {counted}; {len(worse)} worse than "
        f"their peers, in {found.limits.comparisons:,} comparisons"
    )


def _name(text: str) -> str:
    return shortened(one_line(text), _MAX_CHARS)


_VERBS: Final[dict[str, tuple[str, str]]] = {
    "run": (
        "portagpu.cli.fleet_run:run",
        "Run bring-up, conformance, benchmarks, screens or collectives on many nodes.",
    ),
    "status": (
        "portagpu.cli.fleet_run:status",
        "Show how far a fleet run is, and which nodes failed.",
    ),
    "resume": (
        "portagpu.cli.fleet:resume",
        "Resume the nodes that a fleet run drained, and no others.",
    ),
    "rank": (
        "portagpu.cli.fleet:rank",
        "Be one rank of a pair or group of nodes; fleet run calls this.",
    ),
    "scripts": (
        "portagpu.cli.fleet:scripts",
        "Write a prolog, an epilog and a HealthCheckProgram for Slurm.",
    ),
    "clear": (
        "portagpu.cli.fleet:clear",
        "Record that a device was replaced or cleared, so that its failures no longer count.",
    ),
    "report": (
        "portagpu.cli.fleet:report",
        "Write one HTML page of a fleet: which nodes failed, and which differ from the others.",
    ),
}
"""As ``portagpu.cli._verbs.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def fleet() -> None:
    """Check many nodes through Slurm, ssh or Kubernetes, and say what they show together."""
