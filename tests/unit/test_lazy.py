"""Packages that import their names at the first use."""

from __future__ import annotations

import ast
import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from portagpu import lazy
from tests.conftest import ROOT
from tests.support.looped import looped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

FACES = sorted(
    path
    for path in (ROOT / "portagpu").rglob("__init__.py")
    if f"{lazy.lazy_names.__name__}(" in path.read_text("utf-8")
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package of two modules; ``fast`` has two names, and ``slow`` cannot be imported."""
    folder = tmp_path / "lazy_sample"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from portagpu.lazy import lazy_names\n"
        "__all__, __getattr__, __dir__ = lazy_names(__name__, {\n"
        "    'lazy_sample.slow': 'third',\n"
        "    'lazy_sample.fast': 'first second',\n"
        "})\n"
    )
    (folder / "fast.py").write_text("first, second = object(), object()\n")
    (folder / "slow.py").write_text("raise RuntimeError('it was imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("lazy_sample")
    for name in [each for each in sys.modules if each.startswith("lazy_sample")]:
        del sys.modules[name]


def test_a_name_is_imported_when_it_is_used(package: ModuleType) -> None:
    assert "lazy_sample.fast" not in sys.modules
    first = package.first
    assert first is sys.modules["lazy_sample.fast"].first  # type: ignore[attr-defined]
    assert vars(package)["first"] is first, "it is not kept"
    assert "lazy_sample.slow" not in sys.modules, "another module was imported too"
    with pytest.raises(RuntimeError, match="it was imported"):
        package.third  # noqa: B018


def test_names_are_listed_and_nothing_is_imported(package: ModuleType) -> None:
    assert package.__all__ == ["first", "second", "third"]
    assert {"first", "second", "third", "__name__"} <= set(dir(package))
    assert not any(each.startswith("lazy_sample.") for each in sys.modules)


def test_what_is_not_there_is_an_error_as_usual(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="module 'lazy_sample' has no attribute 'fourth'"):
        package.fourth  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'fourth'"):
        exec("from lazy_sample import fourth")
    exec("from lazy_sample import fast")


def test_there_are_such_packages() -> None:
    assert {"report", "bundle", "bench", "suite"} <= {path.parent.name for path in FACES}


@looped("path", FACES)
def test_type_checkers_and_the_table_see_the_same_names(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    (call,) = (node for node in ast.walk(block) if isinstance(node, ast.Call))
    declared = {
        (each.module, alias.name, alias.asname)
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    table = {
        (module, name, name)
        for module, names in ast.literal_eval(call.args[1]).items()
        for name in names.split()
    }
    assert declared == table
    assert len({name for _, name, _ in table}) == len(table), "a name has two modules"


@looped("path", FACES)
def test_no_name_is_that_of_a_module(path: Path) -> None:
    """Its import would set the package's attribute, and so replace the name."""
    package = ".".join(path.parent.relative_to(ROOT).parts)
    names = set(importlib.import_module(package).__all__)
    modules = {each.stem for each in path.parent.glob("*.py")}
    folders = {each.parent.name for each in path.parent.glob("*/__init__.py")}
    assert names
    assert not names & (modules | folders)
