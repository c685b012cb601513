"""Random programs find faults of numbers that a seed draws, which takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from tests.ranks.test_fault_score import check_that_programs_find
from tests.support.search_ranks import prepare

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks


@pytest.mark.torch
def test_programs_find_what_a_seed_draws(ranks: Ranks) -> None:
    check_that_programs_find(prepare(ranks), "numbers")
