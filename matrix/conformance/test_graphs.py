"""Graphs: work that is captured once and replayed, or refused."""

from __future__ import annotations

import portagpu as pg
from portagpu.contract import Capability
from portagpu.suite import case
from portagpu.suite.dtypes import require_contract

GRAPHS = Capability.GRAPHS


def _capture_doubling(gpu, torch, on):
    """A captured graph that doubles its input, with the input and the output."""
    graph = on.Graph()
    source = torch.zeros(256, device=gpu.device)
    with on.graph(graph):
        result = source * 2
    return graph, source, result


@case(
    "graphs/replay-reads-new-input",
    spec="A replayed graph computes with what its input holds then.",
    capability=GRAPHS,
    covers=(
        *("Backend.Graph", "Backend.graph"),
        *("portagpu.Graph", "portagpu.CUDAGraph", "portagpu.graph"),
    ),
    traps=("G03",),
    params={"call": ("method", "function")},
    smoke=True,
)
def test_replay_reads_new_input(gpu, torch, call):
    graph, source, result = _capture_doubling(gpu, torch, gpu if call == "method" else pg)
    for value in (1.0, 7.0, -3.0):
        source.fill_(value)
        graph.replay()
        gpu.synchronize()
        found = set(result.cpu().tolist())
        assert found == {2 * value}, f"a replay with {value} gave {sorted(found)[:3]}"


@case(
    "graphs/capture-does-not-run",
    spec="Work that is captured does not run before the first replay.",
    capability=GRAPHS,
    covers=("Backend.Graph",),
)
def test_capture_does_not_run(gpu, torch):
    graph, source, result = _capture_doubling(gpu, torch, gpu)
    source.fill_(4.0)
    graph.replay()
    gpu.synchronize()
    first = set(result.cpu().tolist())
    assert first == {8.0}, f"a replay of 2 x 4 gave {sorted(first)}"
    source.fill_(9.0)
    gpu.synchronize()
    assert set(result.cpu().tolist()) == {8.0}, "the graph ran without a replay"


@case(
    "graphs/replays-accumulate",
    spec="A graph that adds to a tensor adds once for each replay.",
    capability=GRAPHS,
    covers=("Backend.Graph",),
)
def test_replays_accumulate(gpu, torch):
    graph = gpu.Graph()
    total = torch.zeros(16, device=gpu.device)
    with gpu.graph(graph):
        total.add_(1)
    total.zero_()
    for _ in range(5):
        graph.replay()
    gpu.synchronize()
    assert set(total.cpu().tolist()) == {5.0}, f"five replays added {total.cpu().tolist()[0]}"


@case(
    "graphs/capture-over-streams",
    spec="Work that forks to a second stream and joins again is captured whole.",
    capability=(GRAPHS, Capability.STREAMS),
    covers=("Backend.Graph", "Backend.Stream", "Backend.current_stream"),
    traps=("G03",),
)
def test_capture_over_streams(gpu, torch):
    graph, side = gpu.Graph(), gpu.Stream()
    source = torch.zeros(256, device=gpu.device)
    with gpu.graph(graph):
        side.wait_stream(gpu.current_stream())
        with gpu.stream(side):
            there = source + 1
        here = source * 2
        gpu.current_stream().wait_stream(side)
        result = here + there
    for value in (1.0, 4.0):
        source.fill_(value)
        graph.replay()
        gpu.synchronize()
        found = set(result.cpu().tolist())
        assert found == {3 * value + 1}, f"both branches over {value} add up to {sorted(found)[:3]}"


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


@case(
    "graphs/capture-is-seen",
    spec="is_current_stream_capturing() is True inside a capture and False outside.",
    capability=GRAPHS,
    covers=("Backend.is_current_stream_capturing", "portagpu.is_current_stream_capturing"),
)
def test_capture_is_seen(gpu, torch):
    source, graph = torch.zeros(16, device=gpu.device), gpu.Graph()
    with gpu.graph(graph):
        source + 1
        inside = gpu.is_current_stream_capturing(), pg.is_current_stream_capturing()
    outside = gpu.is_current_stream_capturing(), pg.is_current_stream_capturing()
    assert inside == (True, True), f"inside a capture method and function say {inside}"
    assert outside == (False, False), f"after a capture method and function say {outside}"


@case(
    "graphs/nothing-is-captured-outside",
    spec="Where no graph is captured, is_current_stream_capturing() is False on every device.",
    covers=("Backend.is_current_stream_capturing", "portagpu.is_current_stream_capturing"),
)
def test_nothing_is_captured_outside(backend):
    found = backend.is_current_stream_capturing(), pg.is_current_stream_capturing()
    assert found == (False, False), f"without a capture method and function say {found}"
