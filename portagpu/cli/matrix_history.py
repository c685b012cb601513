"""``portagpu matrix history``: a store of runs. ``matrix_history_changes.py`` compares them."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click

from portagpu.base.errors import MissingDependency
from portagpu.base.text import did_you_mean, excerpt, one_line, shortened
from portagpu.base.units import quantity
from portagpu.cli._common import (
    STDOUT,
    check_finite,
    check_kept,
    check_outputs,
    json_option,
    live_console,
    print_lines,
    terminal,
    text_stream,
    without_collector,
    write_json,
)
from portagpu.cli._process import FAILED, NOT_JUDGED
from portagpu.cli._tables import aside_lines, print_table
from portagpu.cli._verbs import VerbGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.reports.history.compare import Trend
    from portagpu.reports.history.model import StoredRun
    from portagpu.reports.history.store import Store


_F = TypeVar("_F", bound="Callable[..., Any]")

_LARGE: Final = 1e6
_MAX_CELL_CHARS: Final = 100


def store_option(function: _F) -> _F:
    """Add ``--store`` to a verb."""
    return click.option(
        "--store",
        "place",
        required=True,
        metavar="FILE|URL",
        help="The store: a file (SQLite), or postgresql+psycopg://USER@HOST/NAME.",
    )(function)


def _last_option(words: str) -> Callable[[_F], _F]:
    """``--last``, how many of the newest are shown; ``words`` say of what."""
    number = click.IntRange(min=1)
    return click.option(
        "--last", type=number, default=20, show_default=True, metavar="N", help=words
    )


def which_option(function: _F) -> _F:
    """Add ``--of`` to a verb: the runs that it looks at."""
    return click.option(
        "--of",
        "which",
        metavar="RUNS",
        help="Only these runs, such as host=node-1,since=2026-01-01: conditions on host, "
        "target, backend, verdict, since, until, or a software component.",
    )(function)


def least_option(function: _F) -> _F:
    """Add ``--least`` to a verb: the smallest difference that counts, in percent."""
    return click.option(
        "--least",
        "least_percent",
        type=click.FloatRange(min=0),
        default=5.0,
        show_default=True,
        callback=check_finite,
        metavar="PERCENT",
        help="Smaller differences do not count.",
    )(function)


def open_for(place: str, json_to: str | None = None, *, create: bool = False) -> Store:
    """The store; raises MissingDependency where what it needs is not installed.

    Raises UsageError where ``json_to`` is the store itself.
    """
    check_kept([place], json_to)
    try:
        from portagpu.reports.history.store import open_store
    except ModuleNotFoundError as error:
        from portagpu.base.plugins import install

        raise MissingDependency(f"history needs {error.name}: {install('history')}") from error
    return open_store(place, create=create)


def no_measure(measure: str, store: Store) -> click.UsageError:
    """The error for a measure that no run has, or none of those that were chosen."""
    known = {name.id for name in store.names()}
    named = excerpt(measure)
    if measure in known:
        return click.UsageError(f"these runs have no measure {named!r} that can be compared")
    if not known:
        return click.UsageError(
            "the runs of the store have no measures: import runs of portagpu bench"
        )
    hint = did_you_mean(measure, known, f"measures are such as {excerpt(min(known))}")
    return click.UsageError(f"the store has no measure {named!r}: {hint}")


def cell(text: object) -> str:
    """A name in a table: on one line, and no longer than can be read there."""
    return shortened(one_line(str(text)), _MAX_CELL_CHARS)


def ratio_text(ratio: float | None) -> str:
    """A ratio in a table: "0.800"; empty where there is none."""
    if ratio is None:
        return ""
    return f"{ratio:.3f}" if abs(ratio) < _LARGE else f"{ratio:.3g}"


def chosen(store: Store, which: str | None) -> list[StoredRun]:
    """The runs that ``--of`` names, the oldest first; all without. Raises UsageError for none."""
    runs = store.runs()
    if not runs:
        raise click.UsageError(
            "the store has no runs: add some with portagpu matrix history import"
        )
    return pick(which, runs) if which else runs


def pick(words: str, runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The runs that ``words`` name; raises UsageError where there is none."""
    from portagpu.reports.history.model import SelectionError, select

    try:
        return select(words, runs)
    except SelectionError as error:
        raise click.UsageError(str(error)) from error


@click.command("import")
@click.argument(
    "paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path)
)
@store_option
@json_option
def import_runs(paths: tuple[Path, ...], place: str, json_to: str | None) -> int:
    """Add results and bundles to the store, which is made if it does not exist.

    Each PATH is a file that --json or --out wrote, or a folder: then all such files in it.
    Nothing is added twice, so a folder may be imported again. A file that is refused adds nothing;
    the others are imported. Exit codes: 1 if a file was refused, 3 if no file is a
    result or a bundle, else 0.
    """
    check_outputs(json_to)
    check_kept(paths, json_to)
    store = open_for(place, json_to, create=True)
    from portagpu.reports.bundles.document import Aside
    from portagpu.reports.history.files import Outcome, import_files

    counts: Counter[Outcome] = Counter()
    refused = []
    aside: list[Aside] = []
    console = live_console(sys.stderr)
    waiting = console.status("") if console else contextlib.nullcontext()
    with store, without_collector(), waiting as status:
        for each in import_files(store, paths):
            counts[each.outcome] += 1
            if status is not None:
                status.update(f"{counts.total()} files")
            if each.outcome is Outcome.PASSED_OVER:
                aside.append(Aside(each.path, each.why.removeprefix(f"{each.path}: ")))
            if each.outcome is Outcome.REFUSED:
                refused.append({"file": str(each.path), "reason": each.why})
                click.echo(f"portagpu: {one_line(each.why)}", file=sys.stderr)
    print_lines(aside_lines(aside), sys.stderr)
    document = {outcome.name.lower(): counts[outcome] for outcome in Outcome}
    write_json({**document, "reasons": refused}, json_to)
    summary = ", ".join(f"{counts[each]} {each}" for each in Outcome if counts[each])
    click.echo(
        summary or "no files: there is no *.json in these folders", file=text_stream(json_to)
    )
    if refused:
        return FAILED
    return 0 if counts[Outcome.ADDED] + counts[Outcome.THERE] else NOT_JUDGED


@click.command()
@store_option
@which_option
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="The folder for the files; made if it does not exist.",
)
def export(place: str, which: str | None, out: Path) -> int:
    """Write one file for each run, byte for byte as it was imported.

    A file is named after the day and the digest of its document, so that exporting again writes the
    same files.
    """
    store = open_for(place)
    from portagpu.reports.history.files import export_files

    with store:
        count = sum(1 for _ in export_files(store, chosen(store, which), out))
    click.echo(f"wrote {count} file{'' if count == 1 else 's'} into {out}")
    return 0


@click.command()
@store_option
@which_option
@_last_option("Only the newest N; JSON has all.")
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


@click.command()
@click.argument("measure", metavar="MEASURE")
@store_option
@which_option
@_last_option("Only the newest N rows; JSON has all.")
@json_option
def trend(measure: str, place: str, which: str | None, last: int, json_to: str | None) -> int:
    """Show MEASURE, an id such as memory/copy, over time.

    One row for each target, host and device. If there is only one, its runs are listed one by one.
    """
    store = open_for(place, json_to)
    from portagpu.reports.history.compare import trends

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


@click.command()
@store_option
@which_option
@click.option(
    "--probe",
    "probes",
    multiple=True,
    metavar="NAME",
    help="A row for each of these probes, or patterns such as 'products/*'. Default: all together.",
)
@click.option(
    "--days",
    type=click.IntRange(min=1, max=36_500),
    default=30,
    show_default=True,
    metavar="N",
    help="Only runs of the last N days: devices fail more often as they age.",
)
@json_option
def screens(
    place: str, which: str | None, probes: tuple[str, ...], days: int, json_to: str | None
) -> int:
    """Show how many results screens judged on each device, and which rate that excludes.

    Screens are those of portagpu screen and of bring-up. Where none of n results was wrong, rates
    above 3/n are excluded at 95 %. Exit codes: 1 if a result was wrong, 3 without a screen, else 0.
    """
    store = open_for(place, json_to)
    from datetime import UTC, datetime

    from portagpu.base.text import fits
    from portagpu.base.units import number
    from portagpu.reports.history.model import ALL, device_counts

    with store:
        found = store.judged(chosen(store, which))
    counts = device_counts(found, datetime.now(UTC).timestamp(), days)
    shown = [
        each
        for each in counts
        if (any(fits(one, each.probe) for one in probes) if probes else each.probe == ALL)
    ]
    write_json({"days": days, "devices": [each.to_json() for each in counts]}, json_to)
    stream = text_stream(json_to)
    if not shown:
        click.echo("no screen of these runs in this time", file=stream)
        return NOT_JUDGED

    def rate(value: float | None, wrong: bool) -> str:
        if value is None:
            return "wrong" if wrong else "-"
        return f"{value:.2g}"

    rows = [
        (
            cell(each.machine),
            cell(each.device),
            *([cell(each.probe)] if probes else []),
            number(each.newest, 12),
            rate(each.newest_rate, each.newest_was_wrong),
            str(each.runs),
            number(each.recent, 12),
            rate(each.recent_rate, each.wrong > 0),
        )
        for each in shown
    ]
    right = ("newest run", "excludes", "runs", f"in {days} days", "exclude")
    if json_to != STDOUT:
        head = ("machine", "device", *(["probe"] if probes else []), *right)
        print_table(stream, terminal(), head, rows, right)
    return FAILED if any(each.wrong for each in shown) else 0


_VERBS: Final[dict[str, tuple[str, str]]] = {
    "import": (
        "portagpu.cli.matrix_history:import_runs",
        "Add results and bundles to a store.",
    ),
    "export": (
        "portagpu.cli.matrix_history:export",
        "Write the documents of a store as files again.",
    ),
    "runs": ("portagpu.cli.matrix_history:runs", "List the runs of a store."),
    "compare": (
        "portagpu.cli.matrix_history_changes:compare",
        "Compare two runs, or two sets of runs, measure by measure.",
    ),
    "trend": (
        "portagpu.cli.matrix_history:trend",
        "Show one measure over time, for each target and host.",
    ),
    "screens": (
        "portagpu.cli.matrix_history:screens",
        "Show how many results screens judged on each device, and the rate that this excludes.",
    ),
    "regressions": (
        "portagpu.cli.matrix_history_changes:regressions",
        "Find where measures became worse for good, and which software changed there.",
    ),
    "outliers": (
        "portagpu.cli.matrix_history_changes:outliers",
        "Find devices, nodes and runs that differ from their peers.",
    ),
}
"""As ``portagpu.cli._verbs.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def history() -> None:
    """Keep runs in a store (SQLite or PostgreSQL), and say what changed between them."""
