"""How many listed programs run, by a clock that the test moves."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("hypothesis")

from portagpu.suites.search import worker
from portagpu.suites.search.area import MAX_PASS, Area

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Program, Runners


class Slow(Area):
    """Twelve programs, each of which takes a while; the first six are the first pass."""

    name = "slow"

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.now_s = 0.0

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        raise NotImplementedError

    def listed(self, gpu: Backend) -> list[Program]:
        return [[("wait", {"n": n})] for n in range(12)]

    def first_pass(self, listed: list[Program]) -> int:
        return len(listed) // 2

    def calls(self) -> Runners:
        return {}

    def difference(self, rank: Rank, program: Program) -> str:
        self.now_s += self.takes_s
        return ""


@pytest.mark.parametrize(
    ("takes_s", "ran"),
    [
        # by hand, of a search of 1 s: all that fit, the first pass, no more than 2 s, and one
        (1 / 8, 8),
        (1 / 4, 6),
        (1 / 2, 4),
        (4.0, 1),
    ],
)
def test_the_first_pass_runs_up_to_twice_the_seconds(
    takes_s: float, ran: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_PASS == 2
    area = Slow(takes_s)
    monkeypatch.setattr(worker, "charged_s", lambda: area.now_s)
    rank: Any = cast("Any", None)
    with tempfile.TemporaryFile() as journal:
        listing = worker.Listing(area, rank, journal.fileno(), 0)
        listing.run(area.listed(rank), 1.0, 1)
    assert listing.programs == listing.next == ran
