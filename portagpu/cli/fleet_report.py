"""``portagpu fleet report``: one HTML page of a whole fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from portagpu.base.errors import ResultError
from portagpu.base.text import one_line, shortened
from portagpu.base.units import count
from portagpu.cli._common import (
    check_kept,
    check_outputs,
    json_option,
    print_lines,
    terminal,
    text_stream,
    usage_errors,
    write_json,
)
from portagpu.cli._tables import VERDICT, aside_lines, first_few, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.reports.fleet.report import FleetReport

_MOST: Final = 12
"""Groups and outliers that are printed; the page and the JSON have all."""
_NAMED: Final = 4
_LONGEST: Final = 60


@click.command()
@click.argument(
    "places", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path)
)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the page here."
)
@json_option
def report(places: tuple[Path, ...], out: Path | None, json_to: str | None) -> int:
    """Say what the results of a whole fleet show: who failed, and who is unlike the others.

    PATH is a folder of a fleet run, or a result file, a bundle, or a folder of these. Nodes of one
    target are compared with each other: measures, levels, noise, pairs and versions. Files that
    cannot be used are named, and the others are used. Exit codes: 0 for PASS, 1 if a node failed or
    is worse than its peers, 3 if a node or a file could not be judged.
    """
    from portagpu.reports.fleet.record import FleetRecordError
    from portagpu.reports.fleet.report import judge
    from portagpu.reports.fleet.result_files import gather
    from portagpu.runs.results.verdicts import exit_code

    check_outputs(out, json_to)
    with usage_errors(ResultError, FleetRecordError):
        fleet = gather(places)
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


def _groups(found: FleetReport) -> Iterator[tuple[str, ...]]:
    from portagpu.suites.performance.fleet import peer_name

    for each in found.alike[:_MOST]:
        blamed = zip(each.nodes, each.devices, strict=True)
        names = first_few((_name(peer_name(*who)) for who in blamed), _NAMED)
        verdict = str(each.verdict or "INCONCLUSIVE")
        where = _name(each.gate or each.state)
        reason = shortened(one_line(each.reason))
        yield verdict, str(len(each.nodes)), where, each.action or "-", f"{reason}: {names}"


def _lines(found: FleetReport) -> Iterator[str]:
    from portagpu.reports.fleet.measures import by_node

    if (more := len(found.alike) - _MOST) > 0:
        yield f"and {count(more, 'reason')} more"
    for unread in found.unread[:_MOST]:
        yield f"not read: {one_line(str(unread.path))}: {one_line(unread.reason)}"
    if (more := len(found.unread) - _MOST) > 0:
        yield f"and {count(more, 'file')} more"
    for name, why in list(found.several_machines.items())[:_MOST]:
        yield f"{_name(name)}: two machines may have this name: {one_line(why)}"
    yield from aside_lines(found.aside)
    if several := sum(each.earlier > 0 for each in found.nodes):
        has = "has" if several == 1 else "have"
        yield f"{count(several, 'node')} {has} several results: a failure stays until it passes"
    for slow in found.slow[:_MOST]:
        yield one_line(slow.sentence)
    worse = by_node(found.worse)
    for node, unlike in list(worse.items())[:_MOST]:
        yield f"{_name(node)}: {one_line(first_few((each.short for each in unlike), 2))}"
    if (more := len(worse) - _MOST) > 0:
        yield f"and {count(more, 'node')} more that are unlike their peers"
    for each in found.differing:
        nodes = sum(len(group.nodes) for group in each.groups)
        usual = f"{each.usual or 'none'} on {count(each.votes, 'node')}"
        most = usual if each.decided else f"{usual}, no majority"
        names = first_few((_name(n) for group in each.groups for n in group.nodes), _NAMED)
        what = f"{_name(each.component)} of {_name(each.hardware)}"
        yield f"{what}: {most}; it differs on {count(nodes, 'node')}: {names}"
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
    return shortened(one_line(text), _LONGEST)
