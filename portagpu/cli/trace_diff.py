"""``portagpu trace diff``: two runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from portagpu.base.text import one_line
from portagpu.cli._common import (
    STDOUT,
    check_outputs,
    json_option,
    print_lines,
    terminal,
    text_stream,
    write_json,
)
from portagpu.cli._traces import check_not_read, load, write_csv
from portagpu.traces.analysis.comparison import ALLOWABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.traces.analysis.comparison import Comparison, Difference

_PARTS: Final = {
    "step": "steps",
    "time": "times of a device",
    "category": "categories",
    "range": "ranges",
    "kernel": "kernels",
}
_LONGEST_NAME: Final = 60


@click.command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option(
    "--allow",
    multiple=True,
    metavar="REASON",
    help=f"Compare although this differs: {', '.join(ALLOWABLE)}. Repeat it for several. The "
    "verdict is then UNVERIFIED.",
)
@click.option("--device", type=click.IntRange(min=0), metavar="N", help="Only this device of each.")
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
    floor. Exit codes: 0 where B is not slower, 1 where its steps are slower than noise explains,
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
    shown = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."
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
