"""What ranks do that search with a fault, for ``tests/support/fault_score.py`` and tests."""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from portagpu.suites.search.area import load_area
from portagpu.suites.search.worker import Budget, Listing, Round, repeat_rank, search_rank
from tests.support.faults import faults_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.runs.world import Rank


def search_as_a_case(
    rank: Rank, area: str, table: str, fault: str, most: int
) -> tuple[str, int] | None:
    """The first programs with a fault of FAULTS or PATCHES, or with none of them."""
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
    return _first_programs(rank, area, 0, most)


@contextlib.contextmanager
def _fault(rank: Rank, area: str, name: str) -> Iterator[None]:
    """The fault of that name is there in the block."""
    found = next(each for each in faults_of(area) if each.name == name)
    good = rank.gpu
    if found.device is not None:
        rank.gpu = found.device()
    with found.apply():
        yield
    rank.gpu = good


def search_with_fault(rank: Rank, area: str, fault: str, **arguments: Any) -> Any:
    """``rounds.search_rank`` with that fault."""
    with _fault(rank, area, fault):
        return search_rank(rank, area, **arguments)


def repeat_with_fault(rank: Rank, area: str, fault: str, **arguments: Any) -> Any:
    """``rounds.repeat_rank`` with that fault."""
    with _fault(rank, area, fault):
        return repeat_rank(rank, area, **arguments)


def first_programs(
    rank: Rank, area: str, faults: list[str], number: int, most: int
) -> list[tuple[str, int] | None]:
    """What the first programs of the seed ``number`` report of each fault, and how many ran.

    ``most`` at most. No clock decides, and nothing is shrunk. The fault "" is none.
    """
    reported = []
    for fault in faults:
        rank.step(fault)
        with _fault(rank, area, fault) if fault else contextlib.nullcontext():
            reported.append(_first_programs(rank, area, number, most))
    return reported


def _first_programs(rank: Rank, area: str, number: int, most: int) -> tuple[str, int] | None:
    found = load_area(area)
    if rank.rank:
        found.follow(rank)
        return None
    found.load()
    listed = found.listed(rank.gpu)
    with tempfile.TemporaryFile() as journal:
        if listed is None:
            budget = Budget(seconds=math.inf, shrink_s=0.0, max_programs=most)
            drawn = Round(found, rank, journal.fileno(), budget).run(number)
            reported = drawn.difference, drawn.programs
        else:
            listing = Listing(found, rank, journal.fileno(), 0)
            listing.run(found.ordered(listed, number)[:most], math.inf, 1)
            reported = listing.found[0][1][0] if listing.found else "", listing.programs
    found.end(rank)
    return reported
