"""Collectives: gradients of models over several ranks.

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
