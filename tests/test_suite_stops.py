"""``conform -x`` for real: what was not begun is not judged."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from portagpu.results.verdicts import Verdict
from portagpu.suite import Selection, conform

if TYPE_CHECKING:
    from portagpu.results.run import Result

pytestmark = pytest.mark.torch


def test_what_was_not_begun_when_the_run_ends_is_inconclusive() -> None:
    pytest.importorskip("torch")
    seen: list[Result] = []
    found = conform(
        "cpu",
        selection=Selection(only=("rng/seed-*",)),
        on_result=seen.append,
        ended=lambda: "not begun, because it failed (-x)" if seen else "",
    )
    assert len(found) > 1
    assert [each.reason for each in found[1:]] == ["not begun, because it failed (-x)"] * (
        len(found) - 1
    )
    assert {each.verdict for each in found[1:]} == {Verdict.INCONCLUSIVE}


def test_help_names_both_options() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "portagpu", "conform", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "-x, --exitfirst" in shown
    assert "-v, --verbose" in shown
