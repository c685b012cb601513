"""One rank of a search in which a fault is installed, for ``tests/support/fault_score.py``."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from portagpu.search.rounds import repeat_rank, search_rank
from tests.support.faults import faults_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.world import Rank


def search_as_a_case(
    rank: Rank, area: str, table: str, fault: str, seconds: float, journal: str
) -> dict[str, Any] | None:
    """A round of ``seconds`` with a fault of FAULTS or PATCHES, or with none of them."""
    import pytest

    from tests.support import suite_harness, suite_patches
    from tests.torch import test_suite_faults

    monkeypatch = pytest.MonkeyPatch()
    if table == "FAULTS":
        kind, attributes, *_ = test_suite_faults.FAULTS[fault]
        rank.gpu = suite_harness.open_device(monkeypatch, kind, **attributes)
    elif table == "PATCHES":
        rank.gpu = suite_harness.open_device(monkeypatch)
        suite_patches.PATCHES[fault].apply(monkeypatch)
    return search_rank(rank, area, 0, seconds, 0.5, journal)


@contextlib.contextmanager
def _fault(rank: Rank, area: str, name: str) -> Iterator[None]:
    """The fault of that name is there in the block."""
    found = next(each for each in faults_of(area) if each.name == name)
    if found.device is not None:
        rank.gpu = found.device()
    with found.apply():
        yield


def search_with_fault(rank: Rank, area: str, fault: str, **arguments: Any) -> Any:
    """``rounds.search_rank`` with that fault."""
    with _fault(rank, area, fault):
        return search_rank(rank, area, **arguments)


def repeat_with_fault(rank: Rank, area: str, fault: str, **arguments: Any) -> Any:
    """``rounds.repeat_rank`` with that fault."""
    with _fault(rank, area, fault):
        return repeat_rank(rank, area, **arguments)
