"""Placement over published topologies: ``python tests/benchmarks/placement.py FOLDER ...``.

A row for each recording below the folders that shows at least two GPUs: its domains, the slowest
way of the ring against that of the GPUs in their own order, and the slowest way within groups for
tensor parallelism. Without a folder, the time for machines of many GPUs.
"""

from __future__ import annotations

import sys
import time
from itertools import combinations
from pathlib import Path

from portagpu.base.errors import PortagpuError
from portagpu.checks.recordings.replay import Recording
from portagpu.machine.placement import (
    Edge,
    Place,
    PlaceGraph,
    graph_of_machine,
    groups,
    place,
    with_levels,
)
from portagpu.machine.placement.parallel_groups import fastest_domains


def speed(edge: Edge | None) -> str:
    """ "NV18 450"; the bandwidth in GB/s, "?" where it is not known."""
    if edge is None:
        return "-"
    rate = edge.bandwidth_bytes_s
    return f"{edge.word} {'?' if rate is None else round(rate / 1e9, 1):g}" if rate else edge.word


def row(path: Path) -> str | None:
    try:
        graph = graph_of_machine(Recording(path))
    except (PortagpuError, ValueError):
        return None
    if len(graph) < 2 or not graph.places[0].is_gpu:
        return None
    started = time.perf_counter()
    found = place(graph)
    milliseconds = 1e3 * (time.perf_counter() - started)
    sizes = ",".join(str(len(each)) for each in fastest_domains(graph))
    inner = []
    for size in (8, 4, 2):
        fits = len(graph) % size == 0
        inner.append(speed(groups(graph, size).slowest) if fits else "-")
    ring = found.ring
    better = "faster" if ring.slowest.level > ring.identity.level else "same"
    cells = [len(graph), sizes, speed(ring.slowest), speed(ring.identity), better, len(found.rings)]
    return " | ".join(map(str, [path.name, *cells, *inner, f"{milliseconds:.0f}"]))


def uniform(count: int, groups_of: int) -> PlaceGraph:
    """Switched domains of this many GPUs, the GPUs of each apart, joined by PCI Express."""
    domains = count // groups_of
    edges = [
        Edge(a=a, b=b, kind="nvlink", speed=(7, 1.0) if a % domains == b % domains else (2, 0.0))
        for a, b in combinations(range(count), 2)
    ]
    return with_levels([Place(key=str(each), name=str(each)) for each in range(count)], edges)


def times() -> None:
    print("GPUs of a machine | domains of | machines | ranks | tp | seconds")
    for count, size, nodes in ((8, 8, 1), (16, 8, 1), (72, 72, 1), (72, 36, 1), (8, 8, 128)):
        graph = uniform(count, size)
        started = time.perf_counter()
        place(graph, tp=8, nodes=nodes)
        seconds = time.perf_counter() - started
        print(f"{count} | {size} | {nodes} | {count * nodes} | 8 | {seconds:.3f}")


def main() -> None:
    if not sys.argv[1:]:
        times()
        return
    head = "recording | GPUs | fastest domains | ring | own order | | separate rings"
    print(f"{head} | tp 8 | tp 4 | tp 2 | ms")
    for folder in sys.argv[1:]:
        for path in sorted(Path(folder).iterdir()):
            if (line := row(path)) is not None:
                print(line)


if __name__ == "__main__":
    main()
