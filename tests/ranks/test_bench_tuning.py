"""Tuning back ends: their state, and what they gain, on a library that is made up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from portagpu.devices.plugin_parts import TunerState, files_below
from portagpu.runs.results.run import Result, Verdict
from portagpu.suites.performance.cases import plan
from portagpu.suites.performance.timing import Effort
from portagpu_rocm.libraries import state_of_file, validators_of
from tests.conftest import ROOT
from tests.process.test_bench_suite import CPU, GPU

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.world import Ranks

FAULTS = ROOT / "tests/support/bench_faults.py"
# torch/cuda/tunable.py shows this file
FILE = """Validator,PT_VERSION,2.2.0
Validator,ROCM_VERSION,6.0.0.0-12969-1544e39
GemmTunableOp_float_NT,nt_25088_4096_64,Gemm_Hipblaslt_1219,1.262
GemmTunableOp_float_NT,nt_4096_4096_64,Gemm_Rocblas_1216,0.033
"""
HERE = [("PT_VERSION", "2.2.0"), ("ROCM_VERSION", "6.0.0.0-12969-1544e39")]


def test_a_file_of_these_versions_is_warm_and_valid(tmp_path: Path) -> None:
    file = tmp_path / "tunableop_results0.csv"
    file.write_text(FILE)
    assert validators_of(FILE) == dict(HERE)
    found = state_of_file(str(file), HERE, on=True)
    assert found == TunerState(True, True, True, str(file), 2)
    other = state_of_file(str(file), [("PT_VERSION", "2.13.0"), HERE[1]], on=False)
    assert (other.on, other.warm, other.valid) == (False, True, False)
    assert "another PT_VERSION" in other.remark


def test_without_a_file_it_is_cold(tmp_path: Path) -> None:
    found = state_of_file(str(tmp_path / "none.csv"), HERE, on=True)
    assert (found.warm, found.valid, found.entries) == (False, None, 0)


def test_files_are_counted(tmp_path: Path) -> None:
    assert files_below(tmp_path / "none") == 0
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").touch()
    (tmp_path / "c").touch()
    assert files_below(tmp_path) == 2


def test_tuners_are_planned_by_name_and_a_device_without_says_so() -> None:
    tuned = replace(GPU, tuners=("one", "two"), triton=True)
    ids = [case.id for case in plan(["tuning"], tuned, Effort.FULL, 2, None)]
    named = ["tuning/library[one]", "tuning/library[two]"]
    assert ids == [*named, "tuning/inductor", "tuning/triton_cache"]
    (none,) = plan(["tuning/library"], CPU, Effort.FULL, 2, None)
    assert none.absent is not None
    assert none.absent.verdict is Verdict.SKIP
    (quick,) = plan(["tuning/inductor"], CPU, Effort.QUICK, 2, None)
    assert quick.absent is not None
    assert "--level full" in quick.absent.reason


def measured(ranks: Ranks, name: str, fault: str) -> Result:
    pytest.importorskip("torch")
    from portagpu.suites.performance import MeasuredDevice, open_device
    from portagpu.suites.performance.case_runner import BenchContext

    device = open_device(ranks, "cpu")
    assert isinstance(device, MeasuredDevice)
    tuned = replace(device, tuners=("demo",), triton=True)
    (case,) = plan([name], tuned, Effort.FULL, 2, None)
    arguments = {**case.arguments, **({"edge": 64} if "edge" in case.arguments else {})}
    case = replace(case, function=f"{FAULTS}:{fault}", arguments=arguments)
    return BenchContext(ranks, device, Effort.QUICK, None).result(case)


@pytest.mark.torch
def test_inductor_has_its_state_and_a_gain(training_ranks: Ranks) -> None:
    found = measured(training_ranks, "tuning/inductor", "inductor_without_a_compiler")
    assert found.verdict in (Verdict.UNVERIFIED, Verdict.INCONCLUSIVE), found.reason
    assert found.extra["state"]["on"] is False
    assert found.extra["state"]["where"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("tuning/library[demo]", "a_tuner_that_makes_products_wrong"),
        ("tuning/inductor", "inductor_that_tunes_wrongly"),
    ],
)
def test_a_wrong_product_keeps_no_gain(training_ranks: Ranks, name: str, fault: str) -> None:
    found = measured(training_ranks, name, fault)
    assert found.verdict is Verdict.FAIL, found.reason
    assert "product is wrong in row 0" in found.reason
    assert found.value is None


@pytest.mark.torch
def test_triton_s_cache_is_worth_the_time_without_over_the_time_with(training_ranks: Ranks) -> None:
    found = measured(training_ranks, "tuning/triton_cache", "first_launches_from_a_cache")
    assert found.verdict is Verdict.UNVERIFIED, found.reason
    assert found.value == 4.0  # half a second without, an eighth with
    assert found.n == 3
    assert (found.extra["cold_s"], found.extra["warm_s"]) == (0.5, 0.125)
    assert found.extra["kept_files"] == 1
    assert found.extra["state"]["on"] is True


@pytest.mark.torch
@pytest.mark.parametrize(
    ("fault", "verdict", "words"),
    [
        ("first_launches_that_keep_nothing", Verdict.SKIP, "the cache is off"),
        ("first_launches_that_compile_again", Verdict.FAIL, "went from 1 to 4 files"),
    ],
)
def test_a_cache_that_is_not_used_saves_nothing(
    training_ranks: Ranks, fault: str, verdict: Verdict, words: str
) -> None:
    found = measured(training_ranks, "tuning/triton_cache", fault)
    assert found.verdict is verdict, found.reason
    assert words in found.reason
    assert found.value is None
