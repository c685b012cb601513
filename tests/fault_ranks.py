"""One rank of a search in which a fault is installed, for ``tests/fault_score.py``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from portagpu.search.rounds import search_rank
from tests.faults import faults_of

if TYPE_CHECKING:
    from portagpu.world import Rank


def search_as_a_case(
    rank: Rank, area: str, table: str, fault: str, seconds: float, journal: str
) -> dict[str, Any] | None:
    """A round of ``seconds`` with a fault of FAULTS or PATCHES, or with none of them."""
    import pytest

    from tests import suite_harness, suite_patches, test_suite_faults

    monkeypatch = pytest.MonkeyPatch()
    if table == "FAULTS":
        kind, attributes, *_ = test_suite_faults.FAULTS[fault]
        rank.gpu = suite_harness.open_device(monkeypatch, kind, **attributes)
    elif table == "PATCHES":
        rank.gpu = suite_harness.open_device(monkeypatch)
        suite_patches.PATCHES[fault].apply(monkeypatch)
    return search_rank(rank, area, 0, seconds, 0.5, journal)


def search_with_fault(
    rank: Rank, area: str, fault: str, number: int, seconds: float, journal: str
) -> dict[str, Any] | None:
    """A round of ``seconds`` with that fault."""
    found = next(each for each in faults_of(area) if each.name == fault)
    if found.device is not None:
        rank.gpu = found.device()
    with found.apply():
        return search_rank(rank, area, number, seconds, 0.5, journal)
