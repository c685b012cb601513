"""The suite catches what is broken next to the device; see ``tests/support/suite_patches.py``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from portagpu.runs.results.run import Verdict
from tests.support import suite_harness
from tests.support.looped import few
from tests.support.suite_patches import PATCHES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def written(sentence: str | re.Pattern[str]) -> str | re.Pattern[str]:
    return re.escape(sentence) if isinstance(sentence, str) else sentence


@pytest.mark.processes(1, "some cases run in a child")
@pytest.mark.parametrize("fault", few(PATCHES))
def test_fault_fails_the_case_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str
) -> None:
    fails_the_case_for_it(monkeypatch, tmp_path, fault)


def fails_the_case_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str) -> None:
    patch = PATCHES[fault]
    gpu = suite_harness.open_device(monkeypatch, **dict(patch.attributes))
    with monkeypatch.context() as broken:
        patch.apply(broken)
        result = suite_harness.run(gpu, patch.case, tmp_path, ("PATCHES", fault))
    reported = f"what {fault} is {result.verdict} in {patch.case}: {result.reason}"
    assert result.verdict is Verdict.FAIL, reported
    assert re.search(written(patch.sentence), result.reason), reported


CASES = sorted({patch.case for patch in PATCHES.values()})


@pytest.mark.parametrize("name", few(CASES))
def test_without_a_fault_the_case_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    passes_without_a_fault(monkeypatch, tmp_path, name)


def passes_without_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    gpu = suite_harness.open_device(monkeypatch)
    result = suite_harness.run(gpu, name, tmp_path, programs=suite_harness.WELL)
    assert result.verdict is Verdict.PASS, f"{name}: {result.reason}"
