"""``portagpu matrix history trend``: one measure over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

import click

from portagpu.base.text import one_line
from portagpu.base.units import quantity
from portagpu.cli._common import STDOUT, json_option, terminal, text_stream, write_json
from portagpu.cli._history import cell, chosen, no_measure, open_for, store_option, which_option
from portagpu.cli._tables import print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.reports.history.trend import Trend


@click.command()
@click.argument("measure", metavar="MEASURE")
@store_option
@which_option
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Only the newest N rows; JSON has all.",
)
@json_option
def trend(measure: str, place: str, which: str | None, last: int, json_to: str | None) -> int:
    """Show MEASURE, an id such as memory/copy, over time.

    One row for each target, host and device; its runs one by one where there is only one such row.
    """
    store = open_for(place, json_to)
    from portagpu.reports.history.trend import trends

    with store:
        runs = chosen(store, which)
        found = trends(store.series(runs, measure), runs)
        if not found:
            raise no_measure(measure, store)
    write_json({"measure": measure, "trends": [each.to_json() for each in found]}, json_to)
    if json_to != STDOUT:
        stream = text_stream(json_to)
        (_print_points if len(found) == 1 else _print_rows)(stream, found, last)
    return 0


def _print_rows(stream: TextIO, found: Sequence[Trend], last: int) -> None:
    rows = []
    for each in found[-last:]:
        unit, summary = each.what.unit, each.summary
        values = (each.values[0], each.values[-1], summary.median, summary.spread)
        shown = (one_line(quantity(value, unit, like=summary.median)) for value in values)
        rows.append((cell(each.machine), cell(each.what), str(summary.n), *shown))
    right = ("runs", "first", "newest", "median", "MAD")
    print_table(stream, terminal(), ("machine", "measure", *right), rows, right)
    if len(found) > last:
        click.echo(f"and {len(found) - last} more rows: --last and --json", file=stream)


def _print_points(stream: TextIO, found: Sequence[Trend], last: int) -> None:
    (one,) = found
    click.echo(f"{cell(one.what)}: {cell(one.machine)}", file=stream)
    rows = [
        (
            run.started,
            one_line(run.id),
            one_line(quantity(value, one.what.unit, like=one.summary.median)),
            "" if spread is None else one_line(quantity(spread, one.what.unit)),
        )
        for run, value, spread in list(zip(one.runs, one.values, one.spreads, strict=True))[-last:]
    ]
    print_table(stream, terminal(), ("started", "run", "value", "MAD"), rows, ("value", "MAD"))
    if len(one.runs) > last:
        click.echo(f"and {len(one.runs) - last} older runs: --last and --json", file=stream)
