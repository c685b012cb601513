"""Collectives: gradients of models over several ranks, and the helpers that do the same with every
library, over the library here.

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
    total,
)

COLLECTIVES = Capability.COLLECTIVES


def _ddp_gradients(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank.rank)
    model = torch.nn.Linear(4, 1, bias=False).to(rank.gpu.device)
    comm = rank.gpu.comm
    wrapped = DistributedDataParallel(
        model, device_ids=comm.device_ids, output_device=comm.output_device
    )
    found = {"start": json_values(model.weight.detach().reshape(-1))}
    mine = rank_tensor(rank, [[float(value) for value in payload(rank.rank, 4)]])

    def gradient():
        wrapped(mine).sum().backward()
        return json_values(model.weight.grad.reshape(-1))

    found["average"] = gradient()
    wrapped.zero_grad()
    with wrapped.no_sync():
        found["held"] = gradient()
    found["both"] = gradient()
    return found


@case(
    "collectives/ddp-averages-gradients",
    spec="DistributedDataParallel gives every rank the average of the ranks' gradients.",
    capability=COLLECTIVES,
    covers=("Comm.device_ids",),
    traps=("C08",),
    params={"n": (2,)},
)
def test_ddp_averages_gradients(world, n):
    expected = [value / n for value in total(n, 4)]
    found = [each["average"] for each in world(n, _ddp_gradients)]
    check_each_rank(found, [expected] * n, "the averaged gradient")


@case(
    "collectives/ddp-starts-from-rank-0",
    spec="DistributedDataParallel gives every rank the weights of rank 0.",
    capability=COLLECTIVES,
)
def test_ddp_starts_from_rank_0(world):
    first, second = [each["start"] for each in world(2, _ddp_gradients)]
    assert first == second, f"rank 1 starts from {second}, rank 0 from {first}"


@case(
    "collectives/ddp-accumulates",
    spec="Inside no_sync() gradients stay the rank's own, and the next step averages their sum.",
    capability=COLLECTIVES,
)
def test_ddp_accumulates(world):
    for rank, found in enumerate(world(2, _ddp_gradients)):
        held, both = found["held"], found["both"]
        assert held == payload(rank, 4), f"rank {rank}: inside no_sync() the gradient is {held}"
        assert both == [float(value) for value in total(2, 4)], f"rank {rank}: the sum is {both}"


def _fsdp_gradient(rank):
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4, bias=False).to(rank.gpu.device)
    whole = json_values(model.weight.detach().reshape(-1))
    fully_shard(model)
    mine = rank_tensor(rank, [[float(value) for value in payload(rank.rank, 4)]])
    result = model(mine)
    result.sum().backward()
    gradient = model.weight.grad.full_tensor()
    dist.barrier()
    return [whole, json_values(result.detach().reshape(-1)), json_values(gradient)]


@case(
    "collectives/fsdp2-averages-gradients",
    spec="A layer sharded by fully_shard gives the average of the ranks' gradients.",
    capability=COLLECTIVES,
    traps=("C08",),
)
def test_fsdp2_averages_gradients(world):
    row = [value / 2 for value in total(2, 4)]
    found = [gradient for _, _, gradient in world(2, _fsdp_gradient)]
    check_each_rank(found, [[row] * 4] * 2, "the gradient of a sharded layer")


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
