"""Tables of text and the reasons below them: in columns, and on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TextIO

import click

from portagpu.results.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from rich.console import Console

    from portagpu.results.run import Result

VERDICT: Final = "verdict"
"""The title of a column whose cells have the colours of their verdicts."""
_COLOURS: Final = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.ERROR: "bold red",
    Verdict.UNVERIFIED: "yellow",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.SKIP: "dim",
}
_WORST_FIRST: Final = (
    Verdict.ERROR,
    Verdict.FAIL,
    Verdict.INCONCLUSIVE,
    Verdict.UNVERIFIED,
    Verdict.SKIP,
)


def show(
    stream: TextIO,
    console: Console | None,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
    bold: Collection[int] = (),
) -> None:
    """A table on a terminal, or in columns of plain text where there is none.

    The columns named in ``right`` end at one place; rows whose number is in ``bold`` are bold.
    """
    if console is None:
        click.echo(plain(head, rows, right), file=stream)
    else:
        _on_terminal(console, head, rows, right, bold)


def plain(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
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


def _on_terminal(
    console: Console,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str],
    bold: Collection[int],
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in head:
        # on a narrow terminal the others are folded first
        whole = title in (head[0], VERDICT)
        side: Literal["left", "right"] = "right" if title in right else "left"
        table.add_column(title, justify=side, overflow="fold", no_wrap=whole)
    for index, row in enumerate(rows):
        weight = "bold" if index in bold else ""
        table.add_row(
            *(
                Text(cell, style=_COLOURS[Verdict(cell)] if title == VERDICT else weight)
                for title, cell in zip(head, row, strict=True)
            )
        )
    console.print(table)


def reasons(results: Sequence[Result], named: Callable[[Result], str], most: int) -> list[str]:
    """A line for each reason, the worst first; results that share one are named together.

    ``most`` of them are; the rest are counted.
    """
    lines = []
    for verdict in _WORST_FIRST:
        by_reason: dict[str, list[str]] = {}
        for result in results:
            if result.verdict is verdict and result.reason:
                by_reason.setdefault(result.reason, []).append(named(result))
        lines += [f"{verdict}: {some(names, most)}: {why}" for why, names in by_reason.items()]
    return lines


def some(names: Iterable[str], most: int) -> str:
    """The first ``most`` names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return f"{', '.join(listed[:most])}{more}"
