"""The engine of ``portagpu screen`` on ranks: counts, wrong results, and ranks that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.runs.results.verdicts import Verdict
from tests.ranks.test_screen import of, screened

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

pytestmark = pytest.mark.torch


def test_another_target_is_not_screened(ranks: Ranks) -> None:
    run = screened(ranks, "GOOD", target="amd-mi300x")
    assert {each.verdict for each in run.results} == {Verdict.INCONCLUSIVE}
    assert "not amd-mi300x" in of(run, "device").reason
