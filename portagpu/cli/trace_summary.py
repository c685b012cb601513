"""``portagpu trace summary`` and ``diff``: what captures say, and what changed between two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from portagpu.base.text import one_line
from portagpu.base.units import count
from portagpu.cli._common import (
    STDOUT,
    check_outputs,
    json_option,
    print_lines,
    terminal,
    text_stream,
    write_json,
)
from portagpu.cli._process import FAILED, NOT_JUDGED
from portagpu.cli.trace import check_not_read, load, summary_of, write_csv
from portagpu.traces.analysis.comparison import ALLOWABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from portagpu.facts.captures.model import Capture
    from portagpu.traces.analysis.comparison import Comparison, Difference
    from portagpu.traces.analysis.model import Summary


TABLES: Final = ("device", "category", "kernel", "range", "collective", "operator", "api")
_SHOWN: Final = {"device": 32, "category": 16, "kernel": 10, "range": 10, "collective": 5}
_ON_HOST: Final = {"operator": 20, "api": 10}
"""Rows of each table where all are shown, with these where nothing ran on a device; with --by it is
_TOP."""
_TOP: Final = 20
_WIDE: Final = 140
_ONLY_WIDE: Final = frozenset(
    (
        "median",
        "p95",
        "min",
        "max",
        "exposed",
        "bytes",
        "library",
        "compute",
        "communication",
        "copy",
        "median gap",
        "longest gap",
        "median launch",
    )
)
"""Columns that a terminal narrower than _WIDE does not show."""
_MAX_CHARS: Final = 100
"""Characters of a name in the text; JSON, CSV and HTML have all."""


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True))
@click.option(
    "--by",
    type=click.Choice(TABLES),
    help="Show only this table. Default: those of devices, or of the host if nothing ran on one.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Show at most N rows of a table. Default: {_TOP} with --by.",
)
@click.option(
    "--range",
    "within",
    metavar="GLOB",
    help="Count only what was started within ranges of this name; * and ? match.",
)
@click.option("--device", type=click.IntRange(min=0), metavar="N", help="Count only this device.")
@click.option(
    "--csv",
    "csv_to",
    metavar="FILE|-",
    help="Also write all rows of the table of --by as CSV (default: kernel; operator where nothing "
    "ran on a device); '-' is standard output.",
)
@click.option("--html", "html_to", metavar="FILE", help="Also write a page with all tables.")
@json_option
def summary(
    paths: tuple[str, ...],
    by: str | None,
    top: int | None,
    within: str | None,
    device: int | None,
    csv_to: str | None,
    html_to: str | None,
    json_to: str | None,
) -> int:
    """Show where the time of devices went: by device, category, kernel, range and rank.

    If nothing ran on a device, show the operators of the framework on the host.

    FILE is what a profiler wrote, of any vendor or of torch; a folder stands for all traces in it.
    Several files are the ranks of one run. Exit codes: 1 if a file could not be read, the others
    are shown; 3 if the files have no event and no sum of times, or if more of their rows were left
    out than read.
    """
    from portagpu.cli.trace import read_captures
    from portagpu.traces.analysis.reading import to_document
    from portagpu.traces.analysis.summary import NEEDED

    if json_to == csv_to == STDOUT:
        raise click.UsageError("--json and --csv both go to standard output: name a file for one")
    if html_to == STDOUT:
        raise click.UsageError("--html needs the name of a file")
    check_outputs(json_to, csv_to, html_to)
    check_not_read(paths, json_to, csv_to, html_to)
    captures, whole = read_captures(paths, NEEDED)
    if not captures:
        return FAILED
    found = summary_of(captures, device, within)
    mostly_lost = found.dropped > _read(captures)
    _show(found, text_stream(STDOUT if csv_to == STDOUT else json_to), by, top)
    if mostly_lost:
        click.echo(f"portagpu: more rows were left out than read: {found.dropped:,}", err=True)
    write_json(to_document(found), json_to)
    if csv_to is not None:
        default = "kernel" if found.rows.num_rows else "operator"
        write_csv(*_plain_rows(found, by or default), csv_to)
    if html_to is not None:
        from portagpu.base.files import write_atomic
        from portagpu.reports.html.trace_page import render

        click.echo(f"wrote {write_atomic(html_to, render(found))}", err=True)
    if not whole:
        return FAILED
    tables = (found.rows, found.operators)
    is_known = any(found.events.values()) or any(each and each.num_rows for each in tables)
    return 0 if is_known and not mostly_lost else NOT_JUDGED


def _read(captures: Sequence[Capture]) -> int:
    """How many rows of events, sums and counters the captures have."""
    return sum(
        part.num_rows
        for each in captures
        for part in (*each.tables.values(), each.totals, each.metrics)
        if part is not None
    )


def _show(found: Summary, stream: TextIO, by: str | None, top: int | None) -> None:
    from portagpu.cli._tables import print_table
    from portagpu.traces.analysis.model import TEXTS, table_of

    shown = 0
    most_of = _SHOWN if found.rows.num_rows else _SHOWN | _ON_HOST
    for name in (by,) if by else most_of:
        head, rows = table_of(found, name)
        if not rows:
            if by:
                click.echo(f"nothing to show by {by}", file=stream)
            continue
        if shown:
            click.echo("", file=stream)
        shown += 1
        most = top or (_TOP if by else most_of[name])
        console = terminal(stream)
        is_narrow = console is not None and console.width < _WIDE
        places = [at for at, each in enumerate(head) if not (is_narrow and each in _ONLY_WIDE)]
        cells = [[_cut(one_line(row[at])) for at in places] for row in rows[:most]]
        chosen = [head[at] for at in places]
        print_table(stream, console, chosen, cells, set(chosen) - TEXTS)
        if len(rows) > most:
            left = count(len(rows) - most, "more row")
            click.echo(f"and {left}: --top, --json and --csv", file=stream)
    print_lines(list(_remarks(found)), stream)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"


def _remarks(found: Summary) -> Iterator[str]:
    yield ""
    parts = [f"{number} {kind}" for kind, number in found.events.items()]
    yield f"{count(len(found.sources), 'capture')}, events: {', '.join(parts) or 'none'}"
    if found.rows.num_rows and not any(found.events.values()):
        yield "these are sums that the tool wrote: it gives no time at which anything began"
    if not found.rows.num_rows:
        yield "nothing ran on a device in what is shown"
    if found.dropped:
        yield f"left out: {count(found.dropped, 'row')}"
    for name, value in found.details.items():
        if name.startswith("all of "):
            yield f"{one_line(name)}: {one_line(value)}"
    yield from (f"problem: {one_line(each)}" for each in found.problems)
    yield from (
        f"the profiler says ({each.level}): {one_line(each.text)}"
        for each in found.messages
        if each.level != "info"
    )


def _plain_rows(found: Summary, by: str) -> tuple[Sequence[str], list[dict[str, Any]]]:
    """The columns' names, and all rows in whole ns."""
    from portagpu.traces.analysis.model import (
        CATEGORY_COLUMNS,
        COLLECTIVE_COLUMNS,
        OPERATOR_COLUMNS,
        RANGE_COLUMNS,
        SUMMARY_COLUMNS,
        DeviceTime,
    )
    from portagpu.traces.analysis.reading import to_document

    fields = [name for name in DeviceTime.__dataclass_fields__ if name != "by_category_ns"]
    key, columns = {
        "device": ("devices", fields),
        "category": ("categories", list(CATEGORY_COLUMNS)),
        "kernel": ("rows", list(SUMMARY_COLUMNS)),
        "range": ("ranges", list(RANGE_COLUMNS)),
        "collective": ("collectives", list(COLLECTIVE_COLUMNS)),
        "operator": ("operators", list(OPERATOR_COLUMNS)),
        "api": ("api_ns", ["name", "total_ns"]),
    }[by]
    rows = to_document(found)[key]
    if by == "api":
        rows = [{"name": name, "total_ns": ns} for name, ns in rows.items()]
    return columns, rows


_PARTS: Final = {
    "step": "steps",
    "time": "times of a device",
    "category": "categories",
    "range": "ranges",
    "kernel": "kernels",
}
_MAX_NAME_CHARS: Final = 60


@click.command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option(
    "--allow",
    multiple=True,
    metavar="REASON",
    help=f"Compare even if these differ: {', '.join(ALLOWABLE)}. Repeat it for several. The "
    "verdict is then UNVERIFIED.",
)
@click.option(
    "--device", type=click.IntRange(min=0), metavar="N", help="Compare only this device of each."
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Rows of each table; JSON and CSV have all.",
)
@click.option("--csv", "csv_to", metavar="FILE|-", help="Also write every difference as CSV.")
@json_option
def diff(
    a: str,
    b: str,
    allow: tuple[str, ...],
    device: int | None,
    top: int,
    csv_to: str | None,
    json_to: str | None,
) -> int:
    """Compare two captures, or summaries, by category, range and kernel.

    A and B are files of a profiler, folders with one file for each rank, or documents of
    "trace summary --json". Times are those of one device and step. Steps that repeat give the noise
    floor. Exit codes: 0 if B is not slower, 1 if its steps are slower than noise explains,
    3 if nothing was judged.
    """
    from portagpu.runs.results.verdicts import exit_code
    from portagpu.traces.analysis.compare import compare, with_labels

    for each in allow:
        if each not in ALLOWABLE:
            known = ", ".join(ALLOWABLE)
            raise click.UsageError(f"--allow: {one_line(each)!r} is none of {known}")
    if json_to == STDOUT and csv_to == STDOUT:
        raise click.UsageError("--json and --csv cannot both write to standard output")
    check_outputs(json_to, csv_to)
    check_not_read((a, b), json_to, csv_to)
    one, other = (with_labels(*load([each], device)) for each in (a, b))
    found = compare(one, other, allow)
    write_json(found.to_json(), json_to)
    if csv_to is not None:
        write_csv(_COLUMNS, found.to_json()["differences"], csv_to)
    if STDOUT not in (json_to, csv_to):
        _print(found, top)
    return exit_code(found.verdict)


def _print(found: Comparison, top: int) -> None:
    from portagpu.cli._tables import print_table

    stream = text_stream(None)
    for part, title in _PARTS.items():
        rows = [each for each in found.differences if each.part == part]
        if rows:
            click.echo(f"{title} ({min(top, len(rows))} of {len(rows)}):", file=stream)
            head = (part, "A ms", "B ms", "change", "floor ms", "verdict")
            cells = [_cells(each) for each in rows[:top]]
            print_table(stream, terminal(), head, cells, {"A ms", "B ms", "change", "floor ms"})
            click.echo(file=stream)
    print_lines(list(_lines(found)), stream)


def _cells(each: Difference) -> tuple[str, ...]:
    name = one_line(each.name) or "(no name)"
    shown = name if len(name) <= _MAX_NAME_CHARS else name[: _MAX_NAME_CHARS - 3] + "..."
    change = "" if each.ratio is None else f"{each.ratio - 1:+.1%}"
    return shown, _ms(each.a_ns), _ms(each.b_ns), change, _ms(each.floor_ns), each.word


def _ms(value_ns: float | None) -> str:
    return "" if value_ns is None else f"{value_ns / 1e6:.3f}"


def _lines(found: Comparison) -> Iterator[str]:
    for refusal in found.refusals:
        what = "not compared" if refusal.whole else "left out"
        yield f"{what}: {one_line(refusal.why)}"
        yield f"    instead: {refusal.instead}"
    for refusal in found.allowed:
        yield f"allowed: {one_line(refusal.why)}"
    for note in found.notes:
        yield f"note: {one_line(note)}"
    yield f"{found.verdict}: {one_line(found.sentence)}"


_COLUMNS: Final = (
    "part",
    "name",
    "a_ns",
    "b_ns",
    "change_ns",
    "ratio",
    "floor_ns",
    "verdict",
    "calls_a",
    "calls_b",
)
