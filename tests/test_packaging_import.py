"""``import portagpu`` is free: what it loads, opens, reads and starts; and its public names."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import portagpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child


def test_import_loads_nothing_but_itself_and_the_standard_library(
    child: Callable[..., Child],
) -> None:
    code = """
import sys
before = set(sys.modules)
import portagpu
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - set(sys.stdlib_module_names)))
"""
    loaded = child("-c", code).ok().split()
    assert loaded == ["portagpu"], f"importing portagpu also loads {loaded}"


def test_import_opens_no_device_reads_no_environment_and_starts_nothing(
    child: Callable[..., Child],
) -> None:
    code = """
import json, os, sys

class Watched(dict):
    def __init__(self, real):
        super().__init__(real)
        self.read = []
    def __getitem__(self, key):
        self.read.append(key)
        return super().__getitem__(key)
    def get(self, key, default=None):
        self.read.append(key)
        return super().get(key, default)
    def __contains__(self, key):
        self.read.append(key)
        return super().__contains__(key)

events = []
def hook(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/dev", "/proc", "/sys")):
        events.append(f"open {arguments[0]}")
    elif event.split(".")[0] in {"subprocess", "socket", "ctypes"} or event in {
        "os.fork", "os.exec", "os.posix_spawn", "os.system",
        "_thread.start_new_thread", "_thread.start_joinable_thread",
    }:
        events.append(event)

def descriptors():
    return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                  if os.path.exists(f"/proc/self/fd/{fd}"))

def devices(found):
    return [path for path in found if path.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri"))]

os.environ = Watched(os.environ)
sys.addaudithook(hook)
import portagpu
for name in ("Capability", "Unsupported", "backend", "Target"):
    getattr(portagpu, name)
watched, seen = list(os.environ.read), list(events)
threads = len(os.listdir("/proc/self/task"))
print(json.dumps(
    {"read": watched, "events": seen, "devices": devices(descriptors()), "threads": threads}
))
"""
    found = json.loads(child("-c", code).ok())
    assert found == {"read": [], "events": [], "devices": [], "threads": 1}


def test_names_without_torch_do_not_import_it(child: Callable[..., Child]) -> None:
    modules = sorted(portagpu._HOME)
    code = f"""
import importlib, sys
sys.modules["torch"] = None
for name in {modules!r}:
    importlib.import_module(name)
print(*sorted({{"click", "rich", "pytest", "numpy"}} & set(sys.modules)))
"""
    assert child("-c", code).ok().split() == []


def test_every_backend_plugin_imports_without_torch(child: Callable[..., Child]) -> None:
    code = """
import sys
sys.modules["torch"] = None
from portagpu.candidates import statuses
statuses()
import portagpu_cpu
print(portagpu_cpu.PLUGIN.name)
"""
    assert child("-c", code).ok().strip() == "cpu"


FORK = """
import os
import portagpu
{before}
child = os.fork()
if child == 0:
    code = 1
    try:
        {inside}
        code = 0
    finally:
        os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_process_forks_after_import_and_status(child: Callable[..., Child]) -> None:
    code = FORK.format(
        before="from portagpu.candidates import statuses; statuses()",
        inside="assert statuses() and portagpu.Capability.STREAMS == 'streams'",
    )
    assert child("-W", "error", "-c", code).ok().strip() == "0", "the forked child failed"


@pytest.mark.torch
def test_forked_process_opens_the_cpu_and_computes(child: Callable[..., Child]) -> None:
    pytest.importorskip("torch")
    code = FORK.format(
        before="portagpu.is_available",
        inside=(
            "import torch; gpu = portagpu.backend('cpu'); "
            "assert torch.ones(8, device=gpu.device).sum().item() == 8"
        ),
    )
    assert child("-W", "error", "-c", code).ok().strip() == "0", "the forked child failed"


@pytest.mark.torch
@pytest.mark.parametrize("name", portagpu.__all__)
def test_public_name_resolves_and_is_kept(name: str) -> None:
    pytest.importorskip("torch")
    value = getattr(portagpu, name)
    assert value is not None
    assert vars(portagpu)[name] is value, "the second access must not look it up again"


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'portagpu' has no attribute 'nothing'"):
        portagpu.nothing  # noqa: B018 - the access is the test


def test_type_checkers_see_the_lazy_table() -> None:
    tree = ast.parse(Path(portagpu.__file__).read_text("utf-8"))
    (guard,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen = {}
    for node in guard.body:
        assert isinstance(node, ast.ImportFrom), f"only imports belong there: {ast.unparse(node)}"
        for alias in node.names:
            assert alias.asname == alias.name, f"{alias.name} is not re-exported explicitly"
            seen[alias.name] = node.module
    assert seen == portagpu._MODULE_OF
