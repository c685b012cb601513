"""``portagpu matrix history compare``, ``regressions`` and ``outliers``."""

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
from portagpu.cli._process import FAILED, NOT_JUDGED
from portagpu.cli._tables import print_table
from portagpu.cli.matrix_history import (
    cell,
    chosen,
    least_option,
    no_measure,
    open_for,
    pick,
    ratio_text,
    store_option,
    which_option,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from portagpu.reports.history.compare import Comparison, Difference
    from portagpu.reports.history.regressions import LevelChange


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@store_option
@least_option
@click.option(
    "--all", "every", is_flag=True, help="Also list measures that are the same or not judged."
)
@json_option
def compare(
    a: str, b: str, place: str, least_percent: float, every: bool, json_to: str | None
) -> int:
    """Compare the measures of B with those of A.

    A and B are runs: an id or its beginning, several with commas, or conditions such as
    host=node-1,torch=2.13.0 (see "runs" for ids and "--of" of other verbs for conditions). A
    measure differs if its medians are further apart than 3.5 times the spread and than --least.
    Exit codes: 0 if nothing is worse, 1 if a measure of B is worse, 3 if nothing was judged.
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
        _print_differences(found, every)
        lines = [f"newest runs: {in_words(changed)}", *_comparison_lines(found)]
        print_lines([one_line(line) for line in lines], text_stream(None))
    if all(each.beyond is None for each in found.differences):
        return NOT_JUDGED
    return FAILED if found.count(WORSE) else 0


def _print_differences(found: Comparison, every: bool) -> None:
    from portagpu.reports.history.compare import ALIKE, UNJUDGED

    quiet = () if every else (ALIKE, UNJUDGED)
    rows = [_difference_cells(each) for each in found.differences if each.word not in quiet]
    if rows:
        head = ("measure", "A", "B", "B / A", "spread", "runs", "")
        print_table(
            text_stream(None), terminal(), head, rows, {"A", "B", "B / A", "spread", "runs"}
        )
        click.echo()


def _difference_cells(each: Difference) -> tuple[str, ...]:
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


def _comparison_lines(found: Comparison) -> Iterator[str]:
    words = dict.fromkeys(each.word for each in found.differences)
    counts = ", ".join(f"{found.count(word)} {word}" for word in sorted(words))
    yield f"{count(len(found.differences), 'measure')} in both{f': {counts}' if counts else ''}"
    for side, only in (("A", found.only_a), ("B", found.only_b)):
        if only:
            yield f"only in {side}: {len(only)}, such as {only[0]}"


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
    help="The rate of false alarms: how often a search may find something if nothing changed.",
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
    changed between the two runs is named. docs/matrix.md has the method. Exit codes: 0 if
    nothing became worse, 1 if something did, 3 if no measure has enough runs.
    """
    store = open_for(place, json_to)
    from portagpu.reports.history.model import WORSE
    from portagpu.reports.history.regressions import MIN_LEVEL_RUNS, level_changes

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
        _print_changes(stream, [each for each in found.changes if every or each.word == WORSE], top)
        other = len(found.changes) - len(found.worse)
        summary = (
            f"{count(len(found.worse), 'regression')} and {count(other, 'other change')} in "
            f"{found.searched} series of {count(len(runs), 'run')}; {found.short} more have fewer "
            f"than {2 * MIN_LEVEL_RUNS} runs"
        )
        odds = f"where nothing changed, at most {100 * rate:g} % of such searches find anything"
        print_lines([*_by_software(found.worse), summary, odds], stream)
    if not found.searched:
        return NOT_JUDGED
    return FAILED if found.worse else 0


def _print_changes(stream: TextIO, changes: Sequence[LevelChange], top: int) -> None:
    if not changes:
        return
    largest = {id(each) for each in sorted(changes, key=_size, reverse=True)[:top]}
    head = ("machine", "measure", "before", "after", "ratio", "since", "software", "")
    # those of one machine together, as they are found
    rows = [_change_cells(each) for each in changes if id(each) in largest]
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


def _change_cells(each: LevelChange) -> tuple[str, ...]:
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


@click.command()
@store_option
@which_option
@least_option
@json_option
def outliers(place: str, which: str | None, least_percent: float, json_to: str | None) -> int:
    """Compare the newest run of each machine with its peers.

    The peers are the devices of that run, the newest runs of other hosts of the target, and up to
    20 earlier runs of the machine. A value is an outlier if it is further from their median than
    3.5 x 1.4826 MAD and than --least. Four values are needed. Exit codes: 0 if none is found,
    1 if one is, 3 if nothing could be compared.
    """
    store = open_for(place, json_to)
    from portagpu.reports.history.compare import outliers as find
    from portagpu.reports.history.compare import recent

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
        return NOT_JUDGED
    return FAILED if found.found else 0
