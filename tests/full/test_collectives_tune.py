"""Tune on live ranks: every value is checked, a winner has to repeat, faults are named."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from portagpu.base.subprocesses.start import python_environment
from portagpu.devices.collectives import tuning
from portagpu.devices.collectives.algorithms import WAYS, TunedGroup
from portagpu.devices.collectives.tuning import (
    Candidate,
    Entry,
    Point,
    Profile,
    in_ranges,
    read_profile,
)
from portagpu.devices.registry import backend
from portagpu.facts.nccl_tests.model import TUNED
from portagpu.runs.results.run import Run
from portagpu.runs.results.verdicts import Evidence, Verdict
from portagpu.runs.world import Ranks
from portagpu.suites.collectives import TuneOptions, profile_of, tune
from tests.benchmarks import tune_figures
from tests.conftest import ROOT
from tests.full.test_collectives_verify import running_with
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.results.run import Result

pytestmark = pytest.mark.torch

FAULTS = ROOT / "tests/support/tune_faults.py"
LIMIT_S = 200


def of_fault(name: str, **options: Any) -> Run:
    given = {"worlds": (2,), "operations": ("all_reduce",), "sizes": (4096,), **options}
    return tune(TuneOptions(backend="cpu", function=f"{FAULTS}:{name}", **given))


def by_id(run: Run) -> dict[str, Result]:
    return {result.id: result for result in run.results}


@pytest.fixture(scope="module")
def sweep() -> Run:
    return tune(TuneOptions(backend="cpu", worlds=(2, 3), sizes=(1024, 8192, 65536)))


def test_every_candidate_is_checked_at_every_point(sweep: Run) -> None:
    assert sweep.verdict is Verdict.PASS, sweep.why
    assert len(sweep.results) == len(TUNED) * 2 * 3
    for result in sweep.results:
        operation = result.id.split("/")[2]
        assert set(result.extra["wrong"]) == set(WAYS[operation])
        assert not result.extra["refused"]
        assert set(result.extra["time_us"]) == set(WAYS[operation])
        assert result.value == 0
        assert Evidence.EXECUTED in result.evidence
        assert "memory" in result.does_not_show
    # a size is rounded down to whole elements for each rank
    assert "collectives/tune/all_gather/float32/65532[3]" in by_id(sweep)


def test_the_run_makes_a_profile(sweep: Run, tmp_path: Path) -> None:
    found = profile_of(sweep)
    assert read_profile(found.write(tmp_path / "p.json")) == found
    comm = backend("cpu").comm
    assert comm.machine is not None
    found.check(comm.machine, comm.stack)
    assert {(each.operation, each.ranks) for each in found.entries} == {
        (operation, world) for operation in TUNED for world in (2, 3)
    }
    for entry in found.entries:
        for each in entry.ranges:
            believed = [point.pairs > 0 for point in each.points]
            assert all(believed) or each.candidate.name == "call"
            assert all(point.ratio >= 1.0 for point in each.points)
        assert entry.fit is not None
        assert entry.fit.points >= 3 * 3
    choice = comm.choose("all_reduce", 8192, ranks=2, profile=found)
    assert str(choice.basis).startswith("measured on ")


def test_what_repeats_is_chosen() -> None:
    run = of_fault("is_slow_by_default", sizes=(1024, 4096, 16384))
    assert run.verdict is Verdict.PASS
    (entry,) = profile_of(run).entries
    for each in entry.ranges:
        assert each.candidate.way != "call"
    for point in entry.points:
        assert point.ratio > 3
        assert point.default_us > 20e3
        assert point.pairs >= 6
        assert not point.refuted
    assert entry.fit is not None
    assert entry.default_fit is not None
    assert entry.fit.time_us(4096) < entry.default_fit.time_us(4096)


def test_what_does_not_repeat_is_not_chosen() -> None:
    run = of_fault("is_slow_at_first")
    (result,) = run.results
    assert result.verdict is Verdict.PASS
    assert result.extra["chosen"]["name"] == "call"
    assert result.extra["point"]["refuted"] in WAYS["all_reduce"]
    assert result.extra["point"]["ratio"] == 1.0


@pytest.mark.parametrize("world", [2, 4])
def test_a_wrong_candidate_fails_the_point_and_makes_no_profile(world: int) -> None:
    run = of_fault("drops_a_bit_in_chunks", worlds=(world,))
    assert (run.verdict, run.exit_code) == (Verdict.FAIL, 1)
    (result,) = run.results
    assert result.device == "rank 1"
    assert result.reason.startswith("chunks-2, exact values: rank 1 has ")
    assert " at index 5, expected " in result.reason
    assert result.extra["wrong"]["chunks-2"] > 0
    assert result.extra["wrong"]["call"] == 0
    assert "point" not in result.extra
    with pytest.raises(ValueError, match="no profile: collectives/tune/all_reduce/float32/4096"):
        profile_of(run)


def test_what_the_library_refuses_is_left_out() -> None:
    run = of_fault("refuses_int32", dtypes=("int32", "float32"))
    refused = by_id(run)["collectives/tune/all_reduce/int32/4096[2]"]
    assert (refused.verdict, refused.reason) == (
        Verdict.SKIP,
        "the library refuses int32: no int32 today",
    )
    assert {each.dtype for each in profile_of(run).entries} == {"float32"}
    (result,) = of_fault("refuses_chunks").results
    assert result.verdict is Verdict.PASS
    assert result.extra["refused"] == {"chunks-2": "no chunks today", "chunks-4": "no chunks today"}
    assert "chunks-2" not in result.extra["time_us"]


@pytest.mark.parametrize(
    ("fault", "state", "verdict"),
    [
        ("rank_1_dies", "died", Verdict.FAIL),
        ("rank_1_stops", "hung", Verdict.FAIL),
        ("rank_1_never_comes", "hung", Verdict.FAIL),
        ("rank_1_raises", "raised", Verdict.ERROR),
    ],
)
@pytest.mark.usefixtures("quiet_machine")
def test_a_lost_rank_is_named_in_one_line(fault: str, state: str, verdict: Verdict) -> None:
    run = of_fault(fault, timeout_s=8.0)  # allowed: what it limits never ends
    (result,) = run.results
    assert result.id == "collectives/tune/all_reduce[2]"
    assert (result.verdict, result.value, result.device) == (verdict, state, "rank 1")
    assert result.reason.startswith("rank 1 ")
    assert "\n" not in result.reason
    assert run.exit_code == 1
    with pytest.raises(ValueError, match="no profile: "):
        profile_of(run)


# settings of a vendor's table: Gloo takes the place of its library


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"name": "ring", "since": "1.0", "operations": ["all_reduce"], "algorithm": "ring"}
    environment = {"ACME_ALGORITHM": "Ring"}
    table = {"library": "Gloo", "candidate": [{**row, "environment": environment}]}
    monkeypatch.setattr(tuning, "tables", lambda name: {"acme": table})
    # Gloo has neither a vendor nor a version of its own
    monkeypatch.setattr(
        import_module("portagpu.suites.collectives.tune"),
        "settings",
        lambda _, library, __, operation: tuning.settings("acme", library, "1.2", operation),
    )


@pytest.mark.usefixtures("acme")
def test_settings_are_tried_on_fresh_ranks_and_repeated() -> None:
    run = of_fault("is_fast_with_the_variable", sizes=(1024, 4096, 16384))
    assert run.verdict is Verdict.PASS
    (entry,) = profile_of(run).entries
    (found,) = entry.ranges
    assert found.candidate.environment == {"ACME_ALGORITHM": "Ring"}
    assert (found.candidate.name, found.candidate.way) == ("ring", "call")
    for point in found.points:
        assert point.ratio > 3
        assert point.pairs >= 6


@pytest.mark.usefixtures("acme")
def test_settings_that_are_not_faster_are_not_chosen() -> None:
    (result,) = of_fault("is_slow_with_the_variable").results
    assert result.extra["chosen"]["environment"] == {}
    assert result.extra["wrong"]["ring"] == 0
    assert result.extra["time_us"]["ring"] > 20e3


@pytest.mark.usefixtures("acme")
def test_settings_that_do_not_repeat_are_not_chosen() -> None:
    run = of_fault("is_fast_once_with_the_variable", sizes=(1024, 4096))
    result = by_id(run)["collectives/tune/all_reduce/float32/4096[2]"]
    assert result.verdict is Verdict.PASS
    assert result.extra["chosen"]["environment"] == {}
    assert result.extra["point"]["refuted"] == "ring"


@pytest.mark.usefixtures("acme")
def test_a_rank_that_dies_when_settings_are_repeated_is_named() -> None:
    run = of_fault("dies_when_repeated_with_the_variable", sizes=(1024, 4096))
    (result,) = run.results
    assert result.id == "collectives/tune/all_reduce/ring[2]"
    assert (result.verdict, result.value, result.device) == (Verdict.FAIL, "died", "rank 1")
    with pytest.raises(ValueError, match="no profile: "):
        profile_of(run)


@pytest.mark.usefixtures("acme")
def test_wrong_values_of_settings_fail_the_point() -> None:
    (result,) = of_fault("is_wrong_with_the_variable").results
    assert result.verdict is Verdict.FAIL
    assert result.reason.startswith("ring: call, exact values: rank 1 has ")


# a profile in use


def by_hand(*ways: tuple[str, str], ranks: int = 2, **fields: Any) -> Profile:
    """A profile of this machine in which these ways of operations won from 1 KiB to 1 MiB."""
    comm = backend("cpu").comm
    assert comm.machine is not None
    points = [
        Point(size_bytes=size, default_us=2.0, chosen_us=1.0, ratio=2.0, spread=0.0, pairs=12)
        for size in (1024, 1 << 20)
    ]
    entries = tuple(
        Entry(
            operation=operation,
            dtype="float32",
            ranks=ranks,
            nodes=1,
            ranges=in_ranges([(Candidate(name=way, way=way), point) for point in points]),
        )
        for operation, way in ways
    )
    given = {"machine": comm.machine, "stack": comm.stack, **fields}
    return Profile(**given, portagpu="1", made="2026-01-01T00:00:00Z", entries=entries)


COMPOSED = (
    ("all_reduce", "reduce_scatter+all_gather"),
    ("all_gather", "broadcasts"),
    ("reduce_scatter", "all_to_all+sum"),
    ("broadcast", "scatter+all_gather"),
    ("all_reduce_many", "flat"),
)


@pytest.mark.parametrize("world", [2, 3])
def test_every_way_leaves_what_the_librarys_call_leaves(world: int) -> None:
    with Ranks() as ranks:
        outcome = ranks.run(f"{FAULTS}:every_way", world, backend="cpu")
    for found in outcome.values:
        assert len(found) == 3 * sum(map(len, WAYS.values()))
        assert not [each for each in found if not each[3]]


def test_a_tuned_group_does_what_the_profile_says(tmp_path: Path) -> None:
    path = by_hand(*COMPOSED).write(tmp_path / "p.json")
    with Ranks() as ranks:
        outcome = ranks.run(
            f"{FAULTS}:with_a_profile", 3, arguments={"path": str(path)}, backend="cpu"
        )
    first, *others = outcome.values
    for found in (first, *others):
        assert "no times of 3 ranks on 1 node: it has 2 on 1 node" in found["world"]
    for found in others:
        assert found["ways"] == [way for _, way in COMPOSED[:4]]
        assert (found["outside"], found["dtype"]) == ("call", "call")
        assert found["blocking"] == [True, True]
        assert found["async"] == [False, True, True, True]
        for name in ("max", "shape", "gathered", "scattered", "sent", "many"):
            assert found[name], name


def test_a_way_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="takes 'spiral' for all_reduce, which this portagpu"):
        TunedGroup(by_hand(("all_reduce", "spiral")), None, 2)
    with pytest.raises(ValueError, match="no times of 4 ranks on 2 nodes"):
        TunedGroup(by_hand(*COMPOSED), None, 4, 2)


@pytest.mark.parametrize("way", ["chunks-4", "reduce_scatter+all_gather"])
def test_ddp_with_the_hook_has_the_same_gradients(tmp_path: Path, way: str) -> None:
    path = by_hand(("all_reduce", way)).write(tmp_path / "p.json")
    with Ranks() as ranks:
        outcome = ranks.run(f"{FAULTS}:trains", 2, arguments={"path": str(path)}, backend="cpu")
    for plain, hooked in outcome.values:
        assert plain == pytest.approx(hooked)
        assert any(plain)
    # the mean of both ranks
    assert outcome.values[0][1] == pytest.approx(outcome.values[1][1])


def test_the_figures_time_what_the_profile_chose() -> None:
    profile = by_hand(*COMPOSED[:4], ("all_reduce_many", "call"))
    found = tune_figures.gains(profile, pairs=2)
    assert [(operation, way) for operation, _, size, way, _ in found if size == 1024] == [
        *COMPOSED[:4],
        ("all_reduce_many", "call"),
    ]
    for operation, _, _, _, ratios in found:
        assert ratios == [1.0] if operation == "all_reduce_many" else len(ratios) == 2
        assert min(ratios) > 0
    assert tune_figures.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


# the command


def command(*arguments: str, verb: str = "tune") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "portagpu", "collectives", verb, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=python_environment(),
        check=False,
    )


def test_the_command_writes_what_can_be_used(tmp_path: Path) -> None:
    path, sizes = tmp_path / "p.json", tmp_path / "sizes"
    sizes.write_text("1048576\n" * 30)
    few = ["--backend", "cpu", "--ranks", "2", "--only", "all_reduce"]
    done = command(
        *few,
        *(part for size in ("1K", "16K", "256K") for part in ("--size", size)),
        *("--profile", str(path), "--emit-dir", str(tmp_path / "out"), "--json", "-"),
        *("--params", str(sizes), "--backward-ms", "20"),
    )
    assert done.returncode == 0, done.stderr
    run = Run.from_json(json.loads(done.stdout))
    assert profile_of(run) == read_profile(path)
    assert "no configuration of a tuner: Gloo reads none" in done.stderr
    assert "DDP: bucket_cap_mb = " in done.stderr
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"ddp.json"}
    assert "bucket_cap_mb" in json.loads((tmp_path / "out" / "ddp.json").read_text())
    chosen = command(
        *("--ranks", "2", "--profile", str(path), "--bytes", "16K", "--json", "-"), verb="choose"
    )
    assert chosen.returncode == 0, chosen.stderr
    basis = json.loads(chosen.stdout)["choice"]["basis"]
    assert basis["kind"] == "measured"
    assert "error p50" in basis["words"]
    for options, words in [
        (("--ranks", "16"), "no times of 16 ranks"),
        (("--ranks", "2", "--target", "nvidia-h100-sxm"), "profile of another machine"),
        (("--ranks", "2", "--library-version", "9.9"), "profile of another version"),
        (("--ranks", "2", "--op", "reduce"), "too few times of reduce"),
        (("--ranks", "2", "--measured", "x"), "either --measured or --profile"),
    ]:
        wrong = command(*options, "--profile", str(path), "--bytes", "16K", verb="choose")
        assert wrong.returncode == 2, wrong.stdout
        (line,) = wrong.stderr.splitlines()
        assert words in line
    path.write_text(path.read_text()[:-40])
    wrong = command("--ranks", "2", "--profile", str(path), "--bytes", "16K", verb="choose")
    assert wrong.returncode == 2
    assert "is not a profile of collectives" in wrong.stderr


def test_ctrl_c_ends_every_rank_and_writes_no_profile(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    program = [sys.executable, "-P", "-m", "portagpu", "collectives", "tune", "--backend", "cpu"]
    files = ["--json", str(tmp_path / "run.json"), "--profile", str(tmp_path / "p.json")]
    child = subprocess.Popen(
        [*program, "--full", "--ranks", "2", *files],
        env={**python_environment(), "PORTAGPU_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: len(running_with(mark)) >= 4, "the ranks do not begin")
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=LIMIT_S)
    finally:
        child.kill()
    assert child.returncode == 130
    assert output.splitlines()[-1] == "no profile: the run was interrupted"
    wait_until(lambda: not running_with(mark), "a rank is left")
    assert Run.from_json(json.loads((tmp_path / "run.json").read_text())).info.interrupted
    assert not (tmp_path / "p.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "sendrecv"], "'sendrecv' is not one of"),
        (["--size", "many"], "'many' is not a number of bytes"),
        (["--ranks", "1"], "1 is not in the range"),
        (["--timeout", "nan"], "nan is not a finite number"),
        (["--quick", "--full"], "give either --quick or --full"),
        (["--params", "/nowhere/sizes"], "--params and --backward-ms need each other"),
        (["--params", "/nowhere/sizes", "--backward-ms", "1"], "cannot read /nowhere/sizes"),
        (["--profile", "-"], "--profile needs the name of a file, not '-'"),
        (["--profile", "/proc/x/y"], "cannot write /proc/x/y"),
        (["--emit-dir", "/proc/x"], "cannot write /proc/x"),
        (["--backend", "nobody"], "nobody"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str], words: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2, done.stdout
    (line,) = done.stderr.splitlines()
    assert words in line
