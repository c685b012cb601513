"""``portagpu matrix history runs``: what a store holds."""

from __future__ import annotations

import click

from portagpu.base.text import one_line
from portagpu.cli._common import STDOUT, json_option, terminal, text_stream, write_json
from portagpu.cli._history import cell, chosen, open_for, store_option, which_option
from portagpu.cli._tables import print_table


@click.command()
@store_option
@which_option
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Only the newest N; JSON has all.",
)
@json_option
def runs(place: str, which: str | None, last: int, json_to: str | None) -> int:
    """List runs, the newest last."""
    with open_for(place, json_to) as store:
        found = chosen(store, which)
    write_json({"runs": [run.to_json() for run in found]}, json_to)
    if json_to == STDOUT:
        return 0
    stream = text_stream(json_to)
    rows = [
        (
            one_line(run.id),
            run.started,
            cell(run.machine.host),
            cell(run.machine.target or ""),
            run.verdict,
            str(run.measures),
        )
        for run in found[-last:]
    ]
    head = ("run", "started", "host", "target", "verdict", "measures")
    print_table(stream, terminal(), head, rows, {"measures"})
    if len(found) > last:
        click.echo(f"and {len(found) - last} older runs: --last and --json", file=stream)
    return 0
