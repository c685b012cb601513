"""``portagpu matrix history outliers``: what is unlike its peers now."""

from __future__ import annotations

import click

from portagpu.base.text import one_line
from portagpu.base.units import count, quantity
from portagpu.cli._common import (
    STDOUT,
    json_option,
    terminal,
    text_stream,
    write_json,
)
from portagpu.cli._errors import FAILED
from portagpu.cli._history import (
    EXIT_NOTHING,
    cell,
    chosen,
    least_option,
    open_for,
    store_option,
    which_option,
)
from portagpu.cli._tables import print_table


@click.command()
@store_option
@which_option
@least_option
@json_option
def outliers(place: str, which: str | None, least_percent: float, json_to: str | None) -> int:
    """Compare the newest run of each machine with its peers.

    The peers are the devices of that run, the newest runs of other hosts of the target, and up to
    20 earlier runs of the machine. A value is unlike them if it is further from their median than
    3.5 x 1.4826 MAD and than --least. Four values are needed. Exit codes: 0 where all are alike, 1
    where one is not, 3 if nothing could be compared.
    """
    store = open_for(place, json_to)
    from portagpu.reports.history.outliers import outliers as find
    from portagpu.reports.history.outliers import recent

    with store:
        runs = recent(chosen(store, which))
        series = store.series(runs)
    found = find(series, runs, least_percent / 100)
    write_json(
        {
            "least": least_percent / 100,
            "judged": found.judged,
            "too_few": found.few,
            "outliers": [each.to_json() for each in found.found],
        },
        json_to,
    )
    if json_to != STDOUT:
        stream = text_stream(json_to)
        rows = [
            (
                each.among,
                cell(each.machine),
                cell(each.what),
                cell(each.who),
                one_line(quantity(each.value, each.what.unit, like=each.median)),
                one_line(quantity(each.median, each.what.unit)),
                str(each.peers),
                each.word,
            )
            for each in found.found
        ]
        if rows:
            head = ("among", "machine", "measure", "who", "value", "median", "peers", "")
            print_table(stream, terminal(), head, rows, {"value", "median", "peers"})
            click.echo()
        click.echo(
            f"{count(len(rows), 'outlier')} in {count(found.judged, 'comparison')} of "
            f"{count(len({run.machine for run in runs}), 'machine')}; {found.few} more have too "
            "few peers",
            file=stream,
        )
    if not found.judged:
        return EXIT_NOTHING
    return FAILED if found.found else 0
