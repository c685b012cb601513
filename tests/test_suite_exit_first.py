"""``conform -x`` for real: what was not begun is not judged."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from portagpu.results.verdicts import Verdict
from portagpu.suite import ConformOptions, Selection, conform
from tests.case_files import Recorder, write_cases

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def test_what_was_not_begun_when_the_run_ends_is_inconclusive() -> None:
    pytest.importorskip("torch")
    recorder = Recorder()
    recorder.ended = lambda: "not begun, because it is late" if recorder.results else ""
    options = ConformOptions(backend="cpu", selection=Selection(only=("rng/seed-*",)))
    found = conform(options, recorder).results
    assert len(found) > 1
    late = "not begun, because it is late"
    assert [each.reason for each in found[1:]] == [late] * (len(found) - 1)
    assert {each.verdict for each in found[1:]} == {Verdict.INCONCLUSIVE}


def test_nothing_begins_after_the_first_failure(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = """
    @case("rng/a", spec="Passes.")
    def test_a(gpu): pass
    @case("rng/b", spec="Fails.")
    def test_b(gpu): assert False, "no"
    @case("rng/c", spec="Passes.")
    def test_c(gpu): pass
    """
    options = ConformOptions(backend="cpu", folder=write_cases(tmp_path / "cases", text))
    passed, failed, third = conform(options).results
    assert (failed.verdict, third.verdict) == (Verdict.FAIL, Verdict.PASS)
    passed, failed, third = conform(replace(options, exit_first=True)).results
    assert (passed.verdict, failed.verdict) == (Verdict.PASS, Verdict.FAIL)
    assert third.verdict is Verdict.INCONCLUSIVE
    assert third.reason == "not begun, because rng/b failed (-x)"


def test_help_names_both_options() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "portagpu", "conform", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "-x, --exitfirst" in shown
    assert "-v, --verbose" in shown
