"""Child processes and the command line in an untrusted folder: nothing of it is executed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import portagpu
from portagpu.base.errors import PortagpuError
from portagpu.base.subprocesses import call
from portagpu.base.subprocesses import start as children
from portagpu.base.subprocesses.start import (
    find_program,
    import_path,
    program_environment,
    python_environment,
)
from portagpu.facts.readings.stream import probe
from portagpu.machine.inventory.sources import run_commands
from portagpu_cuda_build import nvrtc
from portagpu_rocm_build import clang
from tests.conftest import ROOT
from tests.support.forked_verbs import VERB, ForkedVerbs
from tests.support.looped import few
from tests.support.planted import (
    CHEAP_VERBS,
    PROGRAMS,
    VERBS,
    WITH_GPUS,
    environment_outside,
    marks,
    modules_of_a_start,
    plant,
    run,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Child

HOME: Final = Path(portagpu.__file__).parents[1]
EMPTY: Final = "::.:relative:/nowhere"


@dataclass
class Watched:
    """An untrusted folder, and forks of a process that was started in it and that is watched."""

    folder: Path
    log: Path
    forks: ForkedVerbs
    environment: dict[str, str]

    def run(self, *words: str, body: str = VERB) -> Child:
        out = str(self.log.with_name(f"out-{len(list(self.log.parent.iterdir()))}"))
        words = tuple(out if word == "OUT" else word for word in words)
        return self.forks(*words, folder=self.folder, environment=self.environment, body=body)

    def reported(self) -> list[str]:
        """What was executed of the folder, or could have been."""
        said = self.log.read_text("utf-8").splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [*said, *marks(self.folder)]


@contextlib.contextmanager
def watch(place: Path) -> Iterator[Watched]:
    folder, log = place / "stranger", place / "log"
    plant(folder, place / "marks")
    environment = environment_outside(
        folder,
        PATH=f".::{os.environ['PATH']}:.",
        CUDA_HOME=".",
        ROCM_PATH=".",
        WATCHED=str(folder),
        WATCH_LOG=str(log),
    )
    watching = str(ROOT / "tests/support/watched")
    environment["PYTHONPATH"] = os.pathsep.join([watching, environment["PYTHONPATH"]])
    with ForkedVerbs(place, folder, environment) as forks:
        found = Watched(folder, log, forks, environment)
        assert found.reported() == [], "an import of the command line executed what lies there"
        yield found


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watch(tmp_path_factory.mktemp("watched")) as found:
        yield found


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, which is untrusted, whose marks are in ``../marks``."""
    folder = tmp_path / "stranger"
    plant(folder, tmp_path / "marks")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("words", few(CHEAP_VERBS), ids=" ".join)
def test_no_verb_executes_what_lies_in_the_working_folder(
    watched: Watched, words: tuple[str, ...]
) -> None:
    """The verbs' own process imports only what is watched, and so do their children."""
    for body in (VERB, WITH_GPUS):
        ended = watched.run(*words, body=body)
        assert ended.code in (0, 1, 2, 3), ended.err
        assert not {"unexpected", "Traceback"} & {*ended.err.split()}, ended.err
        assert watched.reported() == [], f"{words} executed what lies in the working folder"


FAULTS: Final = {
    "import": ("sys.path.insert(0, ''); import conftest", "import: conftest", "conftest"),
    "path": ("sys.path.insert(0, '.'); import colorsys", "import: colorsys", None),
    "source": ("exec(compile('', 'conftest.py', 'exec'))", "compile: conftest.py", None),
    "module": (
        "import runpy; runpy.run_path('planted_plugin.py')",
        "exec: planted_plugin.py",
        "planted_plugin",
    ),
    "program": ("subprocess.run(['./gcc'])", "subprocess.Popen: ./gcc", "gcc"),
    "found": ("subprocess.run(['gcc'])", "subprocess.Popen: gcc in PATH=.", "gcc"),
    "folder": (
        "subprocess.run(['./gcc'], cwd=os.environ['WATCHED'], env={})",
        "subprocess.Popen: ./gcc",
        "gcc",
    ),
    "variables": (
        "subprocess.run(['/bin/true'], env={'LD_LIBRARY_PATH': '/x:'})",
        "subprocess.Popen: /bin/true under LD_LIBRARY_PATH=/x:",
        None,
    ),
    "spawned": (
        "os.waitpid(os.posix_spawn('gcc', ['gcc'], {}), 0)",
        "os.posix_spawn: gcc in PATH=",
        "gcc",
    ),
    "replaced": ("os.execv('./gcc', ['gcc'])", "os.exec: ./gcc", "gcc"),
    "library": ("ctypes.CDLL('./libcuda.so.1')", "ctypes.dlopen: ./libcuda.so.1", "library"),
    "child": (
        "subprocess.run([sys.executable, '-c', 'import conftest'], env={**os.environ, 'PATH': ''})",
        "import: conftest",
        "conftest",
    ),
}
"""Ways to execute what lies in the working folder: the code, what is reported, and its mark."""


@pytest.mark.parametrize("name", FAULTS)
def test_the_watch_reports_what_is_executed(watched: Watched, name: str) -> None:
    code, said, mark = FAULTS[name]
    if mark == "library" and shutil.which("cc") is None:
        pytest.skip("no C compiler is on PATH, which builds the library")
    watched.run(body=f"import contextlib, ctypes, os, subprocess, sys\n{code}")
    reported = watched.reported()
    assert any(each.startswith(said) for each in reported), reported
    assert mark is None or mark in reported, reported
    for each in (watched.folder.parent / "marks").iterdir():
        each.unlink()


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    return modules_of_a_start(tmp_path_factory.mktemp("starting"))


@pytest.mark.parametrize("words", ["info", "record OUT"])
def test_python_m_portagpu_leaves_the_working_folder_out(
    tmp_path: Path, starting: frozenset[str], words: str
) -> None:
    folder = tmp_path / "stranger"
    plant(folder, tmp_path / "marks", without=starting)
    ended = run(folder, "-m", "portagpu", *words.split())
    assert ended.code in (0, 1, 2, 3), ended.err
    assert marks(folder) == [], f"{words} executed what lies in the working folder"


def test_a_package_in_the_working_folder_is_run_from_there(tmp_path: Path) -> None:
    (tmp_path / "portagpu").symlink_to(HOME / "portagpu")
    ended = run(tmp_path, "-m", "portagpu", "--version", PYTHONPATH="")
    assert ended.ok() == f"portagpu {portagpu.__version__}\n"


def test_another_program_keeps_its_path(tmp_path: Path) -> None:
    """A user's own package, started with -m, that imports this one before its own modules."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import portagpu\n")
    (tmp_path / "mine" / "__main__.py").write_text("import neighbour\n")
    (tmp_path / "neighbour.py").write_text("print('found')\n")
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
    call("portagpu.suites.compile.kernel_jobs", "survey", ("cuda", ["sm_90"]), limit_s=60)
    call("portagpu.suites.compile.kernel_jobs", "survey", ("rocm", ["gfx942"]), limit_s=60)
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
    tool.write_text('#!/bin/sh\necho "path $PATH; safe ${PYTHONSAFEPATH-unset}; $(pwd)"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f":{tmp_path}:.")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    (found,) = run_commands([("tool",)])
    # amd-smi imports what lies next to it
    assert found.text == f"path {tmp_path}; safe unset; /\n"


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


def test_the_working_folder_is_not_a_place_of_a_childs_modules(
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
def test_a_deleted_working_folder_is_one_clear_line(
    verbs: ForkedVerbs, words: tuple[str, ...]
) -> None:
    ended = verbs(*words, body=f"{GONE}{VERB}")
    if words == ("--version",):
        assert ended.code == 0
        return
    assert ended.code == 1
    assert ended.err == "portagpu: the working folder was deleted: cd to one that exists\n"


def test_a_deleted_working_folder_stops_no_import_and_no_question(tmp_path: Path) -> None:
    code = f"{GONE}import json, portagpu\nfrom portagpu.base.subprocesses import call\n"
    said = run(tmp_path, "-P", "-c", f"{code}print(json.dumps(call('os', 'getcwd', limit_s=60)))")
    assert json.loads(said.ok()) == [None, "the working folder was deleted: cd to one that exists"]


@pytest.mark.parametrize("words", VERBS[:-1], ids=" ".join)
def test_no_folder_for_temporary_files_is_one_clear_line(
    tmp_path: Path, verbs: ForkedVerbs, words: tuple[str, ...]
) -> None:
    words = tuple(str(tmp_path / "out") if word == "OUT" else word for word in words)
    nowhere = "import tempfile\ntempfile._candidate_tempdir_list = lambda: ['/proc/none']\n"
    ended = verbs(*words, body=f"{nowhere}{VERB}")
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
