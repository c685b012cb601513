"""Names of contract 1.x: the modules that a plugin imported by their old names still answer."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import portagpu
from portagpu import _moved, plugin
from portagpu.base.lazy import stub_names
from portagpu.devices import discovery, registry
from tests.support.contract_1_names import NAMES
from tests.support.fake_plugins import install
from tests.support.looped import looped
from tests.support.registry_state import forget

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLUGIN = """
    from portagpu.contract import CONTRACT, Plugin, Status
    from portagpu.readings import Findings, Reading
    from portagpu.readings.model import Findings as SameFindings
    from portagpu.sizing.launch import Sizing
    from portagpu.variables import Variables
    from portagpu.precision.facts import precision_from_facts

    class Old(Plugin):
        name = "old"
        contract = (1, {minor})
        variables = Variables(one_by_one={{"OLD_WAIT": "1"}})

        def status(self):
            return Status(SameFindings is Findings, "found by the old names")

        def count(self):
            return 1

        def open(self, index):
            raise NotImplementedError

    PLUGIN = Old()
"""
WARNED = [  # precision and sizing themselves are public modules still
    "portagpu.contract",
    "portagpu.precision.facts",
    "portagpu.readings",
    "portagpu.readings.model",
    "portagpu.sizing.launch",
    "portagpu.variables",
]

NEED_TORCH = {
    "portagpu.captures.marked_blocks",
    "portagpu.collectives",
    "portagpu.collectives.compression",
}


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """No test sees a module that another one has imported by its old name."""

    def forget_aliases() -> None:
        for name in [name for name, module in sys.modules.items() if is_alias(module)]:
            parent, _, last = name.rpartition(".")
            vars(sys.modules[parent]).pop(last, None) if parent in sys.modules else None
            del sys.modules[name]

    forget_aliases()
    yield
    forget_aliases()


def is_alias(module: object) -> bool:
    spec = getattr(module, "__spec__", None)
    return isinstance(getattr(spec, "loader", None), _moved.Loader)


def imported(name: str) -> Any:
    """The module of that old name, without its warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(name)


@pytest.mark.parametrize("minor", range(5))
def test_a_plugin_of_each_contract_works_with_the_old_names(
    minor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"third_of_contract_1_{minor}"
    forget(monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    source = PLUGIN.format(minor=minor)
    install(tmp_path, "third-old", {"old": f"{module}:PLUGIN"}, {module: source})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        status = registry.statuses()["old"]
        found = discovery.plugin("old")
        importlib.reload(sys.modules[module])  # names that are loaded warn no second time
    assert status.usable, status.reason
    assert isinstance(found, portagpu.Plugin)
    assert found.contract == (1, minor)
    warned = [str(each.message).partition(" is ")[0] for each in caught]
    assert {each.category for each in caught} == {DeprecationWarning}
    assert sorted(warned) == WARNED
    ours = {each.filename for each in caught}
    assert ours == {str(tmp_path / f"{module}.py")}, "the warning is not at the plugin's import"


@looped("module", sorted(NAMES))
def test_what_backends_imported_at_contract_1_4_is_there(module: str) -> None:
    if module in NEED_TORCH:
        assert importlib.util.find_spec(module) is not None
        return
    old = imported(module)
    for name in NAMES[module]:
        value = getattr(old, name)
        if isinstance(value, type) and value.__module__.startswith("portagpu."):
            assert not is_alias(sys.modules[value.__module__]), f"{name} was made a second time"
            home = importlib.import_module(value.__module__)
            assert getattr(home, value.__name__) is value, f"{name} is another object"


def test_a_class_is_the_same_object_under_both_names() -> None:
    old = imported("portagpu.contract")
    assert old.Backend is portagpu.Backend is plugin.Backend
    assert imported("portagpu.readings.model").Reading is imported("portagpu.readings").Reading
    assert imported("portagpu.errors").Unsupported is portagpu.Unsupported


def test_names_that_are_set_later_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    old = imported("portagpu.contract")
    monkeypatch.setattr("portagpu.devices.contract.CONTRACT", (1, 99))
    assert old.CONTRACT == (1, 99)


def test_pickles_have_the_new_name_and_those_of_the_old_one_load() -> None:
    arch = portagpu.Arch("acme", "ac1", 32)
    data = pickle.dumps(arch, protocol=0)
    assert b"portagpu.facts.arch" in data
    with pytest.warns(DeprecationWarning, match=r"portagpu\.arch is portagpu\.facts\.arch now"):
        assert pickle.loads(data.replace(b"portagpu.facts.arch", b"portagpu.arch")) == arch  # noqa: S301 - our own


def test_a_star_import_takes_the_public_names() -> None:
    for name in ("portagpu.contract", "portagpu.readings"):  # without and with __all__
        names: dict[str, object] = {}
        with pytest.warns(DeprecationWarning):
            exec(f"from {name} import *", names)
        real = importlib.import_module(_moved.new_name(name) or "")
        every = getattr(real, "__all__", [each for each in vars(real) if each[0] != "_"])
        assert {*names} - {"__builtins__", "__warningregistry__"} == {*every}
        assert all(names[each] is getattr(real, each) for each in every)


def test_dir_and_doc_are_those_of_the_new_module() -> None:
    old, new = imported("portagpu.errors"), importlib.import_module("portagpu.base.errors")
    assert "Unsupported" in dir(old)
    assert old.__doc__ == new.__doc__
    with pytest.raises(AttributeError, match=r"'portagpu.base.errors' has no attribute 'x'"):
        _ = old.x
    with pytest.raises(ImportError, match="cannot import name 'Unsupportd'"):
        exec("from portagpu.errors import Unsupportd")


@looped("old", sorted(_moved.MOVED))
def test_every_moved_name_is_a_module(old: str) -> None:
    assert importlib.util.find_spec(f"portagpu.{_moved.MOVED[old]}") is not None


def test_no_moved_name_hides_a_public_one() -> None:
    gone = {name for name in _moved.GONE if "." not in name}
    heads = {old.partition(".")[0] for old in _moved.MOVED} | gone
    faces = {name for name in heads if _is_file(name)}
    assert not (heads - faces) & set(portagpu.__all__)
    assert not gone & ({old.partition(".")[0] for old in _moved.MOVED} | faces)


def _is_file(name: str) -> bool:
    from importlib.machinery import PathFinder

    return PathFinder.find_spec(f"portagpu.{name}", portagpu.__path__) is not None


@looped("name", sorted(_moved.GONE))
def test_an_internal_name_says_in_one_line_what_to_import(name: str) -> None:
    for module in (f"portagpu.{name}", f"portagpu.{name}.deeper"):
        with (
            warnings.catch_warnings(action="ignore", category=DeprecationWarning),
            pytest.raises(ModuleNotFoundError) as raised,
        ):
            importlib.import_module(module)
        assert str(raised.value).startswith(f"portagpu.{name} was internal and is gone: ")
        assert "portagpu.plugin" in str(raised.value)
        assert "\n" not in str(raised.value)
        assert raised.value.name == f"portagpu.{name}"


@pytest.mark.parametrize("name", ["codec", "bundle", "formats.parts"])
def test_an_internal_name_that_is_imported_from_its_package_says_so_too(name: str) -> None:
    package, _, last = f"portagpu.{name}".rpartition(".")
    with (
        warnings.catch_warnings(action="ignore", category=DeprecationWarning),
        pytest.raises(
            ImportError, match=rf"^portagpu\.{name} was internal and is gone: "
        ) as raised,
    ):
        exec(f"from {package} import {last}")
    assert "\n" not in str(raised.value)
    assert not hasattr(portagpu, "codec")
    with pytest.raises(ImportError, match="cannot import name 'no_such_name'"):
        exec("from portagpu import no_such_name")


def test_a_deep_module_warns_once_and_names_it() -> None:
    for statement in (
        "from portagpu.sizing.launch import Sizing",
        "import portagpu.readings.model",
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            exec(statement)
        (warned,) = caught
        name = statement.split()[1]
        assert str(warned.message).startswith(f"{name} is {_moved.new_name(name)} now: ")


@pytest.mark.parametrize("name", ["bundle", "compile.record"])
def test_a_command_that_moved_is_named(name: str) -> None:
    with pytest.raises(ModuleNotFoundError) as raised:
        importlib.util.find_spec(f"portagpu.{name}")
    command = str(raised.value).rpartition("python -m ")[2]
    assert importlib.util.find_spec(command) is not None


@pytest.mark.parametrize(
    "name",
    [
        "portagpu.no_such_module",
        "portagpu.contracts",
        "portagpu.contract.deeper",  # what it is now is a module, not a package
        "portagpu.readings.no_such_module",
        "portagpu.errors.no.such",
        "portagpu.collectives.no_such_module",
        "portagpu.plugin.contract",
        "portagpu_no_such_backend",
    ],
)
def test_an_unknown_name_is_the_usual_error(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(ModuleNotFoundError, match=r"^No module named '(\S+)'") as raised:
            importlib.import_module(name)
    assert raised.value.name is not None
    assert name.startswith(raised.value.name)


def test_asking_for_a_spec_imports_nothing_of_the_module() -> None:
    before = set(sys.modules)
    found = importlib.util.find_spec("portagpu.tuners")
    assert found is not None
    assert "portagpu.tuners" not in {*sys.modules} - before
    assert _moved.find_spec("portagpu") is None
    assert _moved.find_spec("other.contract") is None


def test_loading_portagpu_again_installs_no_second_finder() -> None:
    before = [each for each in sys.meta_path if getattr(each, "__module__", "") == "portagpu"]
    meta_path, names = list(sys.meta_path), dict(vars(portagpu))
    try:
        importlib.reload(portagpu)
        after = [each for each in sys.meta_path if getattr(each, "__module__", "") == "portagpu"]
    finally:
        sys.meta_path[:] = meta_path
        vars(portagpu).clear()
        vars(portagpu).update(names)
    assert len(before) == len(after) == 1


def test_every_name_of_the_plugin_module_resolves_without_torch() -> None:
    assert sys.modules["torch"] is None or "torch" in sys.modules
    homes = stub_names(plugin.__spec__)  # type: ignore[arg-type]
    assert set(homes) == set(plugin.__all__)
    for name, home in homes.items():
        value = getattr(plugin, name)
        assert value is getattr(importlib.import_module(home), name)


def test_the_plugin_module_has_each_name_of_portagpu_as_the_same_object() -> None:
    shared = set(plugin.__all__) & set(portagpu.__all__)
    assert shared >= {"Backend", "Plugin", "Status", "Capability", "Unsupported"}
    other = {name for name in shared if getattr(plugin, name) is not getattr(portagpu, name)}
    # the graph of a cost model's links, and the launch of a profiler
    assert other == {"Graph", "Launch"}


def test_the_cpus_plugin_has_the_name_that_plugins_of_contract_1_derive_from() -> None:
    import portagpu_cpu
    from portagpu_cpu import PLUGIN, CpuPlugin
    from portagpu_cpu.plugin import PLUGIN as DECLARED

    assert PLUGIN is DECLARED
    assert type(PLUGIN) is CpuPlugin
    with pytest.raises(AttributeError, match="module 'portagpu_cpu' has no attribute 'Other'"):
        portagpu_cpu.Other  # noqa: B018 - it is what is tested
