"""Tables, in colour on a terminal or as plain columns; reasons below them, and findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TextIO

import click

from portagpu.base.text import one_line, printable_lines
from portagpu.cli._common import results_line
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from rich.console import Console

    from portagpu.reports.bundles.document import Aside
    from portagpu.runs.results.run import Result, Run


VERDICT: Final = "verdict"
"""The title of the column whose cells are coloured by verdict."""
_COLOURS: Final = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.ERROR: "bold red",
    Verdict.UNVERIFIED: "yellow",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.SKIP: "dim",
}
_MIN_WIDTH: Final = 8
"""No column of words is folded to less, unless its words are shorter."""
_WORST_FIRST: Final = (
    Verdict.ERROR,
    Verdict.FAIL,
    Verdict.INCONCLUSIVE,
    Verdict.UNVERIFIED,
    Verdict.SKIP,
)


def print_table(
    stream: TextIO,
    console: Console | None,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
    bold: Collection[int] = (),
) -> None:
    """Print a table with rich, or in plain columns if ``console`` is None.

    The columns named in ``right`` are right-aligned; the rows numbered in ``bold`` are bold.
    """
    rows = [[*map(printable_lines, row)] for row in rows]
    if console is None:
        click.echo(plain_table(head, rows, right), file=stream)
    else:
        _print_rich_table(console, head, rows, right, bold)


def plain_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()
) -> str:
    """``rows`` in columns of plain text."""
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    lines = []
    for row in table:
        cells = [
            f"{cell:>{width}}" if title in right else f"{cell:<{width}}"
            for title, cell, width in zip(head, row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _print_rich_table(
    console: Console,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str],
    bold: Collection[int],
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    widths = _fitting_widths(head, rows, console.width)
    for title, width in zip(head, widths, strict=True):
        # where nothing fits, rich folds the other columns
        whole = width is None and title in (head[0], VERDICT)
        side: Literal["left", "right"] = "right" if title in right else "left"
        # what is not folded is cut, and without a mark an H200 would be an H20
        cut: Literal["fold", "ellipsis"] = "ellipsis" if whole else "fold"
        table.add_column(title, justify=side, overflow=cut, no_wrap=whole, width=width)
    for index, row in enumerate(rows):
        weight = "bold" if index in bold else ""
        table.add_row(
            *(
                Text(cell, style=_COLOURS[Verdict(cell)] if title == VERDICT else weight)
                for title, cell in zip(head, row, strict=True)
            )
        )
    console.print(table)


def _fitting_widths(
    head: Sequence[str], rows: Sequence[Sequence[str]], room: int
) -> Sequence[int | None]:
    """Widths with which the columns fit into ``room``; None for each where they cannot.

    The widest give way: between words, then the first column too, then within words. Verdicts and
    the words of the first column stay whole.
    """
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    words = [
        max(len(word) for cell in column for word in cell.split() or [""]) for column in columns
    ]
    fixed = [number for number, title in enumerate(head) if number == 0 or title == VERDICT]
    whole = [widths[n] if n in fixed else word for n, word in enumerate(words)]
    parts = [word if n in fixed else min(word, _MIN_WIDTH) for n, word in enumerate(words)]
    for least in (whole, words, parts):
        while sum(widths) + 2 * (len(widths) - 1) > room:
            wider = [number for number, width in enumerate(widths) if width > least[number]]
            if not wider:
                break
            widths[max(wider, key=widths.__getitem__)] -= 1
        else:
            return widths
    return [None] * len(widths)


def reason_lines(results: Sequence[Result], named: Callable[[Result], str], most: int) -> list[str]:
    """A line for each reason, the worst verdict first.

    It names at most ``most`` of the results with that reason and counts the rest.
    """
    lines = []
    for verdict in _WORST_FIRST:
        by_reason: dict[str, list[str]] = {}
        for result in results:
            if result.verdict is verdict and result.reason:
                by_reason.setdefault(result.reason, []).append(named(result))
        lines += [f"{verdict}: {first_few(names, most)}: {why}" for why, names in by_reason.items()]
    return lines


def first_few(names: Iterable[str], most: int) -> str:
    """The first ``most`` names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return f"{', '.join(listed[:most])}{more}"


def aside_lines(aside: Iterable[Aside]) -> list[str]:
    """What was not counted, a line for each reason with the first files."""
    reasons: dict[str, list[str]] = {}
    for each in aside:
        reasons.setdefault(each.reason, []).append(one_line(str(each.path)))
    return [
        f"left out: {first_few(paths, 3)}: {one_line(reason)}" for reason, paths in reasons.items()
    ]


def finding_lines(run: Run) -> Iterator[str]:
    """Every finding, and the summary of the run."""
    for result in run.results:
        yield from _finding(result)
    yield ""
    yield results_line(run)
    yield run.summary_line()


def _finding(result: Result) -> Iterator[str]:
    from portagpu.runs.results.wording import without_device

    where = f" {result.device}" if result.device else ""
    yield f"{result.verdict} {result.id.rpartition('/')[2]}{where}: {without_device(result)}"
    if str(result.verdict) in ("PASS", "SKIP"):
        return
    for key in ("cause", "remedy", "source"):
        yield f"    {key}: {result.extra[key]}"
