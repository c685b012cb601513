"""Collectives that are compared between the ranks before they run."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from portagpu.base.errors import CollectiveError
from portagpu.devices.collectives.calls import Call, call_of_tensor, disagreement
from portagpu.devices.collectives.checked import CheckedGroup
from tests.support.processes import descendants, ports_of

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

RANKS = "tests.support.checked_ranks"


def values(ranks: Ranks, function: str, world: int, **options: Any) -> list[Any]:
    lost = options.pop("lost", ())
    return ranks.run(
        f"{RANKS}:{function}", world, arguments=options, lost=lost, backend="cpu", timeout_s=60.0
    ).values


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_every_collective_gives_what_torch_gives(ranks: Ranks, n: int) -> None:
    for me, got in enumerate(values(ranks, "all_collectives", n)):
        assert got["all_reduce"] == sum(range(n))
        assert got["broadcast"] == n - 1
        assert got["reduce"] == (n if me == 0 else None)
        assert got["all_gather"] == list(range(n))
        assert got["all_gather_into_tensor"] == [10 * other for other in range(n)]
        assert got["reduce_scatter"] == got["reduce_scatter_tensor"] == n * me
        assert got["all_to_all_single"] == [float(r) for r in range(n) for _ in range(r + 1)]
        assert got["gather"] == ([float(r) for r in range(n)] if me == 0 else None)
        assert got["scatter"] == me
        assert got["async"] == n


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("collective", "rank 1 called broadcast with root 0 of float32[4] on cpu, and rank 0 "),
        ("shape", "rank 1 called all_reduce(SUM) of float32[5] on cpu, and rank 0 "),
        ("dtype", "rank 1 called all_reduce(SUM) of int32[4] on cpu, and rank 0 "),
        ("root", "rank 1 called broadcast with root 1 of float32[4] on cpu, and rank 0 "),
        ("reduce op", "rank 1 called all_reduce(MAX) of float32[4] on cpu, and rank 0 "),
        ("splits", "rank 1 sends 2 rows to rank 0 in all_to_all_single, and rank 0 receives 1"),
        ("barrier", "rank 1 called all_reduce(SUM) of float32[4] on cpu, and rank 0 called bar"),
    ],
)
def test_a_mismatch_names_both_sides_on_every_rank(ranks: Ranks, kind: str, said: str) -> None:
    for seen in values(ranks, "differ", 3, kind=kind):
        name, message, *_ = seen["first"]
        assert name == "CollectiveMismatch"
        assert message.startswith(said)
        assert "\n" not in message
        assert seen["tensor"] == [1.0] * 4
        assert seen["then"][0] == "CollectiveError"
        assert message in seen["then"][1]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("killed", "rank 2 did not come back from it: all_reduce(SUM) of float32[4194304]"),
        ("sleeps", "rank 2 did not call it in 5 s: all_reduce(SUM) of float32[4194304]"),
        ("raises", "rank 2 did not call it in 5 s: all_reduce(SUM) of float32[4194304]"),
    ],
)
def test_a_lost_rank_is_named(ranks: Ranks, how: str, said: str) -> None:
    reported = values(ranks, "lose", 4, how=how, victim=2, lost=[2])
    assert reported.pop(2) is None
    for seen in reported:
        name, message, lost, _ = seen["first"]
        assert (name, lost) == ("RankLost", [2])
        assert message.startswith(said)
        assert "(call 1 of this group)" in message


def test_ranks_that_are_lost_on_purpose_leave_nothing(ranks: Ranks) -> None:
    outcome = ranks.run(
        f"{RANKS}:lose",
        3,
        arguments={"how": "sleeps", "victim": 1},
        lost=[1],
        backend="cpu",
        timeout_s=60.0,
    )
    assert outcome.ok
    assert [str(each.state) for each in outcome.ranks] == ["done", "lost", "done"]
    assert outcome.culprit is None
    assert outcome.duration_s < 60.0, "the world waited for the rank that sleeps"


@pytest.mark.parametrize("how", ["killed", "sleeps", "raises"])
def test_a_failure_leaves_no_process_and_no_port(ranks: Ranks, how: str) -> None:
    with socket.create_server(("127.0.0.1", 0)):
        assert ports_of(os.getpid()), "a port that is open is not seen"
    values(ranks, "lose", 3, how=how, victim=1, lost=[1])
    assert ranks._child is not None
    pid = ranks._child.pid
    assert not descendants(pid), "ranks are left of a world that is over"
    assert not ports_of(pid), "a port of a world that is over is left open"


@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "reduce", "scatter", "expand"])
def test_a_view_with_gaps_is_refused_on_every_rank(ranks: Ranks, name: str) -> None:
    """Gloo of torch 2.13 writes the wrong elements, and beyond the end of an expanded tensor."""
    called = "all_reduce" if name == "expand" else name
    for (kind, said, lost, _), untouched, total in values(ranks, "gaps", 2, name=name):
        assert (kind, lost, untouched, total) == ("CollectiveError", [], True, 6.0)
        assert said.startswith(f"the tensor of rank {int(name != 'expand')} in {called}")
        assert "give tensor.contiguous()" in said


def test_a_dense_view_is_reduced(ranks: Ranks) -> None:
    assert values(ranks, "gaps", 2, name="dense") == [[None, True, 12.0]] * 2


def test_a_new_group_works_after_a_mismatch(ranks: Ranks) -> None:
    assert values(ranks, "again", 3) == [{"first": "CollectiveMismatch", "sum": 3.0}] * 3


def test_a_part_of_the_ranks(ranks: Ranks) -> None:
    first, outside, last = values(ranks, "members", 3)
    assert outside == "this rank is not a member of the group that is to be checked"
    assert first == last
    assert first[0] == 2.0
    assert first[1].startswith("rank 2 called all_reduce(SUM) of float64[1]"), "global ranks"


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_limit_that_is_none_is_refused(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="a number of seconds above 0"):
        CheckedGroup(timeout_s=timeout_s)


def test_an_op_is_stated_by_its_name_in_every_form() -> None:
    import torch
    import torch.distributed as dist

    forms = (dist.ReduceOp.MAX, dist.ReduceOp(dist.ReduceOp.MAX))
    calls = [call_of_tensor("all_reduce", torch.ones(2), op=op) for op in forms]
    assert [call.reduce_op for call in calls] == ["MAX", "MAX"], (
        "an address is not the name of an op"
    )


def test_without_a_group_it_says_what_to_call() -> None:
    with pytest.raises(CollectiveError, match="call init_process_group first"):
        CheckedGroup()


def test_who_differs_from_most_is_named_first() -> None:
    usual, odd = Call(name="barrier"), Call(name="all_reduce", dtype="int8", shape=(), device="x")
    assert disagreement({0: usual, 1: usual, 2: usual}) == ""
    for at in range(3):
        calls = {rank: odd if rank == at else usual for rank in range(3)}
        sentence = disagreement(calls)
        assert sentence.startswith(f"rank {at} called all_reduce of int8[] on x, and rank ")
        assert sentence.endswith("called barrier")


def test_splits_agree_where_what_is_sent_is_received() -> None:
    def exchange(sends: tuple[int, ...], receives: tuple[int, ...]) -> Call:
        return Call(name="all_to_all_single", sends=sends, receives=receives)

    good = {4: exchange((0, 3), (0, 2)), 7: exchange((2, 1), (3, 1))}
    assert disagreement(good) == ""
    bad = {4: exchange((0, 3), (0, 2)), 7: exchange((2, 1), (4, 1))}
    assert disagreement(bad) == (
        "rank 4 sends 3 rows to rank 7 in all_to_all_single, and rank 7 receives 4"
    )
