"""Graphs: captures next to and around collectives, and graphs that share memory."""

from __future__ import annotations

import portagpu as pg
from portagpu.devices.contract import Capability
from portagpu.suites.conformance import case
from portagpu.suites.conformance.closeness import require_contract

GRAPHS = Capability.GRAPHS


def _capture_beside_sum(rank, within):
    """Capture a doubling after a finished sum of all ranks, or with such a sum inside the graph."""
    import torch
    import torch.distributed as dist

    gpu = rank.gpu
    warm = torch.ones(1024, device=gpu.device)
    dist.all_reduce(warm, async_op=True).wait()
    gpu.synchronize()
    graph = gpu.Graph()
    source = torch.zeros(1024, device=gpu.device)
    with gpu.graph(graph):
        result = source * 2
        if within:
            dist.all_reduce(result)
    source.fill_(rank.rank + 1.0)
    graph.replay()
    gpu.synchronize()
    return [float(result.min()), float(result.max())]


@case(
    "graphs/capture-beside-collectives",
    spec="A capture succeeds after collectives that were waited for, whatever watches over them.",
    capability=(GRAPHS, Capability.COLLECTIVES),
    covers=("Backend.Graph",),
    traps=("C07",),
)
def test_capture_beside_collectives(gpu, world):
    gpu.Graph()
    for rank, found in enumerate(world(2, _capture_beside_sum, within=False)):
        expected = [2.0 * (rank + 1)] * 2
        assert found == expected, f"rank {rank}: the graph gives {found}, not {expected}"


@case(
    "graphs/collective-in-a-graph",
    spec="A sum of all ranks that was captured sums what the ranks hold at each replay.",
    capability=(GRAPHS, Capability.COLLECTIVES),
    covers=("Backend.Graph",),
    traps=("C07", "G03"),
)
def test_collective_in_a_graph(gpu, world):
    gpu.Graph()
    for rank, found in enumerate(world(2, _capture_beside_sum, within=True)):
        assert found == [6.0, 6.0], f"rank {rank}: the captured sum of 2 and 4 is {found}"


@case(
    "graphs/pool-is-shared",
    spec="Two graphs that share a pool of memory replay one after the other with right results.",
    capability=GRAPHS,
    covers=("Backend.graph_pool_handle", "portagpu.graph_pool_handle"),
    params={"call": ("method", "function")},
)
def test_pool_is_shared(gpu, torch, call):
    require_contract(gpu, 2)
    pool = (gpu if call == "method" else pg).graph_pool_handle()
    source = torch.zeros(256, device=gpu.device)
    first, second = gpu.Graph(), gpu.Graph()
    with gpu.graph(first, pool=pool):
        middle = source * 2
    with gpu.graph(second, pool=pool):
        result = middle + 1
    source.fill_(5.0)
    first.replay()
    second.replay()
    gpu.synchronize()
    found = set(result.cpu().tolist())
    assert found == {11.0}, f"two graphs over 5 give {sorted(found)[:3]}"
