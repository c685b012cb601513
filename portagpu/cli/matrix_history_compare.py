"""``portagpu matrix history compare``: two runs, or two sets of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from portagpu.base.text import one_line
from portagpu.base.units import count, quantity
from portagpu.cli._common import (
    STDOUT,
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
    open_for,
    pick,
    ratio_text,
    store_option,
)
from portagpu.cli._tables import print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.reports.history.compare import Comparison, Difference


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@store_option
@least_option
@click.option("--all", "every", is_flag=True, help="Also list what is alike and not judged.")
@json_option
def compare(
    a: str, b: str, place: str, least_percent: float, every: bool, json_to: str | None
) -> int:
    """Compare the measures of B with those of A.

    A and B are runs: an id or its beginning, several with commas, or conditions such as
    host=node-1,torch=2.13.0 (see "runs" for ids and "--of" of other verbs for conditions). A
    measure differs if its medians are further apart than 3.5 times the spread and than --least.
    Exit codes: 0 where nothing is worse, 1 where a measure of B is worse, 3 if nothing was judged.
    """
    store = open_for(place, json_to)
    from portagpu.reports.history.compare import compare as compare_runs
    from portagpu.reports.history.model import WORSE, changed_versions, in_words

    with store:
        runs = chosen(store, None)
        first, second = pick(a, runs), pick(b, runs)
        keys = {run.key for run in (*first, *second)}
        both = [run for run in runs if run.key in keys]
        series = store.series(both)
    places = {run.key: at for at, run in enumerate(both)}
    found = compare_runs(
        series,
        [places[run.key] for run in first],
        [places[run.key] for run in second],
        least_percent / 100,
    )
    changed = changed_versions(first[-1], second[-1])
    write_json(
        {
            "a": [run.id for run in first],
            "b": [run.id for run in second],
            "least": least_percent / 100,
            "versions": {name: list(pair) for name, pair in changed.items()},
            "differences": [each.to_json() for each in found.differences],
            "only_a": [each.to_json() for each in found.only_a],
            "only_b": [each.to_json() for each in found.only_b],
        },
        json_to,
    )
    if json_to != STDOUT:
        _print(found, every)
        lines = [f"newest runs: {in_words(changed)}", *_lines(found)]
        print_lines([one_line(line) for line in lines], text_stream(None))
    if all(each.beyond is None for each in found.differences):
        return EXIT_NOTHING
    return FAILED if found.count(WORSE) else 0


def _print(found: Comparison, every: bool) -> None:
    from portagpu.reports.history.compare import ALIKE, NOT_JUDGED

    quiet = () if every else (ALIKE, NOT_JUDGED)
    rows = [_cells(each) for each in found.differences if each.word not in quiet]
    if rows:
        head = ("measure", "A", "B", "B / A", "spread", "runs", "")
        print_table(
            text_stream(None), terminal(), head, rows, {"A", "B", "B / A", "spread", "runs"}
        )
        click.echo()


def _cells(each: Difference) -> tuple[str, ...]:
    unit = each.what.unit
    return (
        cell(each.what),
        one_line(quantity(each.a, unit)),
        one_line(quantity(each.b, unit)),
        ratio_text(each.ratio),
        "" if each.spread is None else one_line(quantity(each.spread, unit)),
        f"{each.runs_a}, {each.runs_b}",
        each.word,
    )


def _lines(found: Comparison) -> Iterator[str]:
    words = dict.fromkeys(each.word for each in found.differences)
    counts = ", ".join(f"{found.count(word)} {word}" for word in sorted(words))
    yield f"{count(len(found.differences), 'measure')} in both{f': {counts}' if counts else ''}"
    for side, only in (("A", found.only_a), ("B", found.only_b)):
        if only:
            yield f"only in {side}: {len(only)}, such as {only[0]}"
