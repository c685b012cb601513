"""Graphs: work that is captured once and replayed, or refused."""

from __future__ import annotations

import portagpu as pg
from portagpu.contract import Capability
from portagpu.suite import case

GRAPHS = Capability.GRAPHS


def _captured(gpu, torch, make):
    """A graph that writes twice its input into its output, with both tensors."""
    graph = make()
    source = torch.zeros(256, device=gpu.device)
    with torch.cuda.graph(graph):
        result = source * 2
    return graph, source, result


@case(
    "graphs/replay-reads-new-input",
    spec="A replayed graph computes with what its input holds then.",
    capability=GRAPHS,
    covers=("Backend.Graph", "portagpu.Graph"),
    traps=("G03",),
    params={"call": ("method", "function")},
    smoke=True,
)
def test_replay_reads_new_input(gpu, torch, call):
    make = gpu.Graph if call == "method" else pg.Graph
    graph, source, result = _captured(gpu, torch, make)
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
    graph, source, result = _captured(gpu, torch, gpu.Graph)
    source.fill_(4.0)
    graph.replay()
    gpu.synchronize()
    first = set(result.cpu().tolist())
    source.fill_(9.0)
    gpu.synchronize()
    assert set(result.cpu().tolist()) == first == {8.0}, "the graph ran without a replay"


@case(
    "graphs/replays-accumulate",
    spec="A graph that adds to a tensor adds once for each replay.",
    capability=GRAPHS,
    covers=("Backend.Graph",),
)
def test_replays_accumulate(gpu, torch):
    graph = gpu.Graph()
    total = torch.zeros(16, device=gpu.device)
    with torch.cuda.graph(graph):
        total.add_(1)
    total.zero_()
    for _ in range(5):
        graph.replay()
    gpu.synchronize()
    assert set(total.cpu().tolist()) == {5.0}, f"five replays added {total.cpu().tolist()[0]}"
