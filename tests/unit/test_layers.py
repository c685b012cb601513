"""Imports go downwards only, also inside functions: docs/design.md has the picture of the rooms."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.layers_picture import PAGE, bands
from tests.support.looped import looped

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "portagpu"
BACKENDS = sorted(path.name for path in (ROOT / "backends").iterdir() if path.is_dir())
PICTURE = bands(PAGE.read_text("utf-8"))
ROOMS = [room for room, _ in PICTURE]
ROWS = [(room, names) for room, rows in PICTURE for names in rows]
HEIGHT = {(room, name): len(ROWS) - row for row, (room, names) in enumerate(ROWS) for name in names}
TOP = {
    room: max((HEIGHT[each] for each in HEIGHT if each[0] == room), default=len(ROWS) + 1)
    for room in ROOMS
}
PUBLIC = {path.stem for path in PRODUCT.glob("*.py") if not path.stem.startswith("_")}
"""The modules next to the rooms: public names of what lies in the rooms."""


@cache
def imported(path: Path) -> frozenset[tuple[str, ...]]:
    """Every module that a file names in an import, at whatever place and for whatever purpose."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the whole name of what is imported"
            found |= {f"{node.module}.{each.name}" for each in node.names}
    return frozenset(tuple(name.split(".")) for name in found)


def box(names: tuple[str, ...]) -> tuple[str, str]:
    """The room of a module and its place there; a module next to the rooms has no room."""
    _, first, *rest = (*names, "")
    return (first, rest[0]) if first in ROOMS else ("", first)


def boxes(room: str) -> dict[str, list[Path]]:
    """The packages and modules of a room, and the files of each."""
    found: dict[str, list[Path]] = {}
    for path in sorted((PRODUCT / room).rglob("*.py")):
        first = path.relative_to(PRODUCT / room).parts[0].removesuffix(".py")
        found.setdefault(first, []).append(path)
    found.pop("__init__", None)
    return found


def upwards(paths: list[Path], own: tuple[str, str], height: int) -> list[str]:
    """The imports of ``paths`` that are not below ``height``, but for those of ``own``."""
    return [
        f"{path.relative_to(ROOT)} imports {'.'.join(names)}"
        for path in paths
        for names in sorted(imported(path))
        if names[0] == "portagpu" and (to := box(names)) != own
        if (HEIGHT.get(to, TOP[to[0]]) >= height if to[0] else to[1] in PUBLIC)
    ]


def test_every_folder_is_a_room_of_the_picture() -> None:
    assert sorted(ROOMS) == sorted(path.parent.name for path in PRODUCT.glob("*/__init__.py"))


@looped("room", [room for room in ROOMS if room != "cli"])
def test_everything_in_a_room_is_in_the_picture_once(room: str) -> None:
    assert sorted(name for at, names in ROWS for name in names if at == room) == sorted(boxes(room))


@looped("room", [room for room in ROOMS if room != "cli"])
def test_a_package_imports_what_is_below_it(room: str) -> None:
    found = [
        each
        for name, paths in boxes(room).items()
        for each in upwards(paths, (room, name), HEIGHT[room, name])
    ]
    assert not found


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_imports_what_is_below_the_registry(name: str) -> None:
    paths = sorted((ROOT / "backends" / name).rglob("*.py"))
    assert not upwards(paths, ("", ""), HEIGHT["devices", "registry"])


def module_of(path: Path) -> tuple[str, ...]:
    """The parts of a module's name: ``("portagpu", "cli")`` of ``portagpu/cli/__init__.py``."""
    root = PRODUCT.parent if PRODUCT in path.parents else ROOT / "backends"
    parts = path.relative_to(root).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def arrows(paths: list[Path]) -> dict[str, set[str]]:
    """Each module, and those of ``paths`` that it imports, also inside functions and for types."""
    modules = {module_of(path): path for path in paths}
    return {
        ".".join(module): {
            ".".join(to)
            for names in imported(path)
            # what is imported is a module, or a name of one
            if (to := names if names in modules else names[:-1]) in modules and to != module
        }
        for module, path in modules.items()
    }


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, the first one again at the end; else empty."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    paths = sorted([*PRODUCT.rglob("*.py"), *(ROOT / "backends").rglob("*.py")])
    found = circle(arrows(paths))
    assert not found, " imports ".join(found)


def test_a_circle_is_found_also_inside_functions_and_for_types(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "portagpu").mkdir()
    texts = {
        "one": "from portagpu.two import name",
        "two": "if TYPE_CHECKING:\n    from portagpu import three",
        "three": "def function():\n    import portagpu.one",
        "four": "import portagpu.one",
    }
    for name, text in texts.items():
        (tmp_path / "portagpu" / f"{name}.py").write_text(text, "utf-8")
    monkeypatch.setattr(sys.modules[__name__], "PRODUCT", tmp_path / "portagpu")
    found = circle(arrows(sorted((tmp_path / "portagpu").rglob("*.py"))))
    first = found.index("portagpu.one")
    assert len(found) == 4
    assert found[(first + 1) % 3] == "portagpu.two"


def test_nothing_imports_a_backend_by_name() -> None:
    """They are found as entry points: a distribution of its own is one as much as ours."""
    named = [
        f"{path.relative_to(ROOT)} imports {'.'.join(names)}"
        for path in PRODUCT.rglob("*.py")
        for names in sorted(imported(path))
        if names[0] in BACKENDS
    ]
    assert not named


@looped("room", ROOMS)
def test_the_readme_of_a_room_names_what_is_there_and_what_it_imports(room: str) -> None:
    page = (PRODUCT / room / "README.md").read_text("utf-8")
    for path in re.findall(r"`([\w/*]+(?:/|\.(?:py|toml|json)))`", page):
        assert [*(PRODUCT / room).glob(path), *ROOT.glob(path)], f"there is no {path}"
    (line,) = re.findall(r"^- Imports: (.*)", page, re.MULTILINE)
    stated = {name for name in re.findall(r"`(\w+)`", line) if name in ROOMS}
    rooms = {box(names)[0] for path in (PRODUCT / room).rglob("*.py") for names in imported(path)}
    used = rooms & {*ROOMS} - {room}
    if line.startswith("everything"):
        assert not used & stated, "it imports what it says that it does not"
    else:
        assert used == stated
