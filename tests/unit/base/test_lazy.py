"""Packages that import their names at the first use."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from typing import TYPE_CHECKING

import pytest

from portagpu.base import lazy
from tests.conftest import ROOT
from tests.support.looped import looped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

STUBS = sorted((ROOT / "portagpu").rglob("*.pyi"))
PACKAGES = [path for path in STUBS if path.stem == "__init__"]
USES = (f"{lazy.lazy_names.__name__}(__spec__)", f"{lazy.names_of.__name__}(__name__, ")


def module(path: Path) -> ModuleType:
    """The module of a stub."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return importlib.import_module(".".join(part for part in parts if part != "__init__"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package of two modules; ``fast`` has two names, and ``slow`` cannot be imported."""
    folder = tmp_path / "lazy_sample"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from portagpu.base.lazy import lazy_names\n"
        "__all__, __getattr__, __dir__ = lazy_names(__spec__)\n"
    )
    (folder / "__init__.pyi").write_text(
        '"""Names."""\n\n'
        "from lazy_sample.slow import third as third\n"
        "from lazy_sample.fast import first as first  # with a comment\n"
        "from lazy_sample.fast import second as second\n"
        "from lazy_sample import module as module\n"
    )
    (folder / "fast.py").write_text("first, second = object(), object()\n")
    (folder / "slow.py").write_text("raise RuntimeError('it was imported')\n")
    (folder / "module.py").touch()
    (folder / "inner.py").touch()
    (folder / "needs.py").write_text("import not_installed\n")
    (tmp_path / "lazy_other.py").write_text((folder / "__init__.py").read_text())
    (tmp_path / "lazy_other.pyi").write_text("from lazy_sample import inner as inner\n")
    (tmp_path / "face_sample.py").write_text(
        "from portagpu.base.lazy import names_of\n"
        "__all__, __getattr__, __dir__ = names_of(__name__, 'lazy_sample')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("lazy_sample")
    for name in [each for each in sys.modules if each.startswith(("lazy_", "face_sample"))]:
        del sys.modules[name]


def test_a_name_is_imported_when_it_is_used(package: ModuleType) -> None:
    assert "lazy_sample.fast" not in sys.modules
    first = package.first
    assert first is sys.modules["lazy_sample.fast"].first  # type: ignore[attr-defined]
    assert vars(package)["first"] is first, "it is not kept"
    assert "lazy_sample.slow" not in sys.modules, "another module was imported too"
    assert package.module is sys.modules["lazy_sample.module"]
    with pytest.raises(RuntimeError, match="it was imported"):
        package.third  # noqa: B018


def test_names_are_listed_and_nothing_is_imported(package: ModuleType) -> None:
    assert package.__all__ == ["first", "module", "second", "third"]
    assert {"first", "second", "third", "__name__"} <= set(dir(package))
    face = importlib.import_module("face_sample")
    assert face.__all__ == package.__all__
    assert {"first", "second", "third", "__name__"} <= set(dir(face))
    assert not any(each.startswith("lazy_sample.") for each in sys.modules)


def test_a_face_has_the_names_of_its_package(package: ModuleType) -> None:
    face = importlib.import_module("face_sample")
    assert face.first is package.first
    names: dict[str, object] = {}
    exec("from face_sample import inner", names)
    assert names["inner"] is sys.modules["lazy_sample.inner"]
    with pytest.raises(ImportError, match="cannot import name 'fourth' from 'face_sample'"):
        exec("from face_sample import fourth")
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_installed'"):
        exec("from face_sample import needs")


def test_a_name_may_be_a_submodule_of_another_package(package: ModuleType) -> None:
    other = importlib.import_module("lazy_other")
    assert "lazy_sample.inner" not in sys.modules
    assert other.inner is sys.modules["lazy_sample.inner"]
    assert not hasattr(package, "fourth")


def test_what_is_not_there_is_an_error_as_usual(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="module 'lazy_sample' has no attribute 'fourth'"):
        package.fourth  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'fourth'"):
        exec("from lazy_sample import fourth")
    exec("from lazy_sample import fast")


def test_every_stub_is_that_of_a_lazy_module_and_no_other_has_one() -> None:
    uses = {
        path
        for path in (ROOT / "portagpu").rglob("*.py")
        if path.name != "lazy.py" and any(each in path.read_text("utf-8") for each in USES)
    }
    assert {path.with_suffix(".py") for path in STUBS} == uses
    assert len(PACKAGES) > 10


def is_there(found: ModuleType, name: str) -> bool:
    """Whether the module has the name, whose own module may import torch."""
    try:
        return hasattr(found, name)
    except ModuleNotFoundError as error:
        return error.name == "torch"


@looped("path", STUBS)
def test_every_name_of_a_stub_is_there_once(path: Path) -> None:
    found = module(path)
    names = [name for name in found.__all__ if name != "__version__"]
    assert names
    assert len({*names}) == len(names)
    assert all(is_there(found, name) for name in names)
    lines = [line for line in path.read_text("utf-8").splitlines() if line.startswith("from ")]
    assert len(lines) == len(names) or lines[0].endswith(" import *")


@looped("path", PACKAGES)
def test_no_name_is_that_of_a_module(path: Path) -> None:
    """Its import would set the package's attribute, and so replace the name."""
    homes = lazy.stub_names(module(path).__spec__)  # type: ignore[arg-type]
    names = {name for name, home in homes.items() if home != module(path).__name__}
    modules = {each.stem for each in path.parent.glob("*.py")}
    folders = {each.parent.name for each in path.parent.glob("*/__init__.py")}
    assert names
    assert not names & (modules | folders)


def test_the_help_of_the_package_begins_with_names_that_there_are() -> None:
    import portagpu

    said = portagpu.__doc__ or ""
    called = re.findall(r"\bpg\.(\w+)", said)
    assert called[0] == "backend"
    assert set(called) <= set(portagpu.__all__)
