"""``portagpu fleet report``: one HTML page of a whole fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from portagpu.cli._common import (
    check_outputs,
    json_option,
    print_lines,
    terminal,
    text_stream,
    write_json,
)
from portagpu.cli._tables import VERDICT, first_few, print_table
from portagpu.errors import ResultError
from portagpu.text import one_line, shortened
from portagpu.units import count, quantity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.fleet.measures import Unlike
    from portagpu.fleet.report import FleetReport

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
    is slower than its peers, 3 if a node or a file could not be judged.
    """
    from portagpu.cli._run_output import usage_errors
    from portagpu.fleet.record import FleetRecordError
    from portagpu.fleet.report import report as engine
    from portagpu.results.verdicts import exit_code

    check_outputs(out, json_to)
    with usage_errors(ResultError, FleetRecordError):
        found = engine(places)
    if out is not None:
        from portagpu.report.fleet_page import write_fleet_page

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
    for each in found.alike[:_MOST]:
        names = first_few(map(_name, each.nodes), _NAMED)
        verdict = str(each.verdict or "INCONCLUSIVE")
        where = _name(each.gate or each.state)
        reason = shortened(one_line(each.reason))
        yield verdict, str(len(each.nodes)), where, each.action or "-", f"{reason}: {names}"


def _lines(found: FleetReport) -> Iterator[str]:
    if (more := len(found.alike) - _MOST) > 0:
        yield f"and {count(more, 'reason')} more"
    for unread in found.unread[:_MOST]:
        yield f"not read: {one_line(str(unread.path))}: {one_line(unread.reason)}"
    if (more := len(found.unread) - _MOST) > 0:
        yield f"and {count(more, 'file')} more"
    for slow in found.slow[:_MOST]:
        yield one_line(slow.sentence)
    worse = found.worse
    for unlike in worse[:_MOST]:
        yield _outlier(unlike)
    if (more := len(worse) - _MOST) > 0:
        yield f"and {count(more, 'outlier')} more"
    for each in found.differing:
        nodes = sum(len(group.nodes) for group in each.groups)
        most = f"most have {each.usual}" if each.decided else "without a majority"
        names = first_few((_name(n) for group in each.groups for n in group.nodes), _NAMED)
        yield f"{one_line(each.component)}: {count(nodes, 'node')} differ, {most}: {names}"
        for group in each.groups:
            for effect in group.effects:
                side = "below" if effect.relative < 0 else "above"
                yield (
                    f"  those with {group.version}: {effect.measure} is "
                    f"{abs(effect.relative):.1%} {side} those with {each.usual}"
                )
    counted = ", ".join(f"{number} {what}" for what, number in found.counts.items())
    named = len({(each.node, each.device) for each in worse})
    yield (
        f"{found.verdict}: {count(len(found.nodes), 'node')}: {counted}; "
        f"{named} unlike their peers for the worse in {found.limits.comparisons:,} comparisons"
    )


def _outlier(each: Unlike) -> str:
    where = _name(" ".join(filter(None, (each.node, each.device))))
    if each.value is None or each.median is None:
        return f"{where}: {one_line(each.measure)} gave no number"
    values = quantity(each.value, each.unit, like=each.median), quantity(each.median, each.unit)
    far = f" ({each.relative:+.0%})" if each.relative is not None else ""
    return f"{where}: {one_line(each.measure)} is {values[0]}, its peers {values[1]}{far}"


def _name(text: str) -> str:
    return shortened(one_line(text), _LONGEST)
