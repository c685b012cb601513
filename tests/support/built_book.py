"""Checks the pages of the built book: ``python tests/support/built_book.py build/book``.

A page may load nothing from elsewhere, so that the book opens without a network and informs nobody
who reads it. Each link inside the book leads to a file, and to an element with that id.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOADS: Final = {
    "audio": "src",
    "embed": "src",
    "form": "action",
    "iframe": "src",
    "img": "src",
    "input": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "track": "src",
    "video": "src",
}
"""Element -> the attribute from which a browser loads by itself, or to which it sends."""
_IN_STYLES: Final = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")
_IN_SCRIPTS: Final = re.compile(r"""(?:fetch|import|importScripts)\(\s*["'](https?://[^"']+)""")


@dataclass
class Page(HTMLParser):
    """What a page loads, links to and has: ``read`` fills it."""

    path: Path
    loads: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        text = self.path.read_text("utf-8")
        self.feed(text)
        self.close()
        self.loads += _IN_STYLES.findall(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in _LOADS:
            self.loads.append(given.get(_LOADS[tag], ""))
        self.loads += [part.split()[0] for part in given.get("srcset", "").split(",") if part]


def problems(folder: Path) -> Iterator[str]:
    """One line for each thing that is wrong with the book in ``folder``."""
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    if not pages:
        yield f"{folder} has no pages"
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        yield from (f"{name} loads {each}" for each in page.loads if _is_elsewhere(each))
        for link in dict.fromkeys(page.links):
            target = _target(path, link)
            if target is None:
                continue
            place, anchor = target
            if not place.exists():
                yield f"{name} links to {link}, which is not there"
            elif anchor and place in pages and anchor not in pages[place].ids:
                yield f"{name} links to {link}, and that page has no such heading"
    for path in sorted(folder.rglob("*.css")):
        found = _IN_STYLES.findall(path.read_text("utf-8"))
        yield from (f"{path.relative_to(folder)} loads {each}" for each in found)
    for path in sorted(folder.rglob("*.js")):
        found = _IN_SCRIPTS.findall(path.read_text("utf-8"))
        yield from (f"{path.relative_to(folder)} loads {each}" for each in found)


def _is_elsewhere(address: str) -> bool:
    return bool(urlsplit(address).netloc)


def _target(page: Path, link: str) -> tuple[Path, str] | None:
    """The file and the anchor of a link inside the book; None for one that leaves it."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    place = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    return place, unquote(parts.fragment)


def main() -> None:
    """Print what is wrong with the book in the folder that is the argument; exit code 1 then."""
    found = list(problems(Path(sys.argv[1])))
    print(
        "\n".join(found) or "every link inside the book leads somewhere, and no page loads others"
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
