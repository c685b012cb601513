"""Random programs find faults of numbers that a seed draws, which takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from tests.ranks.test_fault_score import FAULT_RANKS, PROGRAMS, SEED, check_that_programs_find
from tests.support.search_ranks import prepare

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks


@pytest.mark.torch
def test_programs_find_what_a_seed_draws(ranks: Ranks) -> None:
    check_that_programs_find(prepare(ranks), "numbers")


@pytest.mark.parametrize("area", ["generators", "ranges", "autocast", "scaler"])
def test_without_a_fault_nothing_is_found(search_ranks: Ranks, area: str) -> None:
    outcome = search_ranks.run(
        f"{FAULT_RANKS}:first_programs",
        arguments={"area": area, "faults": [""], "number": SEED, "most": PROGRAMS},
        backend="cpu",
        group=False,
        most_s=600.0,
    )
    assert outcome.values[0] == [["", PROGRAMS]]
