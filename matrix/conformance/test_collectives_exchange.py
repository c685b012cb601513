"""Collectives: all_to_all in parts of equal and of different sizes.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

from portagpu.contract import Capability
from portagpu.suite import case
from portagpu.suite.ranks import (
    SEVERAL,
    check_all_refused,
    check_each_rank,
    check_right_or_refused,
    json_values,
    rank_tensor,
    value_or_refusal,
)

COLLECTIVES = Capability.COLLECTIVES


def _all_to_all(rank, form):
    import torch
    import torch.distributed as dist

    def call():
        sent = [rank_tensor(rank, [10.0 * rank.rank + each]) for each in range(rank.world)]
        if form == "list":
            got = [torch.zeros(1, device=rank.gpu.device) for _ in range(rank.world)]
            dist.all_to_all(got, sent)
            return json_values(torch.cat(got))
        whole = torch.zeros(rank.world, device=rank.gpu.device)
        dist.all_to_all_single(whole, torch.cat(sent))
        return json_values(whole)

    return value_or_refusal(call)


@case(
    "collectives/all-to-all",
    spec="all_to_all gives rank r the r-th part of every rank.",
    capability=COLLECTIVES,
    params={"form": ("single", "list"), "n": SEVERAL},
)
def test_all_to_all(world, form, n):
    expected = [[10.0 * source + rank for source in range(n)] for rank in range(n)]
    check_right_or_refused(world(n, _all_to_all, form=form), expected, "all_to_all")


def _all_to_all_uneven(rank):
    import torch
    import torch.distributed as dist

    # rank r sends r elements to everyone: rank 0 sends nothing at all
    sends = [rank.rank] * rank.world
    receives = list(range(rank.world))
    sent = torch.full((sum(sends),), float(rank.rank), device=rank.gpu.device)
    got = torch.zeros(sum(receives), device=rank.gpu.device)
    dist.all_to_all_single(got, sent, receives, sends)
    return json_values(got)


@case(
    "collectives/uneven-all-to-all",
    spec="all_to_all_single moves parts of different sizes, of size zero too.",
    capability=COLLECTIVES,
)
def test_uneven_all_to_all(world):
    check_each_rank(world(3, _all_to_all_uneven), [[1.0, 2.0, 2.0]] * 3, "uneven parts")


def _all_to_all_with_wrong_splits(rank):
    import torch
    import torch.distributed as dist

    def call():
        value = torch.zeros(3, device=rank.gpu.device)
        dist.all_to_all_single(torch.zeros_like(value), value, [2, 0], [2, 0])
        return "accepted"

    return value_or_refusal(call)


@case(
    "collectives/wrong-splits",
    spec="Splits that do not add up to the tensor are refused with an error.",
    capability=COLLECTIVES,
    outcome="unsupported",
)
def test_wrong_splits(world):
    check_all_refused(world(2, _all_to_all_with_wrong_splits), "splits of 2 for 3 elements")
