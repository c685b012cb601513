"""Packages import downwards only, also inside functions: docs/design.md has the picture."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.looped import looped

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "design.md"
BACKENDS = sorted(path.name for path in (ROOT / "backends").iterdir() if path.is_dir())


def layers(page: str) -> list[list[str]]:
    """The rows of the picture under "Layers", the top one first: what stands in each."""
    block = re.search(r"\n## Layers\n.*?\n```\n(.*?)\n```\n", page, re.DOTALL)
    assert block is not None, "docs/design.md has no picture under '## Layers'"
    # the first column names a band of rows
    return [line[12:].split() for line in block.group(1).splitlines() if line[12:].strip()]


ROWS = layers(PAGE.read_text("utf-8"))
HEIGHT = {name: len(ROWS) - row for row, names in enumerate(ROWS) for name in names}


def bands(page: str, heading: str, name: str) -> dict[str, str]:
    """Module or package -> its band, in the picture under ``heading``; ``name`` matches one."""
    found, band = {}, ""
    picture = page.partition(f"\n## {heading}\n")[2].split("```\n")[1].partition("\nbackends/")[0]
    for line in picture.splitlines():
        # a band stands alone, or before the names of its first row
        start = re.match(r" {0,2}([a-z]+)( +|$)", line)
        band = start[1] if start else band
        names = re.match(rf" *((?:{name}(?: +|$))*)", line[start.end() :] if start else line)
        found |= {each.removesuffix(".py").strip("/"): band for each in names[1].split()}
    return found


def package(module: str) -> str:
    """The box of a module in the picture: a package or module below portagpu, or a backend."""
    first, *rest = module.split(".")
    return rest[0] if first == "portagpu" and rest else first


def imported(path: Path) -> set[str]:
    """Every module that a file names in an import, at whatever place and for whatever purpose."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the whole name of what is imported"
            found |= {f"{node.module}.{each.name}" for each in node.names}
    return {name for name in found if name.split(".")[0] in {"portagpu", *BACKENDS}}


def files(folder: Path) -> dict[str, list[Path]]:
    """The files of each box below ``folder``."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.py")):
        relative = path.relative_to(folder.parent).with_suffix("")
        found.setdefault(package(".".join(relative.parts)), []).append(path)
    return found


OWN = files(ROOT / "portagpu")
OUTSIDE = {"__init__", "__main__"}
"""The public names and the command, which are above all."""


def test_every_package_is_in_the_picture_once() -> None:
    drawn = [name for row in ROWS for name in row]
    assert sorted(drawn) == sorted({*OWN} - OUTSIDE)


def test_the_list_of_modules_has_the_bands_of_the_picture() -> None:
    page = PAGE.read_text("utf-8")
    drawn = bands(page, "Layers", r"\w+")
    listed = bands(page, "Where things are", r"\w+(?:\.py|/)")
    del listed["portagpu"]
    assert len(listed) > 40
    assert sorted(drawn) == sorted(HEIGHT)
    assert listed.items() <= drawn.items(), sorted(listed.items() - drawn.items())


@looped("name", sorted({*OWN} - OUTSIDE))
def test_a_package_imports_what_is_below_it(name: str) -> None:
    upwards = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in OWN[name]
        for module in sorted(imported(path))
        if (to := package(module)) != name and HEIGHT.get(to, len(ROWS) + 1) >= HEIGHT[name]
    ]
    assert not upwards


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_imports_what_is_below_the_registry(name: str) -> None:
    upwards = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in (ROOT / "backends" / name).rglob("*.py")
        for module in sorted(imported(path))
        if package(module) not in BACKENDS
        and HEIGHT.get(package(module), len(ROWS) + 1) >= HEIGHT["registry"]
    ]
    assert not upwards


def test_nothing_imports_a_backend_by_name() -> None:
    """They are found as entry points: a distribution of its own is one as much as ours."""
    named = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in (ROOT / "portagpu").rglob("*.py")
        for module in sorted(imported(path))
        if module.split(".")[0] in BACKENDS
    ]
    assert not named
