"""docs/images/layers.svg: the picture of the layers in docs/design.md, drawn.

The colours follow the scheme of the page, light or dark, in a browser and on GitHub; the picture
has a background of its own, so that it can be read where a page does not say its scheme.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/design.md"
_WIDTH, _LEFT, _EDGE = 900, 128, 16
"""Of the picture, of the column with the bands' names, and of its margin, in pixels."""
_BOX, _GAP, _LINE = 26, 6, 34
"""Height of a box, space between boxes, and height of a line of boxes."""
_LETTER: Final = 7.3
"""Width of a letter of 12 pixels in any monospaced font, generously."""
_STYLE: Final = """\
svg{--page:#fff;--ink:#1b1f24;--soft:#57606a;--line:#c3c9d0;--a:#f3f5f8;--b:#e3ebf5}
@media (prefers-color-scheme:dark){svg{--page:#15181d;--ink:#e6e9ed;--soft:#a5aebb;--line:#414a55;\
--a:#1b2027;--b:#26364a}}
.page{fill:var(--page)}.odd{fill:var(--a)}.even{fill:var(--page)}
.box{fill:var(--b);stroke:var(--line)}
text{fill:var(--ink);font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.band{font:600 13px system-ui,sans-serif}.note{fill:var(--soft);font:12px system-ui,sans-serif}"""


def layers_picture() -> str:
    """The SVG."""
    drawn, y = [], _EDGE + 24
    for number, (band, rows) in enumerate(bands(PAGE.read_text("utf-8"))):
        top, y = y, y + 4
        boxes: list[str] = []
        for names in rows or [[]]:  # a room without rows is a band too
            row, y = _row(names, y)
            boxes += row
        kind = "even" if number % 2 else "odd"
        drawn.append(_rect(_EDGE, top, _WIDTH - 2 * _EDGE, y - top, kind))
        drawn.append(f'<text class="band" x="{_EDGE + 12}" y="{top + 22}">{escape(band)}</text>')
        drawn += boxes
    height = y + _EDGE
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    labels = 'role="img" aria-labelledby="title about"'
    note = "Each package imports only from rows below its own."
    about = f"Rooms with their packages, the command line above and the base below. {note}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {labels}>',
            '<title id="title">The layers of PortaGPU</title>',
            f'<desc id="about">{about}</desc>',
            f"<style>{_STYLE}</style>",
            _rect(0, 0, _WIDTH, height, "page"),
            f'<text class="note" x="{_EDGE + 12}" y="{_EDGE + 10}">{note}</text>',
            *drawn,
            "</svg>\n",
        ]
    )


def bands(page: str) -> list[tuple[str, list[list[str]]]]:
    """The name of each band, and its rows of packages, the highest first."""
    block = re.search(r"\n## Layers\n.*?\n```\n(.*?)\n```\n", page, re.DOTALL)
    assert block is not None, "docs/design.md has no picture under '## Layers'"
    found: list[tuple[str, list[list[str]]]] = []
    for line in block[1].splitlines():
        name, names = line[:12].strip(), line[12:].split()
        if name:
            found.append((name, []))
        if names:
            found[-1][1].append(names)
    return found


def _row(names: list[str], y: int) -> tuple[list[str], int]:
    """The boxes of one row, in as many lines as they need, and the height below them."""
    boxes, x = [], float(_LEFT)
    for name in names:
        width = round(len(name) * _LETTER + 16)
        if x + width > _WIDTH - _EDGE - 8:
            x, y = float(_LEFT), y + _LINE - 4
        boxes.append(_rect(round(x), y, width, _BOX, "box", 4))
        boxes.append(f'<text x="{round(x) + 8}" y="{y + 17}">{escape(name)}</text>')
        x += width + _GAP
    return boxes, y + _LINE


def _rect(x: int, y: int, width: int, height: int, kind: str, radius: int = 0) -> str:
    rounded = f' rx="{radius}"' if radius else ""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"{rounded}/>'
