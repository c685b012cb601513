"""Child processes and the command line in a stranger's folder: nothing of it is executed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

import portagpu
from portagpu.errors import PortagpuError
from portagpu.inventory.tools import run_commands
from portagpu.readings.probe import probe
from portagpu.subprocesses import call
from portagpu.subprocesses import start as children
from portagpu.subprocesses.start import (
    find_program,
    import_path,
    program_environment,
    python_environment,
)
from portagpu_cuda_build import nvrtc
from portagpu_rocm_build import clang
from tests.conftest import ROOT, Child
from tests.support.planted import PROGRAMS, plant

HOME: Final = Path(portagpu.__file__).parents[1]
EMPTY: Final = "::.:relative:/nowhere"

# main() on a machine that shows a GPU of each vendor, so that their branches run
WITH_GPUS: Final = """
import sys
import portagpu.host
from portagpu.host import PciGpu
gpus = (PciGpu("nvidia", pci="0000:01:00.0"), PciGpu("amd", pci="0000:02:00.0"))
portagpu.host.gpus_on_machine = lambda root="/": gpus
from portagpu.cli import main
sys.exit(main(sys.argv[1:]))
"""
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
VERBS: Final = (
    ("--version",),
    ("info",),
    ("info", "--topology"),
    ("info", "--replay", "."),
    ("record", "OUT"),
    ("bringup", "--replay", "."),
    ("health", "--gate", "npd", "--log", "dmesg"),
    ("conform", "--list"),
    *(
        pytest.param(("compile", "--arch", arch, "--no-cache"), marks=needs_triton)
        for arch in ("sm_90", "gfx942")
    ),
    ("occupancy", "--arch", "gfx942", "--threads", "256", "--regs", "100"),
    pytest.param(
        ("conform", "--backend", "cpu", "--only", "rng/seed-repeats"), marks=pytest.mark.torch
    ),
    pytest.param(("bench", "--backend", "cpu", "launch"), marks=pytest.mark.torch),
)


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a stranger's, whose marks are in ``../marks``."""
    folder = tmp_path / "stranger"
    plant(folder, tmp_path / "marks")
    monkeypatch.chdir(folder)
    return folder


def marks(folder: Path) -> list[str]:
    """What of a stranger's folder was executed."""
    return sorted(mark.name for mark in (folder.parent / "marks").iterdir())


def run(folder: Path, *words: str, **variables: str) -> Child:
    """Run this Python in ``folder``, finding portagpu from outside of it."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    given |= {
        "PYTHONPATH": os.pathsep.join(python_environment()["PYTHONPATH"].split(os.pathsep)),
        "XDG_CACHE_HOME": str(folder.parent / "cache"),
        **variables,
    }
    words = tuple(str(folder.parent / "out") if word == "OUT" else word for word in words)
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Child(ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_no_verb_executes_what_lies_in_the_working_folder(
    stranger: Path, words: tuple[str, ...]
) -> None:
    path = f".::{os.environ['PATH']}:."
    for start in (("-P", "-m", "portagpu"), ("-P", "-c", WITH_GPUS)):
        ended = run(stranger, *start, *words, PATH=path, CUDA_HOME=".", ROCM_PATH=".")
        assert ended.code in (0, 1, 2, 3), ended.err
        assert not {"unexpected", "Traceback"} & {*ended.err.split()}, ended.err
        assert marks(stranger) == [], f"{words} executed what lies in the working folder"


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """What ``python -m`` imports before it looks for the module: against that only ``-P`` helps."""
    folder = tmp_path_factory.mktemp("starting")
    (folder / "starting.py").write_text("import sys\nprint(*sys.modules)\n")
    said = run(folder, "-P", "-m", "starting", PYTHONPATH=str(folder)).ok()
    return frozenset(name.partition(".")[0] for name in said.split())


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_python_m_portagpu_leaves_the_working_folder_out(
    tmp_path: Path, starting: frozenset[str], words: tuple[str, ...]
) -> None:
    folder = tmp_path / "stranger"
    plant(folder, tmp_path / "marks", without=starting)
    ended = run(folder, "-m", "portagpu", *words)
    assert ended.code in (0, 1, 2, 3), ended.err
    assert marks(folder) == [], f"{words} executed what lies in the working folder"


@pytest.mark.parametrize("start", ["-m portagpu.bundle", "-mportagpu.target", "-Wi -m portagpu"])
def test_every_module_of_the_package_does(
    tmp_path: Path, starting: frozenset[str], start: str
) -> None:
    folder = tmp_path / "stranger"
    plant(folder, tmp_path / "marks", without=starting)
    run(folder, *start.split(), "info")
    assert marks(folder) == []


def test_a_package_in_the_working_folder_is_run_from_there(tmp_path: Path) -> None:
    (tmp_path / "portagpu").symlink_to(HOME / "portagpu")
    ended = run(tmp_path, "-m", "portagpu", "--version", PYTHONPATH="")
    assert ended.ok() == f"portagpu {portagpu.__version__}\n"


def test_another_program_keeps_its_path(tmp_path: Path) -> None:
    """A user's own package, started with -m, that imports this one before its own modules."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import portagpu\n")
    (tmp_path / "mine" / "__main__.py").write_text("import beside\n")
    (tmp_path / "beside.py").write_text("print('found')\n")
    assert run(tmp_path, "-m", "mine").ok() == "found\n"


# every starter by itself


def test_a_library_is_asked_without_the_working_folder(
    stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry in ("", ".", str(stranger)):
        monkeypatch.syspath_prepend(entry)
    assert call("os.path", "basename", ("a/b",), limit_s=60) == ("b", "")
    for module in ("portagpu_cuda.gpus", "portagpu_rocm.gpus"):
        probe(module, "library")
    call("portagpu.compile.cpp_jobs", "survey", ("cuda", ["sm_90"]), limit_s=60)
    call("portagpu.compile.cpp_jobs", "survey", ("rocm", ["gfx942"]), limit_s=60)
    assert marks(stranger) == []


@pytest.mark.processes(18, "each program is looked for")
def test_no_vendors_program_is_found_in_the_working_folder(
    stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", EMPTY)
    assert [find_program(name) for name in PROGRAMS] == [None] * len(PROGRAMS)
    assert list(run_commands([(name,) for name in PROGRAMS])) == []
    monkeypatch.setenv("ROCM_PATH", ".")
    monkeypatch.setattr(clang, "_TOOLKIT", "/nowhere")
    assert list(clang.compilers()) == []
    monkeypatch.setenv("CUDA_HOME", ".")
    assert list(nvrtc.libraries(["", ".", "relative"])) == ["libnvrtc.so.13", "libnvrtc.so.12"]
    assert marks(stranger) == []


def test_a_program_in_an_absolute_folder_runs_with_clean_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "tool"
    tool.write_text(
        f"#!{sys.executable}\nimport os\nprint(*sorted(os.environ.items()), os.getcwd())\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f":{tmp_path}:.")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    (found,) = run_commands([("tool",)])
    assert f"('PATH', '{tmp_path}')" in found.text, found
    assert "PYTHONSAFEPATH" not in found.text, "amd-smi imports what lies beside it"
    assert found.text.endswith(" /\n"), "it works in the working folder"


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("PATH", "/a::.:b:/c", "/a:/c"),
        ("PATH", "", None),
        ("LD_LIBRARY_PATH", "/cuda/lib64:", "/cuda/lib64"),
        ("LD_LIBRARY_PATH", "$ORIGIN/../lib;rel;/b", "$ORIGIN/../lib:/b"),
        ("LD_PRELOAD", "./x.so libjemalloc.so.2:/y.so", "libjemalloc.so.2:/y.so"),
        ("LD_AUDIT", "x/y.so", None),
        ("PYTHONPATH", ":/a:b", "/a"),
    ],
)
def test_places_that_depend_on_the_working_folder_do_not_reach_children(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, kept: str | None
) -> None:
    monkeypatch.setenv(name, value)
    assert program_environment().get(name) == kept
    if name != "PYTHONPATH":
        assert python_environment().get(name) == kept


def test_the_working_folder_is_no_place_of_a_childs_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, link = tmp_path / "here", tmp_path / "link"
    here.mkdir()
    link.symlink_to(here)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", ".", "lib", str(here), str(link), "/a:b", "/c"])
    assert import_path() == ["/c"]


def test_the_package_is_found_from_its_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HOME)
    for entry in ("", ".", str(HOME)):
        monkeypatch.setattr(sys, "path", [entry, "/c"])
        assert import_path() == [str(HOME), "/c"]


def test_extra_variables_reach_a_child() -> None:
    assert python_environment({"A": "b"})["A"] == "b"
    assert program_environment({"A": "b"})["A"] == "b"


def test_a_python_that_does_not_know_itself_starts_no_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(PortagpuError, match="which program it is"):
        children.python_command("x")
    assert call("os.path", "basename", ("a",), limit_s=60)[1].startswith("this Python does not say")


def test_much_can_be_asked() -> None:
    """More than one word of a command line may hold."""
    text = "x" * 1_000_000
    assert call("os.path", "basename", (text,), limit_s=60) == (text, "")


GONE: Final = """
import os, sys, tempfile
folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
"""


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_deleted_working_folder_is_one_clear_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    start = f"{GONE}from portagpu.cli import main\nsys.exit(main({list(words)!r}))"
    ended = run(tmp_path, "-P", "-c", start)
    if words == ("--version",):
        assert ended.code == 0
        return
    assert ended.code == 1
    assert ended.err == "portagpu: the working folder was deleted: cd to one that exists\n"


def test_a_deleted_working_folder_stops_no_import_and_no_question(tmp_path: Path) -> None:
    code = f"{GONE}import json, portagpu\nfrom portagpu.subprocesses import call\n"
    said = run(tmp_path, "-P", "-c", f"{code}print(json.dumps(call('os', 'getcwd', limit_s=60)))")
    assert json.loads(said.ok()) == [None, "the working folder was deleted: cd to one that exists"]


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_no_folder_for_temporary_files_is_one_clear_line(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    words = tuple(str(tmp_path / "out") if word == "OUT" else word for word in words)
    start = (
        "import sys, tempfile\ntempfile._candidate_tempdir_list = lambda: ['/proc/none']\n"
        f"from portagpu.cli import main\nsys.exit(main({list(words)!r}))"
    )
    ended = run(tmp_path, "-P", "-c", start)
    said = ended.err.splitlines()
    assert len(said) <= 1, said
    assert "unexpected" not in ended.err
    if words[0] in ("conform", "compile"):
        assert ended.code == 1
        assert said[0].startswith("portagpu: there is no folder for temporary files")
        assert said[0].endswith("set TMPDIR to one that is writable")


@pytest.mark.skipif(not (ROOT / "toxfile.py").exists(), reason="an installed wheel has no toxfile")
def test_every_python_child_is_started_in_one_place() -> None:
    """A new starter goes through ``children``: this is what reads its command line."""
    sources = [*(HOME / "portagpu").rglob("*.py"), *(ROOT / "backends").rglob("*.py")]
    sources = [path for path in sources if "_matrix" not in path.parts]
    own = {"start.py", "channel.py"}
    found = [path.name for path in sources if "sys.executable" in path.read_text("utf-8")]
    assert set(found) <= own, f"{sorted(set(found) - own)} start Python by themselves"
