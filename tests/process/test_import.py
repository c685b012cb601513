"""Importing the package is free: it loads nothing, opens nothing, and a fork afterwards is safe."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import portagpu
from portagpu.base.lazy import stub_names
from portagpu.base.plugins import install
from portagpu.base.subprocesses.start import python_environment

HEAVY = ("torch", "click", "rich", "pytest", "numpy", "pynvml", "amdsmi", "pyrsmi", "triton")

NO_TORCH = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "numpy"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

sys.meta_path.insert(0, Missing())
"""


def child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter that sees this one's packages."""
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=python_environment(environment),
    )


def test_importing_loads_nothing_of_weight():
    done = child("import json, sys, portagpu; print(json.dumps(sorted(sys.modules)))")
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    heavy = sorted(loaded & set(HEAVY))
    assert not heavy, f"import portagpu loads {heavy}"
    ours = sorted(name for name in loaded if name.startswith("portagpu"))
    lazy = ["portagpu.base", "portagpu.base.lazy"]
    assert ours == ["portagpu", "portagpu._version", *lazy], f"import portagpu loads {ours}"


def test_reading_the_names_loads_nothing_of_weight():
    done = child(
        """
        import json, sys, portagpu
        dir(portagpu), portagpu.__all__, portagpu.__version__
        hasattr(portagpu, "no_such_name")
        print(json.dumps(sorted(sys.modules)))
        """
    )
    assert done.returncode == 0, done.stderr
    assert not set(json.loads(done.stdout)) & set(HEAVY), "looking at the names imports something"


def test_importing_opens_no_device_and_reads_no_variable():
    done = child(
        """
        import os, sys

        opened, read = [], []

        def hook(event, arguments):
            if event == "open" and str(arguments[0]).startswith(("/dev/", "/sys/", "/proc/")):
                opened.append(str(arguments[0]))
            if event in {"subprocess.Popen", "os.fork", "socket.connect", "ctypes.dlopen"}:
                opened.append(event)

        class Environment(dict):
            def __getitem__(self, key):
                read.append(key)
                return super().__getitem__(key)

        sys.addaudithook(hook)
        os.environ["PORTAGPU_BACKEND"] = "nonsense"
        original = os.environ._data
        os.environ._data = Environment(original)
        import portagpu
        os.environ._data = original
        assert not opened, f"import opened {opened}"
        names = [key.decode() for key in read if key.decode().startswith("PORTAGPU")]
        assert not names, f"import read {names}"
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_fork_after_the_import_works():
    done = child(
        """
        import os, threading
        import portagpu
        assert threading.active_count() == 1, "import started a thread"
        pid = os.fork()
        if pid == 0:
            ok = portagpu.Status(True, "fine").usable and portagpu.base.errors is not None
            os._exit(0 if ok else 3)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        """
    )
    assert done.returncode == 0, done.stderr


def test_names_are_sorted_and_unique():
    names = [name for name in portagpu.__all__ if name != "__version__"]
    assert names == sorted(names), "__all__ is not sorted"
    assert len(names) == len(set(names)), "__all__ repeats a name"


def declared() -> dict[str, str]:
    """Name -> module of the stub, as its syntax says and not its lines."""
    stub = ast.parse(Path(portagpu.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    found = {}
    for statement in stub.body[1:]:
        if isinstance(statement, ast.AnnAssign):
            assert ast.unparse(statement.target) in {"__version__", "__all__"}
            continue
        assert isinstance(statement, ast.ImportFrom), "something else than an import is declared"
        for alias in statement.names:
            assert alias.name == alias.asname, f"{alias.name} is not marked as re-exported"
            assert alias.name not in found, f"{alias.name} is declared twice"
            found[alias.name] = statement.module
    return found


def test_type_checkers_and_the_loader_see_the_same_names():
    assert len(declared()) > 90
    assert declared() == stub_names(portagpu.__spec__)


def test_no_name_is_also_a_submodule():
    # importing a submodule sets the package's attribute and would replace the name
    submodules = {module.name for module in pkgutil.iter_modules(portagpu.__path__)}
    public = {name for name, home in declared().items() if home != "portagpu"}
    assert not submodules & public, "a module hides a public name"


def test_every_name_resolves_without_torch_and_is_kept():
    done = child(
        NO_TORCH
        + textwrap.dedent(
            """
            import portagpu
            for name in portagpu.__all__:
                value = getattr(portagpu, name)
                assert vars(portagpu)[name] is value, f"{name} is not kept"
            exec("from portagpu import *")
            assert "torch" not in sys.modules
            """
        )
    )
    assert done.returncode == 0, done.stderr


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'portagpu' has no attribute 'bakend'"):
        portagpu.bakend  # noqa: B018
    with pytest.raises(ImportError, match="bakend"):
        exec("from portagpu import bakend")


def test_dir_lists_every_name():
    assert set(portagpu.__all__) <= set(dir(portagpu))


def test_a_backend_by_name_without_torch_says_what_to_install():
    done = child(
        NO_TORCH
        + textwrap.dedent(
            """
            import portagpu as pg
            try:
                pg.backend("cpu")
            except pg.BackendNotFound as error:
                print(error)
            print(sorted(pg.available()))
            """
        )
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert install("torch") in first
    assert second == "[]", "a device without torch is available"


def test_a_torch_that_does_not_import_is_a_reason(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.13.0'\ncuda = None\n")
    (tmp_path / "torch" / "__init__.py").write_text(
        "raise OSError('libtorch_cpu.so: cannot open shared object file')\n"
    )
    done = child(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import portagpu as pg
        assert pg.is_available() is False
        try:
            pg.backend()
        except pg.BackendNotFound as error:
            print(error)
        """
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert "libtorch_cpu.so" in line, "the cause is not named"


@pytest.mark.parametrize(
    "module",
    [
        "portagpu.runs.world",
        "portagpu.devices.discovery",
        "portagpu_cpu",
        "portagpu_cuda",
        "portagpu_rocm",
    ],
)
def test_modules_that_every_process_may_load_leave_torch_alone(module):
    importlib.import_module(module)
    done = child(f"import sys, {module}; assert 'torch' not in sys.modules, 'torch is loaded'")
    assert done.returncode == 0, done.stderr
