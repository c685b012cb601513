"""A device without a fault passes the cases of faults with as many random programs as a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import inspect

from portagpu.runs.results.run import Verdict
from portagpu_cpu.backend import CpuBackend
from tests.support import suite_harness
from tests.support.looped import rest
from tests.support.suite_patches import PATCHES
from tests.torch.test_suite_faults import (
    CASES,
    FAULTS,
    _Nothing,
    does_not_fail,
    fails_the_case_for_it,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

NAMES = {name for _, _, name, _ in FAULTS.values()} | {each.case for each in PATCHES.values()}


@pytest.mark.parametrize("name", sorted(each for each in NAMES if each.endswith("-programs")))
def test_good_backend_passes_many_random_programs(
    monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path
) -> None:
    gpu = suite_harness.open_device(monkeypatch)
    result = suite_harness.run(gpu, name, tmp_path, programs=400)
    assert result.verdict in (Verdict.PASS, Verdict.SKIP), f"{name}: {result.reason}"


@pytest.mark.processes(1, "some cases run in a child")
@pytest.mark.parametrize("fault", rest(FAULTS))
def test_backend_with_a_fault_fails_the_case_for_it(
    monkeypatch: pytest.MonkeyPatch, fault: str, tmp_path: Path
) -> None:
    fails_the_case_for_it(monkeypatch, fault, tmp_path)


@pytest.mark.parametrize("name", rest(CASES))
def test_good_backend_does_not_fail_the_case(
    monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path
) -> None:
    does_not_fail(monkeypatch, name, tmp_path)


@pytest.mark.processes(2, "some cases run in a child")
def test_backend_that_answers_none_fails_every_method_that_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = suite_harness.open_device(monkeypatch, _Nothing)
    returning = {
        f"Backend.{name}"
        for name, _ in inspect.getmembers(CpuBackend, inspect.isfunction)
        if not name.startswith("_")
    } - {
        *("Backend.synchronize", "Backend.empty_cache", "Backend.activate", "Backend.set_stream"),
        *("Backend.ipc_collect", "Backend.mark"),
        *("Backend.profiler_start", "Backend.profiler_stop", "Backend.attached_profiler"),
    }
    caught: set[str] = set()
    for name, case in suite_harness.everything().items():
        covered = returning & set(case.listed.covers)
        if case.needs_ranks or not covered or covered <= caught:
            continue
        if suite_harness.run(gpu, name).verdict is Verdict.FAIL:
            caught |= covered
    assert caught == returning, f"no case notices that these return None: {returning - caught}"
