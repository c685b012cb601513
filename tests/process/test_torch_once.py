"""Children that the rank server forks, so that torch is imported once: they are as if started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from portagpu.base.subprocesses import Subprocess
from portagpu.base.subprocesses.fork import take_status
from portagpu.base.subprocesses.start import python_environment
from portagpu.runs.world import Ranks
from tests.process.test_subprocesses import is_gone, open_files
from tests.support.processes import descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


LIMIT_S: Final = 60.0
CHILD: Final = """
import atexit, faulthandler, gc, json, os, signal, subprocess, sys, threading, time
from portagpu.base.subprocesses import parent_channel
channel = parent_channel()
{before}
if __name__ == "__main__":
    while (message := channel.receive()) is not None:
        channel.send({{"value": eval(message["do"])}})
"""


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """No test waits for the limits of the code it tests."""

    def too_long(number: int, frame: object) -> None:
        raise TimeoutError("the test took longer than 100 s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(100)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A torch that is imported in no time, and writes down which process imports it."""
    folder = tmp_path_factory.mktemp("libraries")
    package = folder / "torch"
    package.mkdir()
    (package / "version.py").write_text("__version__ = '2.13.0'\ncuda = None\nhip = None\n")
    (package / "distributed.py").touch()
    noted = folder / "imports"
    noted.touch()
    (package / "__init__.py").write_text(
        f"import os\nopen({str(noted)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
    )
    return folder


@pytest.fixture
def ranks(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """A server of ranks that has imported that torch; in the end nothing of it is left."""
    monkeypatch.syspath_prepend(str(libraries))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "torch")
    before = open_files()
    with Ranks(leave_out=("PYTHONOPTIMIZE",)) as server:
        yield server
        session = None if server._child is None else server._child.pid
    assert session is None or is_gone(session)
    assert open_files() == before


@pytest.fixture
def fork(ranks: Ranks, libraries: Path) -> Callable[..., Subprocess]:
    """A child of the server that evaluates what it is sent."""

    def start(before: str = "", *words: str, **options: Any) -> Subprocess:
        file, text = libraries / "evaluates.py", CHILD.format(before=before)
        if not file.exists() or file.read_text() != text:  # a child may be about to read it
            file.write_text(text, "utf-8")
        given = {"leave_out": ("PYTHONOPTIMIZE",), "folder": None, "forker": ranks}
        return Subprocess("evaluates", *words, **{**given, **options})

    return start


def ask(child: Subprocess, do: str) -> Any:
    answer, problem = child.ask({"do": do}, LIMIT_S)
    assert answer is not None, problem
    return answer["value"]


def server_of(ranks: Ranks) -> int:
    assert ranks._child is not None
    return ranks._child.pid


def was_forked(child: Subprocess, ranks: Ranks) -> bool:
    return bool(ask(child, "os.getppid()") == server_of(ranks))


SEEN: Final = """
{
    "variables": {k: v for k, v in os.environ.items() if k != "PORTAGPU_PROCESS"},
    "cwd": os.getcwd(), "argv": sys.argv[:-1], "path": sys.path, "flags": list(sys.flags),
    "orig": sys.flags.safe_path, "session": os.getsid(0) == os.getpid() == os.getpgrp(),
    "stdin": os.readlink("/proc/self/fd/0"), "stdout": os.readlink("/proc/self/fd/1"),
    "stderr": os.readlink("/proc/self/fd/2").partition(" ")[0],
    "files": len(os.listdir("/proc/self/fd")), "umask": os.umask(0o22) or os.umask(0o22),
    "signals": {n: str(signal.getsignal(n)) for n in range(1, 32) if n not in (9, 19)},
    "masked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "threads": threading.active_count(), "main": sys.modules["__main__"].__file__,
    "name": __name__, "spec": __spec__.name, "buffered": sys.stdout.line_buffering,
    "hooks": sys.excepthook is sys.__excepthook__, "warnings": sys.warnoptions,
    "faulthandler": faulthandler.is_enabled(), "gc": gc.isenabled(),
    "mark": os.environ["PORTAGPU_PROCESS"] in open("/proc/self/environ").read(),
}
"""


def test_a_forked_child_sees_what_a_started_one_sees(
    fork: Callable[..., Subprocess], ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"environment": {"ADDED": "1"}}
    # the checkout is on the path of these tests, and no child's where it is the working folder
    monkeypatch.chdir("/")
    ranks.start()
    monkeypatch.chdir(tmp_path)  # not where the server began
    do = SEEN.replace("\n", " ")
    for folder, prints in ((None, True), (None, False), ("/", True)):
        options |= {"folder": folder, "prints": prints}
        with fork("", "word", **options) as forked:
            assert was_forked(forked, ranks)
            seen = ask(forked, do)
        with fork("", "word", **options, forker=None) as started:
            assert not was_forked(started, ranks)
            expected = ask(started, do)
        # the pipes, the output and the handle of the server of its own ranks
        expected["files"] += 4
        assert seen == expected
        assert seen["cwd"] == str(folder or tmp_path)


def test_a_forked_child_has_what_the_server_imported(
    fork: Callable[..., Subprocess], ranks: Ranks, libraries: Path
) -> None:
    noted = libraries / "imports"
    noted.write_text("")
    for _ in range(2):
        with fork("import torch.distributed") as child:
            assert ask(child, "'torch.distributed' in sys.modules")
            ends = "__import__('portagpu.runs.world').runs.world.Ranks()"
            started = f"(r := {ends}, r._wait_until_ready(), r._child.pid)[2]"
            server = ask(child, started)
            assert server in descendants(child.pid), "its own ranks are of another process"
        assert is_gone(server)
    assert noted.read_text().split() == [str(server_of(ranks))]


@pytest.mark.parametrize(
    ("name", "value", "forked"),
    [
        ("PYTHONOPTIMIZE", "1", True),  # which neither the server nor the child is to see
        ("PYTHONWARNINGS", "error", False),
        ("OMP_NUM_THREADS", "1", False),
        ("LD_BIND_NOW", "1", False),
    ],
)
def test_a_child_that_must_see_other_variables_than_the_server_did_is_started(
    fork: Callable[..., Subprocess],
    ranks: Ranks,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    forked: bool,
) -> None:
    monkeypatch.delenv(name, raising=False)
    ranks.start()
    monkeypatch.setenv(name, value)
    with fork() as child:
        assert was_forked(child, ranks) is forked
        found = ask(child, f"[os.environ.get({name!r}), sys.flags.optimize, sys.warnoptions]")
    assert found == [None if forked else value, 0, ["error"] if "WARN" in name else []]


def test_a_child_that_finds_modules_elsewhere_than_the_server_is_started(
    fork: Callable[..., Subprocess], ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.start()
    monkeypatch.syspath_prepend(str(tmp_path))
    with fork() as child:
        assert not was_forked(child, ranks)
        assert ask(child, "sys.path")[0] == str(tmp_path)


@pytest.mark.parametrize("text", ["raise OSError('no driver')", "import os; os.abort()", None])
def test_without_a_torch_that_imports_a_child_is_started(
    fork: Callable[..., Subprocess],
    ranks: Ranks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
) -> None:
    if text is None:
        monkeypatch.setattr("portagpu.facts.torchbuild.torch_build", lambda: None)
    else:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
    with fork() as child:
        assert ask(child, "os.getppid()") == os.getpid()


def test_where_linux_gives_no_handle_of_a_process_a_child_is_started(
    fork: Callable[..., Subprocess], ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    ranks.start()
    monkeypatch.setattr(os, "pidfd_open", none)
    with fork() as child:
        assert not was_forked(child, ranks)


def test_a_server_whose_torch_began_a_thread_does_not_fork(
    fork: Callable[..., Subprocess], ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    begins = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True)"
    (package / "__init__.py").write_text(f"{begins}.start()\n")
    (package / "distributed.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with fork() as child:
        assert not was_forked(child, ranks)
        assert server_of(ranks) in descendants(os.getpid())


def test_a_server_of_ranks_that_nobody_needed_ends_before_its_client(
    fork: Callable[..., Subprocess],
) -> None:
    with fork() as child:
        ask(child, "0")
        (server,) = descendants(child.pid)
        child.send({"do": "sys.exit(3)"})
        assert child.receive(LIMIT_S) is None
        assert child.how_it_ended() == "ended with status 3"
        assert not Path(f"/proc/{server}").exists()


def test_a_server_that_is_killed_takes_its_children_along(
    fork: Callable[..., Subprocess], ranks: Ranks
) -> None:
    with fork() as child:
        other = ask(child, "subprocess.Popen(['sleep', '600'], start_new_session=True).pid")
        first = server_of(ranks)
        os.kill(first, signal.SIGKILL)
        assert child.receive(LIMIT_S) is None
        assert child.how_it_ended() == "died of SIGKILL"
    assert is_gone(other)
    with fork() as child:
        assert was_forked(child, ranks)
        assert server_of(ranks) != first


def test_a_stopped_server_goes_on_to_report_how_a_child_ended(
    fork: Callable[..., Subprocess], ranks: Ranks
) -> None:
    with fork() as child:
        child.send({"do": f"os.kill({server_of(ranks)}, signal.SIGSTOP) or sys.exit(3)"})
        assert child.receive(LIMIT_S) is None
        assert child.how_it_ended() == "ended with status 3"


def test_a_server_that_does_not_answer_is_ended_with_its_children(
    fork: Callable[..., Subprocess], ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: object) -> None:
        raise TimeoutError

    with fork() as child, fork() as other:
        server = server_of(ranks)
        child.send({"do": "sys.exit(3)"})
        assert child.receive(LIMIT_S) is None
        monkeypatch.setattr(Ranks, "_receive", late)
        assert child.how_it_ended() == "died of SIGKILL"
        assert other.receive(LIMIT_S) is None
    assert is_gone(server)


def test_a_status_that_somebody_else_took_is_not_an_error() -> None:
    words = [sys.executable, "-c", "raise SystemExit(3)"]
    with subprocess.Popen(words) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert take_status(process.pid) == 3
        assert take_status(process.pid) == 0


STRAYS: Final = """
import os, subprocess
from portagpu.base.subprocesses.start import adopt_orphans, end_strays
adopt_orphans()
kept, stray = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
ended = subprocess.Popen(["true"])
os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
end_strays({kept.pid, ended.pid})
print(kept.poll(), os.path.exists(f"/proc/{stray.pid}"), ended.wait())
kept.kill(); kept.wait()
end_strays()
"""


def test_what_ranks_left_is_ended_and_what_else_was_forked_is_not() -> None:
    words = [sys.executable, "-P", "-c", STRAYS]
    done = subprocess.run(
        words, env=python_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "None False 0\n", done.stderr


NOTED: Final = """
import os
def note():
    with open(os.environ["NOTED_IMPORTS"], "a") as file:
        file.write(f"{os.getpid()}\\n")
"""
"""torch calls it once for each import of torch (torch/__init__.py, _import_device_backends)."""


@pytest.fixture
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """The processes that have imported torch since then."""
    pytest.importorskip("torch")
    folder = tmp_path / "noting"
    about = folder / "noting-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: noting\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[torch.backends]\nnoting = noting:note\n")
    (folder / "noting.py").write_text(NOTED)
    noted = tmp_path / "noted"
    noted.touch()
    monkeypatch.setenv("NOTED_IMPORTS", str(noted))
    monkeypatch.syspath_prepend(str(folder))
    return lambda: [int(pid) for pid in noted.read_text().split()]
