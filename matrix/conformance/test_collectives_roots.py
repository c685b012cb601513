"""Collectives: calls with a root: of one rank, undefined, and refused.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

from portagpu.devices.contract import Capability
from portagpu.suites.conformance import case, refused
from portagpu.suites.conformance.ranks import (
    check_each_rank,
    json_values,
    payload,
    rank_tensor,
)

COLLECTIVES = Capability.COLLECTIVES


def _broadcast(rank):
    import torch.distributed as dist

    value = rank_tensor(rank, payload(rank.rank))
    dist.broadcast(value, 0)
    return json_values(value)


@case(
    "collectives/broadcast-alone",
    spec="broadcast in a world of one rank changes nothing.",
    capability=COLLECTIVES,
)
def test_broadcast_alone(world):
    check_each_rank(world(1, _broadcast), [payload(0)], "a broadcast to itself")


def _reduce(rank):
    import torch.distributed as dist

    value = rank_tensor(rank, payload(rank.rank))
    dist.reduce(value, 0)
    return json_values(value)


@case(
    "collectives/reduce-elsewhere",
    spec="What reduce leaves in the buffers of the other ranks is not specified.",
    capability=COLLECTIVES,
    outcome="undefined",
)
def test_reduce_elsewhere(world, record):
    found = world(3, _reduce)
    kept = [rank for rank in (1, 2) if found[rank] == payload(rank)]
    record(f"ranks that kept their own values: {kept or 'none'}")


def _scatter_list_elsewhere(rank):
    import torch
    import torch.distributed as dist

    if rank.rank == 0:
        return "root"
    part = torch.zeros(1, device=rank.gpu.device)
    error = refused(
        lambda: dist.scatter(part, [part, part], src=0), ValueError, "a list on a rank without root"
    )
    return type(error).__name__


@case(
    "collectives/scatter-list-elsewhere",
    spec="A list of tensors to scatter on a rank that is not the root is refused.",
    capability=COLLECTIVES,
    outcome="unsupported",
)
def test_scatter_list_elsewhere(world):
    check_each_rank(world(2, _scatter_list_elsewhere), ["root", "ValueError"], "a list elsewhere")
