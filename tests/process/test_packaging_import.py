"""What ``import portagpu`` adds to a process, whatever it is: modules, descriptors, threads."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import portagpu
from portagpu.base.lazy import stub_names

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


def test_a_zip_file_says_in_one_line_to_install_it(
    child: Callable[..., Child], tmp_path: Path
) -> None:
    package = Path(portagpu.__file__).parent
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        for path in [
            *package.glob("*.py*"),
            *package.glob("cli/*.py"),
            *package.glob("base/**/*.py"),
        ]:
            archive.write(path, str(path.relative_to(package.parent)))
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path / "x.whl")!r})
from portagpu.cli import main
raise SystemExit(main(["health"]))
"""
    ended = child("-c", code)
    assert ended.code == 1
    (line,) = ended.err.splitlines()
    assert line.endswith(f"cannot run from it: install it with 'pip install {tmp_path}/x.whl'")


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
    modules = sorted({*stub_names(portagpu.__spec__).values()})
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
from portagpu.devices.discovery import statuses
statuses()
from portagpu_cpu.plugin import PLUGIN
print(PLUGIN.name)
"""
    assert child("-c", code).ok().strip() == "cpu"
