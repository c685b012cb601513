"""The book: each page has its place, its pictures can be read, and a page that loads others fails.

``tox run -e docs`` builds it, with warnings as errors, and checks what was built.
"""

from __future__ import annotations

import importlib
import re
import xml.etree.ElementTree as ET
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ROOT
from tests.support.built_book import problems
from tests.support.cli_page import cli_page, escaped
from tests.support.layers_picture import bands, layers_picture

if TYPE_CHECKING:
    from pathlib import Path

BOOK = ROOT / "docs" / "book"
PICTURES = ("docs/images/flow.svg", "docs/images/layers.svg")


@pytest.fixture(scope="module")
def book() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        # its parts stand next to it
        patch.syspath_prepend(str(BOOK))
        return importlib.import_module("book")


def test_every_page_has_one_place_in_the_navigation(book: Any) -> None:
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *BOOK.glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
    there = {str(page.relative_to(ROOT).with_suffix("")) for page in pages} - {"docs/book/index"}
    placed = Counter(page for pages in book.groups().values() for page in pages)
    assert not there - set(placed), "put it in docs/book/nav.toml"
    assert max(placed.values()) == 1


def test_a_page_that_is_not_written_yet_is_left_out(
    book: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "ROOT", tmp_path)
    assert not any(book.groups().values())


def test_a_link_to_a_folder_leads_to_its_readme(book: Any, tmp_path: Path) -> None:
    (tmp_path / "with").mkdir()
    (tmp_path / "with/README.md").touch()
    (tmp_path / "without").mkdir()
    (tmp_path / "file.py").touch()
    text = "[a](with/) [b](without) [c](file.py) [d](https://x.org) ![e](with)\n"
    filled = "[a](with/README.md) b [c](file.py) [d](https://x.org) ![e](with)\n"
    assert book.fill(text, tmp_path) == filled


def test_a_mark_becomes_its_part(book: Any, tmp_path: Path) -> None:
    filled = book.fill("x\n<!-- book: navigation -->\ny", tmp_path)
    assert "```{toctree}" in filled
    assert "/docs/bringup\n" in filled
    with pytest.raises(KeyError, match="nothing"):
        book.fill("<!-- book: nothing -->", tmp_path)


def test_every_fact_and_every_source_has_its_place(book: Any) -> None:
    from portagpu.facts.targets import load_targets

    sources = book.sources()
    text = "".join(map(book.facts, ("nvidia", "amd", "cpu")))
    for target in load_targets().values():
        part = text.partition(f"\n## {target.id}\n")[2] or text.partition(f"## {target.id}\n")[2]
        part = part.partition("\n## ")[0]
        rows = re.findall(r"^\| `([\w./-]+)` \|", part, re.MULTILINE)
        assert rows[: len(target.facts)] == sorted(target.facts)
        assert rows[len(target.facts) :] == [each.metric for each in target.all_expectations]
    for name in set(re.findall(r"sources\.md#([\w-]+)", text)):
        assert re.search(rf"^## {name}$", sources, re.MULTILINE | re.IGNORECASE), name


def test_the_reference_has_every_public_name_once(book: Any) -> None:
    pytest.importorskip("torch")
    import portagpu
    from portagpu.base.lazy import stub_names

    text = book.names() + book.contract()
    listed = Counter(
        re.findall(r"^\.\. auto(?:class|function|data):: portagpu\.([\w.]+)", text, re.MULTILINE)
    )
    assert max(listed.values()) == 1
    last = {name.rpartition(".")[2] for name in listed} | {
        found.rpartition(".")[2] for found in re.findall(r"automodule:: ([\w.]+)", text)
    }
    homes = stub_names(portagpu.__spec__)
    inside = {name for name, home in homes.items() if home == "portagpu.devices.contract"}
    assert set(portagpu.__all__) - {"__version__", *inside} <= last


def test_the_page_of_commands_has_every_option() -> None:
    page = cli_page()
    assert "\n## portagpu matrix history trend\n" in page
    assert "| `-o, --out FOLDER` |" in page
    assert "| `--json FILE\\|-` |" in page
    assert "--help" not in page.partition("\n## ")[2].replace("portagpu targets --help", "")
    assert escaped("a|b_*<c> [x>=1]") == "a|b\\_\\*\\<c> \\[x>=1]"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_says_what_it_shows_and_loads_nothing(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    root = ET.fromstring(text)  # noqa: S314 - our own file
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    labelled = (root.get("aria-labelledby") or "").split()
    assert [root.find(f"{space}{each}").get("id") for each in ("title", "desc")] == labelled
    assert not re.search(r"(?:href|src|url)\W+(?:https?:)?//", text)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_can_be_read_on_light_and_on_dark(name: str) -> None:
    style = (ROOT / name).read_text("utf-8")
    schemes = re.findall(r"svg\{(--[^}]*)\}", style)
    assert len(schemes) == 2, "one scheme for light and one for dark"
    for scheme in schemes:
        colour = dict(re.findall(r"--(\w+):(#\w+)", scheme))
        for text in ("ink", "soft"):
            for ground in ("page", "a", "b"):
                found = contrast(colour[text], colour[ground])
                assert found >= 4.5, f"{text} on {ground}: {found:.1f} (WCAG 2.2, 1.4.3)"


def contrast(first: str, second: str) -> float:
    """The contrast ratio of WCAG 2.2 of two colours, "#rgb" or "#rrggbb"."""
    low, high = sorted(map(luminance, (first, second)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(each * 2 for each in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    ]
    return sum(each * weight for each, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def test_the_picture_of_the_layers_has_every_band() -> None:
    page = "\n## Layers\n\n```\ntop         a b\n            c\nbase        d\n```\n"
    assert bands(page) == [("top", [["a", "b"], ["c"]]), ("base", [["d"]])]


def test_a_room_without_rows_is_drawn_apart_from_the_next() -> None:
    (first, second) = re.findall(
        r'class="band" x="\d+" y="(\d+)">(?:cli|reports)<', layers_picture()
    )
    assert int(second) - int(first) > 20


def test_a_built_page_that_loads_from_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("@font-face{src:url('https://fonts.example/a.woff2')}")
    (tmp_path / "code.js").write_text('fetch("https://count.example/me")')
    (tmp_path / "index.html").write_text(
        '<link rel="stylesheet" href="//cdn.example/x.css"><script src="http://cdn.example/x.js">'
        '</script><img srcset="a.png 1x, https://cdn.example/b.png 2x"><iframe src="x.html">'
        '</iframe><style>@import "https://cdn.example/y.css"</style>'
        '<a href="https://elsewhere.example/">a link is not a load</a>'
    )
    found = "\n".join(problems(tmp_path))
    for name in ("fonts.", "count.", "/x.css", "/x.js", "/b.png", "/y.css"):
        assert name in found
    assert "elsewhere" not in found
    assert len(found.splitlines()) == 6


def test_a_link_inside_the_book_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">a</h1><a href="#top">1</a><a href="b.html#here">2</a>'
        '<a href="b.html#there">3</a><a href="c.html">4</a>'
    )
    (tmp_path / "b.html").write_text('<p id="here">b</p>')
    assert list(problems(tmp_path)) == [
        "a.html links to b.html#there, and that page has no such heading",
        "a.html links to c.html, which is not there",
    ]


def test_an_empty_folder_is_not_a_book(tmp_path: Path) -> None:
    assert list(problems(tmp_path)) == [f"{tmp_path} has no pages"]
