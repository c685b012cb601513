"""Collectives: the helpers that do the same with every library, over the library here.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

from portagpu.devices.contract import Capability
from portagpu.suites.conformance import case
from portagpu.suites.conformance.ranks import (
    check_each_rank,
    json_values,
    payload,
    rank_tensor,
)

COLLECTIVES = Capability.COLLECTIVES


def _gather_what_differs(rank):
    import torch

    from portagpu.base.errors import CollectiveMismatch
    from portagpu.devices.collectives.helpers import all_gather_uneven

    mine = torch.zeros(2, 3 + rank.rank, device=rank.gpu.device)
    try:
        all_gather_uneven(mine)
    except CollectiveMismatch as error:
        return str(error)
    return "nothing"


@case(
    "collectives/helper-uneven-rows-are-compared",
    spec="all_gather_uneven raises the same error on every rank where the rows differ.",
    capability=COLLECTIVES,
)
def test_helper_uneven_rows_are_compared(world):
    expected = (
        "all_gather_uneven: rank 1 has float32[2, 4], and rank 0 has float32[2, 3]: only the "
        "first dimension may differ"
    )
    check_each_rank(world(2, _gather_what_differs), [expected] * 2, "rows that differ")


def _compressed_gradients(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from portagpu.devices.collectives.compression import TopK, top_k_hook

    model = torch.nn.Linear(4, 1, bias=False).to(rank.gpu.device)
    comm = rank.gpu.comm
    wrapped = DistributedDataParallel(
        model, device_ids=comm.device_ids, output_device=comm.output_device
    )
    wrapped.register_comm_hook(TopK(wrapped, density=0.5), top_k_hook)
    mine = rank_tensor(rank, [[float(value) for value in payload(rank.rank, 4)]])
    found = []
    for _ in range(2):
        wrapped.zero_grad()
        wrapped(mine).sum().backward()
        found.append(json_values(model.weight.grad.reshape(-1)))
    return found


@case(
    "collectives/helper-top-k",
    spec="top_k_hook sends the two largest of four gradients, and the rest in the next step.",
    capability=COLLECTIVES,
)
def test_helper_top_k(world):
    # rank 0 has -5 -2 1 4 and keeps -2 1; with them it has -5 -4 2 4, and sends the first of equals
    # rank 1 has 2 5 -3 0 and keeps 2; with it it has 4 5 -3 0
    expected = [[-2.5, 2.5, -1.5, 2.0], [-0.5, 0.5, 0.0, 0.0]]
    check_each_rank(world(2, _compressed_gradients), [expected] * 2, "compressed gradients")
