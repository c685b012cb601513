"""Collectives: all_gather and reduce_scatter of different sizes, and of one rank.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

from portagpu.devices.contract import Capability
from portagpu.suites.conformance import case
from portagpu.suites.conformance.ranks import (
    check_each_rank,
    check_right_or_refused,
    json_values,
    payload,
    rank_tensor,
    value_or_refusal,
)

COLLECTIVES = Capability.COLLECTIVES


def _all_gather_uneven(rank):
    import torch
    import torch.distributed as dist

    def call():
        parts = [torch.zeros(each + 1, device=rank.gpu.device) for each in range(rank.world)]
        dist.all_gather(
            parts, torch.full((rank.rank + 1,), 1.0 + rank.rank, device=rank.gpu.device)
        )
        return [json_values(part) for part in parts]

    return value_or_refusal(call)


@case(
    "collectives/uneven-all-gather",
    spec="all_gather of tensors of different sizes is right, or refused on every rank.",
    capability=COLLECTIVES,
    outcome="unsupported",
)
def test_uneven_all_gather(world):
    expected = [[[1.0], [2.0, 2.0], [3.0, 3.0, 3.0]]] * 3
    check_right_or_refused(world(3, _all_gather_uneven), expected, "an uneven all_gather")


def _reduce_scatter_uneven(rank):
    import torch
    import torch.distributed as dist

    def call():
        parts = [
            torch.full((place + 1,), (rank.rank + 1.0) * (place + 1), device=rank.gpu.device)
            for place in range(rank.world)
        ]
        mine = torch.zeros(rank.rank + 1, device=rank.gpu.device)
        dist.reduce_scatter(mine, parts)
        return json_values(mine)

    return value_or_refusal(call)


@case(
    "collectives/uneven-reduce-scatter",
    spec="reduce_scatter of tensors of different sizes is right, or refused.",
    capability=COLLECTIVES,
)
def test_uneven_reduce_scatter(world):
    expected = [[6.0 * (rank + 1)] * (rank + 1) for rank in range(3)]
    check_right_or_refused(world(3, _reduce_scatter_uneven), expected, "an uneven scatter")


def _move_alone(rank):
    import torch
    import torch.distributed as dist

    mine = rank_tensor(rank, payload(rank.rank))
    part, whole, output = (torch.zeros_like(mine) for _ in range(3))
    dist.all_gather([part], mine)
    dist.all_gather_into_tensor(whole, mine)
    dist.reduce_scatter_tensor(output, mine)
    return [json_values(each) for each in (part, whole, output)]


@case(
    "collectives/movement-alone",
    spec="all_gather, all_gather_into_tensor and reduce_scatter_tensor of one rank copy.",
    capability=COLLECTIVES,
)
def test_movement_alone(world):
    check_each_rank(world(1, _move_alone), [[payload(0)] * 3], "copies of one rank")
