"""Tables of text: in columns, and on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import Console


def plain(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
    """``rows`` in columns of plain text; the columns named in ``right`` end at one place."""
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


def on_terminal(
    console: Console,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
    bold: Collection[int] = (),
) -> None:
    """``rows`` on a terminal, those whose number is in ``bold`` in bold."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in head:
        table.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for index, row in enumerate(rows):
        table.add_row(*(Text(cell, style="bold" if index in bold else "") for cell in row))
    console.print(table)
