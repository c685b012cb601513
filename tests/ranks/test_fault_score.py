"""Random programs find faults that a seed draws from the catalogue, most of them by name.

``tests/support/fault_score.py`` counts it for new seeds, for as long as the suite searches: it runs
in ``tests/deep``. Faults of collectives are in ``test_suite_rank_faults.py``, of memory in
``test_search_memory.py``, of operators in ``test_search_operators.py``, of numbers in ``full/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("torch")

from tests.conftest import ROOT
from tests.support.faults import drawn

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks
    from tests.support.faults import Fault

pytestmark = pytest.mark.torch

FAULT_RANKS: Final = ROOT / "tests/support/fault_ranks.py"
SEED: Final = 0
FAULTS: Final = 6
"""Of each area."""
PROGRAMS: Final = 60
MIN_FOUND: Final = 3
MIN_NAMED: Final = 2
"""Measured: of ``ordering`` 3 are found and 2 named, of ``numbers`` 4, and of the others 5 or 6."""


def is_named(fault: Fault, sentence: str) -> bool:
    """Whether the sentence has one of the fault's words, or it has none."""
    words = fault.words
    return bool(sentence) and (not words or any(each in sentence for each in words))


def check_that_programs_find(ranks: Ranks, area: str) -> None:
    """Most of the faults of an area that the seed draws are found."""
    faults = drawn(area, SEED, FAULTS)
    names = [each.name for each in faults]
    outcome = ranks.run(
        f"{FAULT_RANKS}:first_programs",
        arguments={"area": area, "faults": names, "number": SEED, "most": PROGRAMS},
        backend="cpu",
        group=False,
        most_s=600.0,
    )
    reported = [sentence for sentence, _ in outcome.values[0]]
    assert sum(map(bool, reported)) >= MIN_FOUND, f"{reported} of {names}"
    assert sum(map(is_named, faults, reported)) >= MIN_NAMED, f"{reported} of {names}"


@pytest.mark.parametrize("area", ["generators", "ordering", "ranges", "autocast", "scaler"])
def test_programs_find_what_a_seed_draws(search_ranks: Ranks, area: str) -> None:
    check_that_programs_find(search_ranks, area)
