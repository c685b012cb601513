"""Graphs of machines for the tests of placement: by hand, at random, and those that RCCL knows."""

from __future__ import annotations

import random
import tomllib
from itertools import combinations, pairwise
from typing import Any

from portagpu.facts.readings.model import End, Findings, Link, Node
from portagpu.machine.inventory.topology import build_topology
from portagpu.machine.placement.graph import Edge, Place, PlaceGraph, gpu_graph, with_levels
from tests.conftest import ROOT

RCCL = tomllib.loads((ROOT / "tests/vendor_texts/rccl_rings.toml").read_text("utf-8"))
"""Each topology: the NUMA node of each GPU, its links, and RCCL's rings."""


def graph(count: int, speeds: dict[tuple[int, int], float], own: int = 0) -> PlaceGraph:
    """A graph of ``count`` GPUs with links of these speeds in GB/s; every other way is unknown."""
    places = [Place(key=f"gpu{number}", name=f"gpu{number}") for number in range(count)]
    edges = [
        Edge(
            a=a,
            b=b,
            word=f"{speed:g}",
            kind="nvlink",
            bandwidth_bytes_s=speed * 1e9,
            source="by hand",
            own=own,
            speed=(7, speed),
        )
        for (a, b), speed in speeds.items()
    ]
    return with_levels(places, edges)


def uniform(count: int, speed: float = 100) -> PlaceGraph:
    """All GPUs on one switch."""
    return graph(count, dict.fromkeys(combinations(range(count), 2), speed))


def at_random(count: int, seed: int) -> PlaceGraph:
    """Three speeds at random, and pairs without a known way."""
    draw = random.Random(seed)  # noqa: S311
    pairs = {pair: draw.choice((0, 1, 2, 4)) for pair in combinations(range(count), 2)}
    return graph(count, {pair: speed for pair, speed in pairs.items() if speed})


def steps(order: Any) -> list[tuple[int, int]]:
    """The pairs of neighbours of a ring."""
    return list(pairwise([*order, order[0]]))


def edge_levels(graph: PlaceGraph, order: Any) -> list[int]:
    """The levels of a ring's edges, the slowest first: what two rings are compared by."""
    return sorted(graph.edge(a, b).level for a, b in steps(order))


def topology(numa: list[int], links: str, kind: str = "xgmi") -> PlaceGraph:
    """GPUs below their NUMA nodes, with links "0-1x4 2-3x1"."""
    ends = [End(Node.GPU, f"GPU{n}", f"0000:{n:02x}:00.0", n) for n in range(len(numa))]
    found = [
        Link(source="one", a=end, b=End(Node.CPU, f"node {node}", index=node), kind="pcie")
        for end, node in zip(ends, numa, strict=True)
    ]
    for link in links.split():
        pair, _, count = link.partition("x")
        a, b = map(int, pair.split("-"))
        found.append(Link(source="one", a=ends[a], b=ends[b], kind=kind, count=int(count)))
    return gpu_graph(build_topology([Findings(kind="one", links=tuple(found))]))
