"""Estimates against published runs: memory within its range, and no step faster than its bound."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

pytest.importorskip("torch")

from portagpu.train.planning import Layout, Recipe, estimate, find_model
from tests.benchmarks.plan_memory import GIB, reserved
from tests.benchmarks.plan_times import ASYNC, H200, MLPERF, TITANS, Run, efficiency_of
from tests.support.published_memory import TITAN_ROWS

ALL = (*TITANS, *ASYNC, *H200)
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("row", TITAN_ROWS, ids=[row[0] for row in TITAN_ROWS])
def test_a_published_peak_is_in_the_range(row: Any) -> None:
    _, model, recipe, layout, reported = row
    found = estimate(find_model(model), Recipe(**recipe), Layout(**layout))
    assert found.least <= reported * GIB <= found.most


def test_published_peaks_are_near_the_expected_ones() -> None:
    off = []
    for _, model, recipe, layout, reported in TITAN_ROWS:
        found = estimate(find_model(model), Recipe(**recipe), Layout(**layout))
        off.append(abs(reserved(found) / GIB / reported - 1))
    assert median(off) < 0.10
    assert max(off) < 0.20


@pytest.mark.parametrize("run", ALL, ids=[run.name for run in ALL])
def test_no_published_step_is_faster_than_the_bound(run: Run) -> None:
    reported, bound = run.errors(None)
    assert bound < reported < 3.5 * bound


@pytest.mark.parametrize("run", MLPERF[1::2], ids=[run.name for run in MLPERF[1::2]])
def test_no_step_of_mlperf_is_faster_than_fp8(run: Run) -> None:
    reported, bound = run.errors(None)
    assert bound < reported < 3.5 * bound


def test_one_measured_run_predicts_the_others() -> None:
    share = efficiency_of(TITANS[0])
    off = []
    for run in ALL[1:]:
        reported, predicted = run.errors(share)
        off.append(abs(predicted / reported - 1))
    assert 0.3 < share < 0.6
    assert median(off) < 0.15
    assert max(off) < 0.35
