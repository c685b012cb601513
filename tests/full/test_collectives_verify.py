"""Verify on live ranks: what is right passes, each seeded fault fails and names its rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")


from fractions import Fraction

import torch

from portagpu.base.subprocesses.start import python_environment
from portagpu.facts.nccl_tests.model import OPERATIONS
from portagpu.facts.nccl_tests.tables import read_tables, write_text
from portagpu.runs.results.run import Run
from portagpu.runs.results.verdicts import Evidence, Verdict
from portagpu.suites.collectives import VerifyOptions, tables_of, verify
from portagpu.suites.collectives.ranks import Inputs, kinds
from tests.conftest import ROOT
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from portagpu.runs.results.run import Result

pytestmark = pytest.mark.torch

FAULTS = ROOT / "tests/support/commbench_faults.py"
LIMIT_S = 100


def of_fault(name: str, **options: Any) -> Run:
    given = {"worlds": (4,), "operations": ("all_reduce",), "dtypes": ("float32",), **options}
    return verify(VerifyOptions(backend="cpu", function=f"{FAULTS}:{name}", **given))


def by_id(run: Run) -> dict[str, Result]:
    return {result.id: result for result in run.results}


# values and their oracles


# live


@pytest.fixture(scope="module")
def sweep() -> Run:
    return verify(
        VerifyOptions(
            backend="cpu", worlds=(1, 3), dtypes=("float32", "bfloat16", "int8", "uint64")
        )
    )


def test_everything_that_the_library_takes_passes(sweep: Run) -> None:
    assert sweep.verdict is Verdict.PASS, sweep.why
    counts = {0, 1, 7, 1023}
    for operation in OPERATIONS:
        for world in (1, 3):
            if (operation, world) == ("sendrecv", 1):
                continue
            found = {
                result.shape["count"]  # type: ignore[index, call-overload]
                for result in sweep.results
                if result.id.startswith(f"collectives/verify/{operation}/float32/")
                and result.id.endswith(f"[{world}]")
                and result.verdict is Verdict.PASS
            }
            assert counts < found, f"{operation} over {world}"


def test_what_the_library_refuses_is_skipped_with_its_words(sweep: Run) -> None:
    refused = by_id(sweep)["collectives/verify/all_reduce/uint64[3]"]
    assert refused.verdict is Verdict.SKIP
    assert refused.reason == "the library refuses uint64: Invalid scalar type"
    assert not refused.evidence
    assert by_id(sweep)["collectives/verify/sendrecv[1]"].verdict is Verdict.SKIP


def test_bandwidths_follow_from_the_times(sweep: Run) -> None:
    found = by_id(sweep)
    result = found["collectives/verify/all_gather/float32/5461[3]"]
    # 64 KiB for 3 ranks: 5461 floats each
    assert result.shape["bytes"] == 5461 * 4 * 3  # type: ignore[index, call-overload]
    for place in ("out_of_place", "in_place"):
        measured = result.extra[place]
        assert measured["n"] == 5
        assert measured["algbw_gbs"] == pytest.approx(65532 / measured["time_us"] / 1e3)
        assert measured["busbw_gbs"] == pytest.approx(measured["algbw_gbs"] * 2 / 3)
    alone = found["collectives/verify/all_reduce/float32/16384[1]"]
    assert alone.extra["in_place"]["busbw_gbs"] is None
    assert "out_of_place" not in alone.extra
    assert Evidence.EXECUTED in alone.evidence


def test_the_run_is_written_as_tables(sweep: Run) -> None:
    tables = tables_of(sweep)
    written = read_tables("".join(map(write_text, tables)))
    assert len(written) == len(tables) == 2 * len(OPERATIONS) - 1
    for table, again in zip(tables, written, strict=True):
        assert (again.operation, again.ranks) == (table.operation, table.ranks)
        assert [row.size_bytes for row in again.rows] == [row.size_bytes for row in table.rows]
        assert again.ended
        assert again.out_of_bounds == 0
        assert {row.dtype for row in again.rows} >= {"float32", "bfloat16", "int8"}


# seeded faults


@pytest.mark.parametrize(
    ("fault", "rank", "words"),
    [
        ("drops_the_last_rank", "rank 0", "sum in place exact values: rank 0 has "),
        ("changes_an_element", "rank 0", " at index 5, expected "),
        ("gives_rank_1_another_copy", "rank 1", "rank 1 has "),
        ("reduces_in_bfloat16", "rank 0", "sum in place exact values: rank 0 has "),
        ("rounds_sums_twice_as_often", "rank 0", "sum in place random values: rank 0 has "),
        ("averages_by_the_sum", "rank 0", "avg in place exact values: rank 0 has "),
        ("does_nothing", "rank 0", "sum in place exact values: rank 0 has "),
    ],
)
def test_a_broken_all_reduce_fails(fault: str, rank: str, words: str) -> None:
    run = of_fault(fault)
    assert (run.verdict, run.exit_code) == (Verdict.FAIL, 1)
    result = by_id(run)["collectives/verify/all_reduce/float32/1023[4]"]
    assert result.verdict is Verdict.FAIL
    assert result.device == rank
    assert words in result.reason
    assert isinstance(result.value, int)
    assert result.value > 0
    assert "in_place" not in result.extra, "a wrong value has no bandwidth"


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each != "all_reduce"])
def test_every_other_operation_can_fail_too(operation: str) -> None:
    nothing = of_fault("does_nothing", operations=(operation,), worlds=(2,), sizes=(4096,))
    assert nothing.verdict is Verdict.FAIL
    element = of_fault("changes_an_element", operations=(operation,), worlds=(2,), sizes=(4096,))
    (result,) = element.results
    assert " at index 5, expected " in result.reason


def test_a_fault_that_needs_two_ranks_is_not_one_alone() -> None:
    assert of_fault("gives_rank_1_another_copy", worlds=(1,)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("fault", "state", "verdict"),
    [
        ("rank_1_dies", "died", Verdict.FAIL),
        ("rank_1_hangs", "hung", Verdict.FAIL),
        ("rank_1_stops", "hung", Verdict.FAIL),
        ("rank_1_never_comes", "hung", Verdict.FAIL),
        ("rank_1_raises", "raised", Verdict.ERROR),
    ],
)
@pytest.mark.usefixtures("quiet_machine")
def test_a_lost_rank_is_named_in_one_line(fault: str, state: str, verdict: Verdict) -> None:
    run = of_fault(fault, worlds=(2,), timeout_s=8.0)  # allowed: what it limits never ends
    (result,) = run.results
    assert result.id == "collectives/verify/all_reduce[2]"
    assert (result.verdict, result.value, result.device) == (verdict, state, "rank 1")
    assert result.reason.startswith("rank 1 ")
    assert "\n" not in result.reason
    assert run.exit_code == 1


@pytest.mark.usefixtures("quiet_machine")
def test_after_a_rank_hung_nothing_else_begins() -> None:
    operations = ("broadcast", "all_reduce", "reduce")
    run = of_fault(
        "rank_1_never_comes", worlds=(2,), operations=operations, timeout_s=6.0
    )  # allowed: what it limits never ends
    found = by_id(run)
    hung = "collectives/verify/broadcast[2]"
    assert found[hung].verdict is Verdict.FAIL
    for operation in operations[1:]:
        left = found[f"collectives/verify/{operation}[2]"]
        assert (left.verdict, left.blocked_by) == (Verdict.INCONCLUSIVE, hung)
    assert run.exit_code == 1


# the command


def command(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "portagpu", "collectives", "verify", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**python_environment(), **extra},
        check=False,
    )


def running_with(mark: str) -> list[str]:
    """Processes that have ``mark`` in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.mark.usefixtures("started")
def test_the_command_verifies_and_leaves_nothing(tmp_path: Path) -> None:
    mark = f"PORTAGPU_TEST_MARK={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    done = command(
        "--backend",
        "cpu",
        "--ranks",
        "2",
        "--only",
        "reduce_scatter",
        "--dtype",
        "float32",
        "--size",
        "8K",
        "--json",
        str(tmp_path / "run.json"),
        "--tables",
        str(tmp_path / "tables.txt"),
        **{name: value},
    )
    assert done.returncode == 0, done.stderr
    assert "PASS" in done.stdout
    run = Run.from_json(json.loads((tmp_path / "run.json").read_text()))
    assert [result.id for result in run.results] == [
        "collectives/verify/reduce_scatter/float32/1024[2]"
    ]
    (table,) = read_tables((tmp_path / "tables.txt").read_text())
    assert (table.operation, table.ranks, table.rows[0].size_bytes) == ("reduce_scatter", 2, 8192)
    assert not running_with(mark)
    assert os.environ.get(name) is None
    again = command("--replay", str(tmp_path / "tables.txt"))
    assert again.returncode == 0, again.stdout


@pytest.mark.usefixtures("started")
def test_ctrl_c_ends_every_rank(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    program = [sys.executable, "-P", "-m", "portagpu", "collectives", "verify", "--backend", "cpu"]
    child = subprocess.Popen(
        [*program, "--full", "--ranks", "2", "--json", str(tmp_path / "run.json")],
        env={**python_environment(), "PORTAGPU_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        # the command, the server, and ranks next to them
        wait_until(lambda: len(running_with(mark)) >= 4, "the ranks do not begin")
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=LIMIT_S)
    finally:
        child.kill()
    assert child.returncode == 130
    assert "interrupted" in output.splitlines()[-1]
    wait_until(lambda: not running_with(mark), "a rank is left")
    assert Run.from_json(json.loads((tmp_path / "run.json").read_text())).info.interrupted


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "barrier"], "'barrier' is not one of"),
        (["--size", "many"], "'many' is not a number of bytes"),
        (["--tables", "-"], "--tables needs the name of a file, not '-'"),
        (["--ranks", "0"], "0 is not in the range"),
        (["--timeout", "nan"], "nan is not a finite number"),
        (["--replay", "x", "--ranks", "2"], "--replay judges files"),
        (["--quick", "--full"], "give either --quick or --full"),
        (["--replay", "/nowhere/x.txt"], "cannot be read: No such file"),
        (["--backend", "nobody"], "nobody"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str], words: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2, done.stdout
    (line,) = done.stderr.splitlines()
    assert words in line


def test_words_of_a_refusal_are_one_line() -> None:
    run = of_fault("refuses_int32", dtypes=("int32", "float32"), worlds=(2,))
    assert run.verdict is Verdict.PASS
    assert by_id(run)["collectives/verify/all_reduce/int32[2]"].reason == (
        "the library refuses int32: no int32 today"
    )


@pytest.mark.parametrize("world", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("redop", ["sum", "prod", "avg"])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"])
def test_exact_values_are_exact_in_every_order(name: str, redop: str, world: int) -> None:
    """In exact arithmetic, every prefix of every rotation is a number of the dtype."""
    dtype = getattr(torch, name)
    if "exact" not in kinds(dtype, redop, world):
        return
    inputs = Inputs(dtype=dtype, world=world, length=16, redop=redop, kind="exact", seed=7)
    sent = [inputs.sent(rank).to(torch.float64).tolist() for rank in range(world)]
    expected, bound = inputs.reduced()
    assert bound is None
    for index in range(16):
        for start in range(world):
            found = Fraction(1 if redop == "prod" else 0)
            for step in range(world):
                each = Fraction(sent[(start + step) % world][index])
                found = found * each if redop == "prod" else found + each
                rounded = torch.tensor(float(found), dtype=torch.float64).to(dtype)
                assert Fraction(rounded.to(torch.float64).item()) == found
        found = found / world if redop == "avg" else found
        assert Fraction(expected[index].to(torch.float64).item()) == found
