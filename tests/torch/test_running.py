"""One way to run: every engine takes options and a progress, and returns one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.patience import Starvation
from portagpu.checks import bringup
from portagpu.checks.recordings.replay import Recording
from portagpu.runs.engine import (
    OpenedDevice,
    Progress,
    UnknownDevice,
    add_result,
    broken_world,
    complete,
)
from portagpu.runs.results.run import Result, Run, Verdict, new_run
from portagpu.runs.world import RankOutcome, RankState
from portagpu.runs.world.client import WorldOutcome
from portagpu.suites import compile as compile_
from portagpu.suites import conformance as suite
from portagpu.suites import performance as bench
from portagpu.suites.conformance.fixtures import _failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIST = "GPU 0: NVIDIA H200 (UUID: GPU-a)\n"
ASKED: dict[str, Any] = {"target": "cpu-x86-64", "strict": True, "command": ["portagpu", "x"]}


def _conform(path: Path, progress: Progress) -> Run:
    return suite.conform(suite.ConformOptions(backend="cpu", seed=0, **ASKED), progress)


def _bench(path: Path, progress: Progress) -> Run:
    pytest.importorskip("torch")
    return bench.run(bench.BenchOptions(backend="cpu", **ASKED), progress)


def _compile(path: Path, progress: Progress) -> Run:
    return compile_.compile_kernels(compile_.CompileOptions(**ASKED), progress)


def _bringup(path: Path, progress: Progress) -> Run:
    (path / "list").write_text(LIST)
    replay = Recording(str(path / "list"))
    return bringup.bringup(bringup.BringupOptions(replay=replay, **ASKED), progress)  # type: ignore[arg-type]


def _hung(waited_s: float) -> WorldOutcome:
    starved = Starvation(60.0, waited_s, 9.0, 2)
    rank = RankOutcome(0, RankState.HUNG, where="wait (c10d.py:3)", starved=starved)
    return WorldOutcome("module:function", (rank,), 60.0, culprit=0)


def test_a_rank_that_hung_is_a_failure_unless_the_machine_was_busy() -> None:
    quiet, busy = _hung(0.5), _hung(30.0)
    assert broken_world(quiet, quiet.first_failure)["verdict"] is Verdict.FAIL
    assert quiet.sentence == "rank 0 hung in wait (c10d.py:3)"
    found = broken_world(busy, busy.first_failure)
    assert found["verdict"] is Verdict.INCONCLUSIVE
    clause = "load 9.0 on 2 CPUs; waited 50 % of the last 60 s for a CPU"
    assert found["reason"] == f"rank 0 hung in wait (c10d.py:3) on a busy machine ({clause})"
    assert [
        getattr(_failure(each.ranks[0], each.sentence), "kind", None) for each in (quiet, busy)
    ] == ["hung", "starved"]
    assert (busy.ok, busy.first_failure and busy.first_failure.is_starved) == (False, True)


def test_a_rank_that_died_is_a_failure_on_a_busy_machine_too() -> None:
    died = RankOutcome(0, RankState.DIED, starved=Starvation(60.0, 30.0, 9.0, 2))
    outcome = WorldOutcome("module:function", (died,), 60.0, culprit=0)
    assert broken_world(outcome, outcome.first_failure)["verdict"] is Verdict.FAIL


@pytest.mark.parametrize("engine", [_conform, _bench, _compile, _bringup])
def test_an_engine_that_is_interrupted_returns_the_run(
    engine: Callable[[Path, Progress], Run], tmp_path: Path
) -> None:
    reported: list[str] = []

    class Pressed(bringup.GateProgress):
        def begin(self, run: Run) -> None:
            reported.append(f"begin {len(run.results)}")
            raise KeyboardInterrupt

        def end(self) -> None:
            reported.append("end")

    run = engine(tmp_path, Pressed())
    assert reported == ["begin 0", "end"]
    assert (run.info.interrupted, run.exit_code, run.verdict) == (True, 130, Verdict.INCONCLUSIVE)
    assert (run.info.target, run.info.strict) == ("cpu-x86-64", True)
    assert list(run.info.command) == ["portagpu", "x"]


def test_what_breaks_ends_the_progress_and_is_raised() -> None:
    ended = []

    class Ended(Progress):
        def end(self) -> None:
            ended.append(True)

    def work(run: Run) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        complete(new_run(), Ended(), work)
    assert ended == [True]


def test_a_result_is_reported_when_it_is_in_the_run() -> None:
    run = new_run()
    seen = []

    class Seen(Progress):
        def result_added(self, result: Result) -> None:
            seen.append((result.id, len(run.results)))

    add_result(run, Seen(), Result(id="a/b", suite="s", area="a", verdict=Verdict.PASS))
    assert seen == [("a/b", 1)]


def test_the_first_device_says_what_ran_and_each_is_listed() -> None:
    run = new_run()
    first = OpenedDevice(backend="b", name="b:0", product="P", arch="x", versions={"torch": "2"})
    first.describe_in(run, "here", "arch")
    OpenedDevice(backend="c", name="c:1", arch="y").describe_in(run, "there", "arch")
    assert (run.info.backend, run.info.target, run.info.versions["torch"]) == ("b", "here", "2")
    assert list(run.info.devices) == [{"name": "P", "arch": "x"}, {"name": "c:1", "arch": "y"}]


@pytest.mark.torch
def test_a_device_that_is_not_there_is_refused_before_anything_begins() -> None:
    pytest.importorskip("torch")
    begun = []

    class Begun(Progress):
        def begin(self, run: Run) -> None:
            begun.append(run)

    with pytest.raises(UnknownDevice, match="no device 9: it sees 1"):
        bench.run(bench.BenchOptions(backend="cpu", index=9), Begun())
    with pytest.raises(UnknownDevice, match="no device 9: it sees 1"):
        suite.conform(suite.ConformOptions(backend="cpu", index=9), Begun())
    assert begun == []
