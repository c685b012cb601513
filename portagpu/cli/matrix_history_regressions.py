"""``portagpu matrix history regressions``: where measures became worse for good."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TextIO

import click

from portagpu.base.text import one_line
from portagpu.base.units import count, quantity
from portagpu.cli._common import (
    STDOUT,
    check_finite,
    json_option,
    print_lines,
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
    no_measure,
    open_for,
    ratio_text,
    store_option,
    which_option,
)
from portagpu.cli._tables import print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.reports.history.regressions import LevelChange


@click.command()
@click.argument("measure", required=False, metavar="[MEASURE]")
@store_option
@which_option
@least_option
@click.option(
    "--rate",
    type=click.FloatRange(min=0, max=0.5, min_open=True),
    default=0.05,
    show_default=True,
    callback=check_finite,
    metavar="FRACTION",
    help="How often such a search may find something where nothing changed.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Rows of the table, the largest changes; JSON has all.",
)
@click.option("--all", "every", is_flag=True, help="Also list what became better or different.")
@json_option
def regressions(
    measure: str | None,
    place: str,
    which: str | None,
    least_percent: float,
    rate: float,
    top: int,
    every: bool,
    json_to: str | None,
) -> int:
    """Find changes of level of every measure, or of MEASURE, on each target and host.

    A change needs four runs before and after it, and about five to be found. The software that
    changed between the two runs is named. docs/history.md has the method. Exit codes: 0 where
    nothing became worse, 1 where something did, 3 if no measure has enough runs.
    """
    store = open_for(place, json_to)
    from portagpu.reports.history.changepoints import SHORTEST
    from portagpu.reports.history.model import WORSE
    from portagpu.reports.history.regressions import level_changes

    with store:
        runs = chosen(store, which)
        series = store.series(runs, measure)
        if measure is not None and not series:
            raise no_measure(measure, store)
    found = level_changes(series, runs, rate=rate, least=least_percent / 100)
    write_json(
        {
            "rate": rate,
            "least": least_percent / 100,
            "searched": found.searched,
            "short": found.short,
            "changes": [each.to_json() for each in found.changes],
        },
        json_to,
    )
    if json_to != STDOUT:
        stream = text_stream(json_to)
        _print(stream, [each for each in found.changes if every or each.word == WORSE], top)
        other = len(found.changes) - len(found.worse)
        told = (
            f"{count(len(found.worse), 'regression')} and {count(other, 'other change')} in "
            f"{found.searched} series of {count(len(runs), 'run')}; {found.short} more have fewer "
            f"than {2 * SHORTEST} runs"
        )
        odds = f"where nothing changed, at most {100 * rate:g} % of such searches find anything"
        print_lines([*_by_software(found.worse), told, odds], stream)
    if not found.searched:
        return EXIT_NOTHING
    return FAILED if found.worse else 0


def _print(stream: TextIO, changes: Sequence[LevelChange], top: int) -> None:
    if not changes:
        return
    largest = {id(each) for each in sorted(changes, key=_size, reverse=True)[:top]}
    head = ("machine", "measure", "before", "after", "ratio", "since", "software", "")
    # those of one machine together, as they are found
    rows = [_cells(each) for each in changes if id(each) in largest]
    print_table(stream, terminal(), head, rows, {"before", "after", "ratio"})
    if len(changes) > top:
        click.echo(f"and {len(changes) - top} smaller ones: --top and --json", file=stream)
    click.echo(file=stream)


def _size(change: LevelChange) -> float:
    """How much the level changed: 1 is to twice or half of it; from, to or over 0 is the most."""
    ratio = change.ratio or 0.0
    return abs(math.log2(ratio)) if ratio > 0 else math.inf


def _by_software(worse: Sequence[LevelChange]) -> list[str]:
    """How much became worse with each change of software, the most first."""
    from portagpu.reports.history.model import in_words

    groups: dict[str, list[LevelChange]] = {}
    for each in worse:
        groups.setdefault(in_words(each.versions), []).append(each)
    return [
        f"{one_line(software)}: {count(len(found), 'regression')} on "
        f"{count(len({each.machine for each in found}), 'machine')}"
        for software, found in sorted(groups.items(), key=lambda pair: -len(pair[1]))
    ]


def _cells(each: LevelChange) -> tuple[str, ...]:
    from portagpu.reports.history.model import in_words

    unit = each.what.unit
    return (
        cell(each.machine),
        cell(each.what),
        one_line(quantity(each.before, unit)),
        one_line(quantity(each.after, unit)),
        ratio_text(each.ratio),
        each.first.started,
        cell(in_words(each.versions)),
        each.word,
    )
