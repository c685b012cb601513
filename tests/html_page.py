"""A strict reading of an HTML page, for tests."""

from __future__ import annotations

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
