"""``portagpu profile`` with fakes of the vendors' profilers, whose outputs are small samples.

Neither nsys nor rocprofv3 ran here: the fakes cite the sources that they follow.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")

from portagpu import cli
from portagpu.base.subprocesses.start import run_attached
from portagpu.facts.captures.profilers import Refused
from portagpu.runs.results.run import Verdict
from portagpu.traces.profile import choice
from portagpu.traces.profile.engine import ProfileOptions, profile
from portagpu.traces.profile.judge import Note, expected_ranks, read_notes
from tests.process.test_profile_commands import ATTACHED, install
from tests.support.processes import descendants
from tests.support.profile_reader import read
from tests.support.profile_runs import files, profiled, result, write_script
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from portagpu.runs.results.run import Run

TOOLS = ("nsys", "rocprofv3")
SHORT = "print('did something')"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*ATTACHED, "RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    choice._backend.cache_clear()
    yield
    choice._backend.cache_clear()


@pytest.fixture
def run_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Runs a script under a fake tool that captures what the keywords say."""

    def run(
        tool: str, text: str = SHORT, words: tuple[str, ...] = (), what: Any = None, **asked: Any
    ) -> Run:
        path = install(tool, tmp_path / "bin")
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("FAKE_PROFILE", json.dumps(what or {}))
        return profiled(tmp_path, *words, str(write_script(tmp_path, text)), tool=tool, **asked)

    return run


OUTPUT = {
    "nsys": ["process.nsys-rep", "process.sqlite"],
    "rocprofv3": ["process.pidN_results.db"],
}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_capture_is_opened_and_counted(
    tool: str, run_with: Callable[..., Run], tmp_path: Path
) -> None:
    run = run_with(tool, what={"kernels": 5})
    captured = result(run, "captured")
    assert run.verdict is Verdict.PASS, run.results
    assert captured.extra["counts"]["kernel"] == captured.value == 5
    assert files(tmp_path) == OUTPUT[tool]
    assert run.info.versions[tool] == {"nsys": "2025.6.3.541-256337736014v0"}.get(tool, "1.0.0")


@pytest.mark.parametrize("tool", TOOLS)
def test_the_commands_code_decides(tool: str, run_with: Callable[..., Run]) -> None:
    run = run_with(tool, "raise SystemExit(4)")
    assert result(run, "command").reason == "the command exited with code 4"
    # what was captured until then is said as well
    assert result(run, "captured").verdict is Verdict.PASS
    assert run.exit_code == 1


@pytest.mark.parametrize(
    ("tool", "message", "meaning"),
    [
        ("nsys", "CUPTI: ERR_NVGPUCTRPERM (1)", "NVreg_RestrictProfilingToAdminUsers=0"),
        (
            "nsys",
            "CPU profiling: the paranoid level is 4",
            "kernel.perf_event_paranoid",
        ),
        ("nsys", "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "CUPTI serves one at a time"),
        ("rocprofv3", "failed to open /dev/kfd", "groups render and video"),
    ],
)
def test_missing_rights_are_explained(
    tool: str, message: str, meaning: str, run_with: Callable[..., Run]
) -> None:
    run = run_with(tool, what={"kernels": 0, "messages": [["warning", message]]})
    reason = result(run, "captured").reason
    assert meaning in reason
    # in the tool's own words too
    assert message in reason


def test_messages_next_to_a_capture_are_kept(run_with: Callable[..., Run]) -> None:
    run = run_with("nsys", what={"messages": [["warning", "a buffer\x1b[31m was lost"]]})
    captured = result(run, "captured")
    assert captured.verdict is Verdict.PASS
    assert captured.extra["messages"] == ["warning: a buffer [31m was lost"]


LIGHT_TORCH = """
__version__ = "2.13.0"

class cuda:
    is_initialized = staticmethod(lambda: False)
"""
# as torchrun: it gives each rank its variables, and takes PYTHON_EXEC for their Python
LIGHT_TORCHRUN = """
import argparse, os, subprocess, sys

parser = argparse.ArgumentParser()
parser.add_argument("--standalone", action="store_true")
parser.add_argument("--nproc-per-node", type=int)
parser.add_argument("words", nargs=argparse.REMAINDER)
given = parser.parse_args()
words = [os.environ.get("PYTHON_EXEC", sys.executable), "-u", *given.words]
size = str(given.nproc_per_node)
ranks = [
    subprocess.Popen(words, env={
        **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank),
        "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
    })
    for rank in range(given.nproc_per_node)
]
sys.exit(max([rank.wait() for rank in ranks]))
"""


@pytest.fixture
def light_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command imports a torch of a few lines, which takes no second, as the launcher does."""
    modules = {"": LIGHT_TORCH, "distributed": "", "distributed/run": LIGHT_TORCHRUN}
    for name, text in modules.items():
        path = tmp_path / "light/torch" / name
        file = path.with_suffix(".py") if "/" in name else path / "__init__.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "light"))


NOT_PROFILED = "import sys, torch\nassert sys.modules['portagpu_launched'].process.profile is None"


@pytest.mark.usefixtures("light_torch")
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("options", "said"),
    [({}, "the command used no GPU"), ({"region": True}, "no region was opened")],
)
def test_what_the_processes_say_explains_an_absence(
    tool: str, options: dict[str, Any], said: str, run_with: Callable[..., Run]
) -> None:
    run = run_with(tool, NOT_PROFILED, what={"kernels": 0}, **options)
    assert result(run, "command").verdict is Verdict.PASS
    assert said in result(run, "captured").reason


def test_regions_give_several_reports_of_one_rank(
    run_with: Callable[..., Run], tmp_path: Path
) -> None:
    run = run_with("nsys", region=True)
    captured = result(run, "captured")
    assert captured.extra["files"] == ["process.1.sqlite", "process.2.sqlite"]
    assert captured.value == 4


def test_ranges_alone_are_counted_as_such(run_with: Callable[..., Run]) -> None:
    run = run_with("nsys", record=frozenset({"ranges"}))
    captured = result(run, "captured")
    assert captured.verdict is Verdict.PASS
    assert captured.value == captured.extra["counts"]["range"] == 1


def test_what_was_asked_for_has_to_be_there(run_with: Callable[..., Run]) -> None:
    captured = result(run_with("rocprofv3", record=frozenset({"copies"})), "captured")
    # the fake writes kernels
    assert captured.extra["counts"]["kernel"] == 2
    assert captured.verdict is Verdict.FAIL
    assert captured.reason.startswith("no copies were captured: ")


RANKS = """
    import os, sys
    assert len(sys.argv) == 2 and sys.argv[1] == "a b"
    print(os.environ["RANK"])
"""


def torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, text: str) -> Run:
    path = install(tool, tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    script = str(write_script(tmp_path, text))
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", script)
    return profiled(tmp_path, *words, "a b", tool=tool)


@pytest.mark.usefixtures("light_torch")
@pytest.mark.parametrize("tool", TOOLS)
def test_a_rank_without_output_is_named(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the fake nsys and the fake library read what to capture at the end
    monkeypatch.setenv("FAKE_MISSING_RANK", "1")
    run = torchrun(tmp_path, monkeypatch, tool, RANKS)
    assert result(run, "captured", "rank 0").verdict is Verdict.PASS
    missing = result(run, "captured", "rank 1")
    assert missing.verdict is Verdict.FAIL
    assert missing.reason.startswith("nothing was captured: ")


@pytest.mark.parametrize(
    ("what", "name", "verdict"),
    [
        ({"export": False}, "process.nsys-rep", Verdict.FAIL),
        ({"damaged": True}, "process.sqlite", Verdict.ERROR),
    ],
)
def test_a_report_that_cannot_be_opened_is_named(
    what: Any, name: str, verdict: Verdict, run_with: Callable[..., Run]
) -> None:
    run = run_with("nsys", what=what)
    broken = result(run, "output", name)
    assert result(run, "captured").reason == f"nothing was captured: {name} cannot be opened"
    assert broken.verdict is verdict
    if verdict is Verdict.FAIL:
        assert broken.reason == (
            "nsys export exited with code 1: Failed to export: the report is damaged"
        )


def test_slurms_rank_names_the_output(
    run_with: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in ("1", "10"):
        monkeypatch.setenv("SLURM_PROCID", rank)
        assert result(run_with("nsys"), "captured", f"rank {rank}").verdict is Verdict.PASS
    assert files(tmp_path) == [
        f"rank{rank}.{suffix}" for rank in (1, 10) for suffix in ("nsys-rep", "sqlite")
    ]
    with pytest.raises(Refused, match=r"holds captures of another run \(rank10"):
        run_with("nsys")


def test_a_folder_that_takes_no_file_is_refused_before_anything_is_said(
    capfd: pytest.CaptureFixture[str],
) -> None:
    # of the kernel: root may not write there either
    folder = "/proc/self/task"
    assert cli.main(["profile", "--with", "torch", "-o", folder, "--", "true"]) == 2
    _, err = capfd.readouterr()
    (line,) = err.splitlines()
    assert line.startswith(f"portagpu: profile: {folder} cannot be written (")


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("", "utf-8")
    options = ProfileOptions(words=("true",), folder=tmp_path / "out", tool="torch")
    with pytest.raises(Refused, match=r"cannot be written \(File exists\): name another folder"):
        profile(options, read=read)


def test_without_the_libraries_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    words = ["-o", str(tmp_path / "out"), "--with", "torch", "--", "touch", str(tmp_path / "ran")]
    assert cli.main(["profile", *words]) == 3
    assert "traces need pyarrow, which is not installed: pip install" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_damaged_notes_are_left_out(tmp_path: Path) -> None:
    texts = ("", "[]", "3", '{"pid": 1}', '{"rank": 2}', '{"pid": 4, "new": 1, "rank": 0}', "\0")
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.json").write_text(text, "utf-8")
    (tmp_path / "7.json.part").write_text('{"pid": 9}', "utf-8")
    (tmp_path / "8.json").write_bytes(b'{"pid": "\xff"}')
    assert [(note.pid, note.rank) for note in read_notes(tmp_path)] == [(1, None), (4, 0)]


@pytest.mark.parametrize(
    ("world", "local", "ranks"),
    [(4, 4, {0, 1, 2, 3}), (4, 2, {2}), (None, None, {2})],
    ids=["one node", "two nodes", "unknown"],
)
def test_missing_ranks_are_those_of_this_machine(
    world: int | None, local: int | None, ranks: set[int]
) -> None:
    began = Note(pid=1, rank=2, world_size=world, local_world_size=local)
    assert expected_ranks([began, Note(pid=2)]) == ranks


def test_ctrl_c_ends_the_whole_tree(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        f"""
        import signal, subprocess, sys, time
        started = {str(tmp_path / "started")!r}
        # it leaves the session, and ignores Ctrl-C
        code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        code += f"open({{started!r}}, 'w').close(); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        time.sleep(600)
        """,
    )
    words = ["-m", "portagpu", "profile", "--with", "torch", "--", sys.executable, str(script)]
    with subprocess.Popen(
        [sys.executable, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        started = tmp_path / "started"
        wait_until(lambda: started.exists() or process.poll() is not None, "it does not begin")
        assert process.poll() is None, process.stdout and process.stdout.read()
        tree = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        out = process.communicate(timeout=60)[0].decode()
    assert len(tree) == 2
    assert process.returncode == 130, out
    assert "interrupted" in out
    assert [pid for pid in tree if _runs(pid)] == []


def _runs(pid: int) -> bool:
    """Whether it is there and no zombie, which its new parent has yet to reap."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def test_a_command_has_time_to_end_after_ctrl_c(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        f"""
        import pathlib, time
        folder = pathlib.Path({str(tmp_path)!r})
        try:
            (folder / "started").touch()
            time.sleep(600)
        except KeyboardInterrupt:
            (folder / "report").write_text("whole")
        """,
    )
    code = f"""
import os, signal, threading, time
from pathlib import Path
from portagpu.base.subprocesses.start import run_attached
def press():
    while not Path({str(tmp_path / "started")!r}).exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press).start()
try:
    run_attached({sys.executable!r}, {str(script)!r})
except KeyboardInterrupt:
    raise SystemExit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 9
    assert (tmp_path / "report").read_text("utf-8") == "whole"


def test_a_command_takes_ctrl_c_where_a_shell_had_us_ignore_it() -> None:
    code = "import signal; raise SystemExit(signal.getsignal(2) is signal.SIG_IGN)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_attached(sys.executable, "-c", code) == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_variable_can_be_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAKEN", "1")
    code = "import os; raise SystemExit(5 if 'TAKEN' in os.environ else 6)"
    assert run_attached(sys.executable, "-c", code) == 5
    assert run_attached(sys.executable, "-c", code, environment={"TAKEN": None}) == 6
