"""After a rank of the default group is lost no program runs, and the one that lost it stays so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from portagpu.suites.search.area import Kind
from portagpu.suites.search.collectives.area import RankDidNotAnswer, RankEnded, _Collectives

FIRST: Any = [["all_reduce", {"dtype": "int32"}]]
OTHER: Any = [["barrier", {}]]


class Leader:
    """The end of rank 0, whose others are lost at the first program."""

    def __init__(self, error: Exception) -> None:
        self.error, self.sent = error, list[Any]()

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def answers(self, *_: object) -> dict[int, Any]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (RankDidNotAnswer("rank 1 did not answer within 12 s"), Kind.HANG, "rank 1 did not answer"),
        (RankEnded("rank 1 ended"), Kind.DEATH, "rank 1 ended"),
        (RuntimeError("connection reset"), Kind.VALUE, "connection reset"),
    ],
)
def test_a_lost_rank_ends_all_programs_but_the_one_that_lost_it(
    error: Exception, kind: Kind, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    area, leader, ran = _Collectives(2), Leader(error), list[Any]()
    monkeypatch.setattr(area, "_joined", lambda _: leader)
    monkeypatch.setattr(area, "_report", lambda _, program: ran.append(program))
    rank: Any = SimpleNamespace(rank=0, world=2, broke_group=False)
    with pytest.raises(type(error), match=said):
        area.difference(rank, FIRST)
    assert rank.broke_group
    again = area.difference(rank, FIRST)
    assert said in again
    assert getattr(again, "kind", None) is kind
    assert area.difference(rank, OTHER) == ""
    assert leader.sent == ran == [FIRST], "nothing ran after it"
