"""Running the suite in child processes: crashes, hangs, hostile folders, interruption, ranks."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from portagpu.base.errors import TargetNotFound, UnknownBackend
from portagpu.base.patience import Patience
from portagpu.runs.results.run import Evidence, Result, Verdict
from portagpu.suites.conformance import ConformOptions, Selection, list_cases, messages
from portagpu.suites.conformance import conform as run_suite
from portagpu.suites.conformance.messages import SuiteError
from portagpu.suites.conformance.options import SelectionError
from tests.support.case_files import Recorder, by_id, conform, write_cases
from tests.support.waits import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]

OUTCOMES = '''
@case("rng/passes", spec="Passes.")
def test_passes(gpu): pass

@case("rng/fails", spec="Fails.")
def test_fails(gpu):
    """A sentence and what pytest adds to it."""
    three = 3
    assert three == 4, "three is not four"

@case("rng/raises", spec="Raises.")
def test_raises(gpu): raise RuntimeError("no such device\\nmore")

@case("rng/hangs", spec="Hangs.", timeout_s=1.0)
def test_hangs(gpu): threading.Event().wait()

@case("rng/segfaults", spec="Dies.")
def test_segfaults(gpu): os.kill(os.getpid(), signal.SIGSEGV)

@case("rng/is-killed", spec="Dies.")
def test_is_killed(gpu): os.kill(os.getpid(), signal.SIGKILL)

@case("rng/exits", spec="Ends the process.")
def test_exits(gpu): os._exit(0)

@case("rng/skips", spec="Skips itself.")
def test_skips(gpu): import pytest; pytest.skip("not today")

@case("rng/not-here", spec="Needs more.")
def test_not_here(gpu): raise NotHere("needs two devices")

@case("rng/not-claimed", spec="Is about a claim.")
def test_not_claimed(gpu): raise NotClaimed("no fp8")

@case("rng/recorded", spec="Is undefined.", outcome="undefined")
def test_recorded(gpu, record): record("saw 7")

@case("rng/refuses", spec="Is refused.")
def test_refuses(gpu): gpu.Graph()

@case("graphs/refuses", spec="Is refused.", capability="graphs")
def test_graph(gpu): gpu.Graph()

@case("graphs/silent", spec="Does nothing.", capability="graphs")
def test_silent(gpu): pass

@case("graphs/breaks", spec="Breaks.", capability="graphs")
def test_breaks(gpu): raise ValueError("odd")

def fine(rank): return rank.rank

def wrong(rank): assert rank.rank != 1, "this one is wrong"

@case("collectives/fine", spec="Is fine.", capability="collectives")
def test_fine(world): assert world(2, fine) == [0, 1], "the ranks are others"

@case("collectives/wrong", spec="Is wrong.", capability="collectives")
def test_wrong(world): world(2, wrong)

def wrong_for(rank, value): assert value != 2 or rank.rank == 0, "two is wrong"

@case("collectives/one-of-three", spec="Is wrong.", capability="collectives",
      params={"value": (1, 2, 3)})
def test_one_of_three(world, value): world(2, wrong_for, value=value)

@case("telemetry/last", spec="Passes after all that.")
def test_last(gpu): pass
'''


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    folder = write_cases(tmp_path_factory.mktemp("outcomes"), OUTCOMES)
    return by_id(conform("cpu", folder=folder))


EXPECTED = {
    "rng/passes": (Verdict.PASS, ""),
    "rng/fails": (Verdict.FAIL, "three is not four"),
    "rng/raises": (Verdict.FAIL, "raised RuntimeError: no such device"),
    "rng/hangs": (Verdict.FAIL, "did not finish within 1 s and stood in wait (threading.py:"),
    "rng/segfaults": (Verdict.ERROR, "the process died of SIGSEGV"),
    "rng/is-killed": (Verdict.ERROR, "the process died of SIGKILL"),
    "rng/exits": (Verdict.ERROR, "the process ended with status 0"),
    "rng/skips": (Verdict.ERROR, "the case skipped itself"),
    "rng/not-here": (Verdict.INCONCLUSIVE, "needs two devices"),
    "rng/not-claimed": (Verdict.SKIP, "no fp8"),
    "rng/recorded": (Verdict.SKIP, "undefined, recorded and not judged: saw 7"),
    "rng/refuses": (Verdict.FAIL, "every backend must do this, but it raised Unsupported"),
    "graphs/refuses": (
        Verdict.SKIP,
        "cpu does not claim graphs; it raised Unsupported, as it must",
    ),
    "graphs/silent": (Verdict.FAIL, "cpu does not claim graphs, so it must raise Unsupported"),
    "graphs/breaks": (Verdict.FAIL, "instead it failed: raised ValueError: odd"),
    "collectives/fine": (Verdict.PASS, ""),
    "collectives/wrong": (Verdict.FAIL, "rank 1: this one is wrong"),
    "collectives/one-of-three[value1]": (Verdict.PASS, ""),
    "collectives/one-of-three[value2]": (Verdict.FAIL, "rank 1: two is wrong"),
    "collectives/one-of-three[value3]": (Verdict.PASS, ""),
    "telemetry/last": (Verdict.PASS, ""),
}


def test_every_case_has_one_result_and_no_other(outcomes: dict[str, Result]) -> None:
    assert set(outcomes) == set(EXPECTED)


def test_only_what_ran_to_a_verdict_is_executed(outcomes: dict[str, Result]) -> None:
    for name, result in outcomes.items():
        ran = result.verdict in (Verdict.PASS, Verdict.FAIL, Verdict.ERROR)
        expected = (Evidence.EXECUTED,) if ran else ()
        assert result.evidence == expected, f"{name}, {result.verdict}, has {result.evidence}"


def test_broken_files_and_declarations_are_errors_of_the_suite(tmp_path: Path) -> None:
    write_cases(tmp_path, "def test_without_case(gpu): pass\n", "test_memory.py")
    write_cases(tmp_path, "import no_such_module\n", "test_graphs.py")
    twice = '@case("rng/twice", spec="Is there twice.")\ndef test_{}(gpu): pass\n'
    write_cases(tmp_path, twice.format("a") + twice.format("b"))
    vague = '@case("streams/vague", spec="")\ndef test_vague(gpu): pass\n'
    write_cases(tmp_path, vague, "test_streams.py")
    results = conform("cpu", folder=tmp_path)
    reasons = "\n".join(each.reason for each in results if each.verdict is Verdict.ERROR)
    for said in (
        "test_without_case declares no case",
        "No module named 'no_such_module'",
        "are both the case rng/twice",
        "needs a spec",
    ):
        assert said in reasons, f"nothing says {said!r}: {reasons}"
    assert by_id(results)["rng/twice"].verdict is Verdict.PASS


def test_listing_a_broken_suite_is_one_error(tmp_path: Path) -> None:
    write_cases(tmp_path, "import no_such_module\n")
    with pytest.raises(SuiteError, match="no_such_module"):
        list_cases(folder=tmp_path)


def test_another_target_runs_nothing(tmp_path: Path) -> None:
    text = """
    @case("rng/never", spec="Never runs.")
    def test_never(gpu): os._exit(1)

    @case("graphs/never", spec="Never runs.", capability="graphs")
    def test_graph(gpu): os._exit(1)
    """
    folder = write_cases(tmp_path, text)
    results = by_id(conform("cpu", "nvidia-h200-sxm", folder=folder))
    for name, result in results.items():
        assert result.verdict is Verdict.INCONCLUSIVE, f"{name} is {result.verdict}"
        assert "not nvidia-h200-sxm" in result.reason
        assert not result.evidence
    # neither of the CPU targets claims graphs, and this machine is at most one of them
    target = "cpu-x86-64" if platform.machine() == "aarch64" else "cpu-aarch64"
    other = by_id(conform("cpu", target, folder=folder))
    assert other["rng/never"].verdict is Verdict.INCONCLUSIVE
    assert other["graphs/never"].verdict is Verdict.SKIP
    assert f"{target} does not claim graphs" in other["graphs/never"].reason


def test_names_that_do_not_exist_are_refused_before_anything_runs() -> None:
    with pytest.raises(UnknownBackend, match="did you mean 'cpu'"):
        conform("cpi")
    with pytest.raises(TargetNotFound, match="amd-mi300x"):
        conform("cpu", "amd-mi300")
    with pytest.raises(SelectionError, match="did you mean 'rng'"):
        conform("cpu", selection=Selection(only=("rgn",)))


INTERRUPTED = """
import sys
from pathlib import Path
from portagpu.runs.engine import Progress
from portagpu.suites.conformance import ConformOptions, conform

class Printed(Progress):
    def item_begins(self, name, number, total):
        print("start", name, flush=True)
    def result_added(self, result):
        print(result.id, flush=True)

run = conform(ConformOptions(backend="cpu", folder=Path(sys.argv[1])), Printed())
print("interrupted" if run.info.interrupted else "ended", run.exit_code, flush=True)
"""


def test_ctrl_c_keeps_what_was_judged_and_ends_the_child(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    folder = write_cases(
        tmp_path / "cases",
        f"""
        @case("rng/first", spec="Passes.")
        def test_first(gpu): pass

        @case("rng/second", spec="Takes long.")
        def test_second(gpu):
            open({str(mark)!r}, "w").write(str(os.getpid()))
            time.sleep(600)
        """,
    )
    words = [sys.executable, "-c", INTERRUPTED, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("start rng/second"):
                process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, "the caller did not end by itself"
    assert lines == ["start rng/first", "rng/first", "start rng/second", "interrupted 130"]
    if mark.exists() and mark.read_text():
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.read_text()), 0)


def test_progress_reports_the_device_and_every_case(tmp_path: Path) -> None:
    folder = write_cases(
        tmp_path,
        """
        @case("rng/a", spec="Passes.", params={"n": (1, 2), "word": ("x", "y")})
        def test_a(gpu, n, word): pass
        """,
    )
    recorder = Recorder()
    run = run_suite(ConformOptions(backend="cpu", folder=folder), recorder)
    ids = ["rng/a[n1-x]", "rng/a[n1-y]", "rng/a[n2-x]", "rng/a[n2-y]"]
    assert recorder.begun == [(name, number, 4) for number, name in enumerate(ids, 1)]
    assert [each.id for each in run.results] == ids
    assert recorder.results == run.results
    (device,) = recorder.devices
    assert device.backend == run.info.backend == "cpu"
    assert [each["name"] for each in run.info.devices] == [device.product or device.name]
    assert run.info.versions["torch"] == device.versions["torch"]
    assert "collectives" in device.capabilities


def test_a_file_that_cannot_be_read_is_reported_before_a_name_that_it_may_hold(
    tmp_path: Path,
) -> None:
    write_cases(tmp_path, '@case("rng/x", spec="no full stop")\ndef test_x(gpu): pass')
    write_cases(
        tmp_path, '@case("telemetry/y", spec="Passes.")\ndef test_y(gpu): pass', "test_telemetry.py"
    )
    (reported,) = conform("cpu", selection=Selection(only=("rng",)), folder=tmp_path)
    assert reported.verdict is Verdict.ERROR
    assert reported.area == "suite"
    folder = write_cases(tmp_path / "whole", GOOD)
    with pytest.raises(SelectionError):
        conform("cpu", selection=Selection(only=("rnh",)), folder=folder)


GOOD = """
@case("rng/good", spec="Passes.")
def test_good(gpu): pass
"""


def test_compiled_code_is_kept_in_a_folder_that_nobody_else_can_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch's own default is a name in the temporary folder that every user can guess
    # (torch/_inductor/runtime/cache_dir_utils.py, default_cache_dir)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with messages.Child(tmp_path) as child:
        # the kernel has not laid it out at once
        said = wait_until(Path(f"/proc/{child.pid}/environ").read_bytes, "it has no environment")
        environment = said.split(b"\0")
        (cache,) = (each for each in environment if each.startswith(b"TORCHINDUCTOR_CACHE_DIR="))
        folder = Path(os.fsdecode(cache.partition(b"=")[2]))
        assert folder.parent.parent == tmp_path
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        folder.mkdir(exist_ok=True)
        (folder / "code.py").write_text("compiled")
    assert not list(tmp_path.iterdir())


def test_a_process_that_cannot_be_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/proc/none")
    with pytest.raises(OSError, match="/proc/none"):
        messages.Child(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_case_that_exceeds_its_limit_while_it_waits_for_a_cpu_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Linux that does not report which processes wait: the load stands in for it."""
    patience = Patience(proc=tmp_path / "none", load=lambda: 8.0, cpus=lambda: 2)
    monkeypatch.setattr("portagpu.base.subprocesses.channel.PATIENCE", patience)
    folder = write_cases(
        tmp_path / "cases",
        """
        @case("rng/hangs", spec="Hangs.")
        def test_hangs(gpu): threading.Event().wait()
        """,
    )
    (result,) = conform("cpu", folder=folder, timeout_s=1)  # allowed: what it limits never ends
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.reason.startswith(
        "did not finish within 1 s on a busy machine (load 8.0 on 2 CPUs; waited 75 % of the last "
    )
    assert " and stood in wait (threading.py:" in result.reason


def test_a_stopped_process_of_a_case_that_hangs_goes_on_and_ends(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    folder = write_cases(
        tmp_path / "cases",
        f"""
        @case("rng/hangs", spec="Leaves a server that was stopped while it started.")
        def test_hangs(gpu):
            import subprocess
            words = [sys.executable, "-c", "import sys; sys.stdin.read()"]
            server = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
            server.send_signal(signal.SIGSTOP)
            open({str(mark)!r}, "w").write(str(server.pid))
            threading.Event().wait()
        """,
    )
    (result,) = conform("cpu", folder=folder, timeout_s=3)  # allowed: what it limits never ends
    assert result.verdict is Verdict.FAIL
    server = Path(f"/proc/{mark.read_text()}/stat")
    wait_until(
        lambda: not server.exists() or server.read_text().rpartition(")")[2].split()[0] == "Z",
        "what the case started still runs",
    )


def test_what_cases_write_into_their_folder_goes_with_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_cases(
        tmp_path / "cases",
        """
        @case("rng/writes", spec="Writes, and fails, for which pytest keeps what was written.")
        def test_writes(gpu, tmp_path):
            (tmp_path / "file").write_text("x")
            assert False, "kept"
        """,
    )
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", str(place))
    (result,) = conform("cpu", folder=folder)
    assert result.reason == "kept"
    assert not list(place.iterdir())


@pytest.mark.parametrize(("said", "end"), [("", "SIGKILL"), ("no torch", "SIGKILL: no torch")])
def test_a_suite_that_is_killed_before_it_starts_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, end: str
) -> None:
    code = f"import os, sys; print({said!r}, file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"
    (tmp_path / "dies.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(messages, "_PYTEST", "dies")
    with pytest.raises(SuiteError, match=f"the suite cannot run: its process died of {end}$"):
        list_cases(folder=tmp_path)
