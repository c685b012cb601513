"""The suite catches a broken FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from tests.ranks.test_suite_rank_faults import (
    DEAR,
    PROGRAMS,
    SEARCHED,
    conform,
    fails,
    run_random_programs,
)
from tests.ranks.test_suite_rank_faults import outcome_of as outcome_of
from tests.support.broken_collectives import FAULTS

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.world import Ranks

pytestmark = pytest.mark.torch


def test_library_with_a_fault_fails_the_case_for_it(tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "child"
    site.mkdir()
    folder.mkdir()
    fails(conform(site, folder, [FAULTS[DEAR][0]]), DEAR)


@pytest.mark.parametrize("fault", SEARCHED)
def test_random_programs_find_the_fault_and_name_it(outcome_of: dict[str, str], fault: str) -> None:
    assert outcome_of[fault], f"{PROGRAMS} random programs pass on a library that {fault}"
    assert FAULTS[fault][1] in outcome_of[fault], (
        f"the sentence does not name the fault: {outcome_of[fault]}"
    )


def test_a_reduce_op_that_is_not_claimed_may_be_refused(search_ranks: Ranks) -> None:
    fault = "refuses a reduce op that is claimed"
    assert run_random_programs(search_ranks, [fault], unclaimed="AVG", most=30) == [["", 30]]
