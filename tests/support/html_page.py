"""A strict reading of an HTML page, for tests."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"input", "meta", "wbr"}


class Page(HTMLParser):
    """A strict reading of a page: every element is closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[tuple[str, str]] = []
        self.broken = False
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        # a word may be broken there, and is one
        self.broken = tag == "wbr"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.broken:
            self.words[-1] = (self.words[-1][0], self.words[-1][1] + data)
        elif data.strip() and self.open[-1] not in ("style", "script"):
            self.words.append((self.open[-1], data))
        self.broken = False

    @property
    def text(self) -> str:
        return " ".join(word for _, word in self.words)


def section(text: str, title: str) -> str:
    """The section of a page with that title."""
    return text.partition(f"<h2>{title}</h2>")[2].partition("</section>")[0]


def matrix_cells(text: str) -> dict[tuple[str, str], str]:
    """(row, column) -> the words of a cell of the matrix."""
    table = section(text, "Matrix")
    head = [Page(cell).text for cell in re.findall("<th scope=.col.*?</th>", table)][1:]
    found = {}
    for row in re.findall("<tr><th scope=.row.*?</tr>", table):
        name = Page(re.findall("<th.*?</th>", row)[0]).text
        for column, cell in zip(head, re.findall("<td>.*?</td>", row), strict=True):
            found[name, column] = Page(cell).text
    return found
