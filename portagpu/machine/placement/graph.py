"""The places where ranks can run, and what joins each two of them, ordered by speed.

A place is a GPU. On a machine without GPUs it is a NUMA node. Ways between two places are compared
by class first: a fabric between GPUs, then PCI Express by the words of ``NEAREST_FIRST``, then a
pair without peer access, then a way that no source states. Within a class the higher bandwidth is
faster. Where not every bandwidth of a class is known, the larger number of links is, then the lower
weight that the source gives the link. So an order needs no bandwidth, and a missing one is never
taken for 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import MissingDependency
from portagpu.facts.host.tree import cpu_list, format_cpu_list
from portagpu.facts.readings.model import Node
from portagpu.machine.inventory.routes import NEAREST_FIRST, nic_ways, routes
from portagpu.machine.inventory.topology import FABRICS, ancestors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from portagpu.facts.host.cpu import NumaNode
    from portagpu.facts.targets import Target
    from portagpu.machine.inventory.routes import Route
    from portagpu.machine.inventory.topology import LinkGroup, Topology

UNKNOWN: Final = "?"
_FABRIC_CLASS: Final = 2 + len(NEAREST_FIRST)
_NO_ACCESS: Final = 1
_MAX_LEVELS: Final = 64
_NETWORKS: Final = frozenset({"infiniband", "roce", "ethernet", "network"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one rank of a machine runs, and what is near it.

    ``key`` is a GPU's PCI address, or the name that its source gives it. ``cpus`` is a list as
    "0-23,48-71". ``nics`` are the nearest, each with the way to it; None is unknown.
    ``network_bytes_s`` is its share of their bandwidth, one way.
    """

    key: str
    name: str
    is_gpu: bool = True
    vendor: str | None = None
    numa_node: int | None = None
    cpus: str | None = None
    nics: tuple[tuple[str, str | None], ...] = ()
    network_bytes_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What joins two places, by their positions; ``a`` is the lower one.

    ``word`` is the way as ``info --topology`` prints it. ``bandwidth_bytes_s`` is one way, in the
    slower direction; ``source`` says where it is from. ``own`` is the number of links that no other
    pair uses, 0 where they are shared. ``level`` orders the ways of one graph: 0 is the slowest.
    """

    a: int
    b: int
    word: str = UNKNOWN
    kind: str | None = None
    bandwidth_bytes_s: float | None = None
    source: str | None = None
    own: int = 0
    level: int = 0
    speed: tuple[float, ...] = (0, 0.0)

    @property
    def is_fabric(self) -> bool:
        """Whether it is a link of the GPUs' own, and no way through the host."""
        return self.kind in FABRICS


@dataclass(frozen=True)
class PlaceGraph:
    """The places of a machine and the edge of each two of them, by positions (lower, higher)."""

    places: tuple[Place, ...]
    edges: Mapping[tuple[int, int], Edge]
    remarks: tuple[str, ...] = ()
    """Sentences on what is assumed, missing or contradictory."""

    def __len__(self) -> int:
        return len(self.places)

    def edge(self, a: int, b: int) -> Edge:
        """What joins two different places.

        :param a: the position of one.
        :param b: the position of the other; the order does not matter.
        :raises KeyError: for positions that are equal or do not exist.
        """
        return self.edges[(a, b) if a < b else (b, a)]

    def between(self, places: Iterable[int]) -> tuple[Edge, ...]:
        """The edges of every two of these places."""
        return tuple(self.edges[pair] for pair in combinations(sorted(places), 2))

    def slowest(self, edges: Iterable[Edge]) -> Edge | None:
        """The first of the slowest edges; None where there is none."""
        return min(edges, key=lambda each: (each.level, each.a, each.b), default=None)

    @cached_property
    def costs(self) -> list[list[int]]:
        """What an edge costs. A sum of up to n costs is less than one edge of the next lower level.

        So the least sum has the fastest slowest edge, the fewest of it, and so on upwards.
        """
        size, top = len(self.places), max((e.level for e in self.edges.values()), default=0)
        found = [[0] * size for _ in range(size)]
        # pairs of a group are at most n (n - 1) / 2
        base = size * size + 1
        powers = [base ** (top - level) for level in range(top + 1)]
        for (a, b), edge in self.edges.items():
            found[a][b] = found[b][a] = powers[edge.level]
        return found

    def part(self, positions: Sequence[int]) -> PlaceGraph:
        """The graph of these places alone, in this order; levels stay comparable."""
        new = {old: number for number, old in enumerate(positions)}
        edges = {}
        for each in self.between(positions):
            a, b = sorted((new[each.a], new[each.b]))
            edges[a, b] = replace(each, a=a, b=b)
        return PlaceGraph(tuple(self.places[p] for p in positions), edges, self.remarks)


def with_levels(
    places: Sequence[Place], edges: Iterable[Edge], remarks: Iterable[str] = ()
) -> PlaceGraph:
    """The graph with every pair; the levels are the ranks of the edges' speeds.

    Beyond 64 different speeds, neighbouring ones share a level.

    :param places: where ranks run; an edge names them by their positions.
    :param edges: what is known; a pair without an edge gets one of unknown speed.
    :param remarks: sentences about the graph; each is kept once.
    """
    given = {(each.a, each.b): each for each in edges}
    pairs = combinations(range(len(places)), 2)
    every = {pair: given.get(pair) or Edge(a=pair[0], b=pair[1]) for pair in pairs}
    speeds = sorted({each.speed for each in every.values()})
    # a sum of costs has as many digits as there are levels: no machine has that many
    levels = min(len(speeds), _MAX_LEVELS)
    rank = {speed: number * levels // len(speeds) for number, speed in enumerate(speeds)}
    levelled = {pair: replace(each, level=rank[each.speed]) for pair, each in every.items()}
    return PlaceGraph(tuple(places), levelled, tuple(dict.fromkeys(remarks)))


def gpu_graph(
    topology: Topology,
    *,
    targets: Mapping[str, Target] | None = None,
    numa_nodes: Sequence[NumaNode] = (),
    assumed: Target | None = None,
) -> PlaceGraph:
    """The graph of a machine's GPUs, in the order of ``topology.gpus``.

    :param topology: the links between the GPUs.
    :param targets: the GPUs' products by key: they state what one link carries where the source
        only counts links.
    :param numa_nodes: the NUMA nodes, with their CPUs.
    :param assumed: a product whose links are assumed to join all GPUs where no source states a
        link; without it, a remark says so.
    """
    keys = [gpu.key for gpu in topology.gpus]
    position = {key: number for number, key in enumerate(keys)}
    targets = targets or {}
    direct = {
        (*sorted((position[each.a], position[each.b])), each.kind): each
        for each in topology.link_groups
        if each.a in position and each.b in position
    }
    edges = []
    for (first, second), route in routes(topology).items():
        a, b = sorted((position[first], position[second]))
        group = direct.get((a, b, route.kind or ""))
        edges.append(_edge(a, b, route, group, targets.get(first)))
    remarks = list(topology.problems)
    if edges and all(each.speed[0] == 0 for each in edges):
        remarks.append("no source states the way between GPUs: they stay in their own order")
    if len(keys) > 1 and not any(each.is_fabric for each in edges):
        edges, remark = _assume_fabric(edges, targets, assumed)
        remarks += remark
    elif assumed is not None and not any(assumed.id in (e.source or "") for e in edges):
        remarks.append(f"nothing of {assumed.id} is assumed: the source states links")
    return with_levels(_places(topology, numa_nodes), _with_speeds(edges), remarks)


def numa_graph(nodes: Sequence[NumaNode], distances: Mapping[int, Sequence[int]]) -> PlaceGraph:
    """The graph of a machine without GPUs: NUMA nodes with CPUs, by the firmware's distances.

    :param nodes: all NUMA nodes of the machine.
    :param distances: index of a node -> its distance to each node, in the order of ``nodes``
        (``nodeN/distance`` of sysfs).
    """
    with_cpus = [each for each in nodes if each.cpus]
    column = {each.index: number for number, each in enumerate(nodes)}
    places = [
        Place(
            key=f"node {each.index}",
            name=f"node {each.index}",
            is_gpu=False,
            numa_node=each.index,
            cpus=format_cpu_list(each.cpus),
        )
        for each in with_cpus
    ]
    edges = []
    for a, b in combinations(range(len(with_cpus)), 2):
        ways = [
            row[column[to]]
            for of, to in (
                (with_cpus[a].index, with_cpus[b].index),
                (with_cpus[b].index, with_cpus[a].index),
            )
            if len(row := distances.get(of, ())) > column[to]
        ]
        if ways:
            far = max(ways)
            word = f"distance {far}"
            edges.append(Edge(a=a, b=b, word=word, kind="cpu", speed=(_NO_ACCESS, -float(far))))
    remarks = ["there is no GPU: the places are NUMA nodes"]
    return with_levels(places, edges, remarks)


def _edge(a: int, b: int, route: Route, group: LinkGroup | None, target: Target | None) -> Edge:
    fabric = route.kind in FABRICS
    rate, source = route.bandwidth_bytes_s, None
    if group is not None and fabric:
        rate = _slower_direction(group) or rate
    if rate is not None:
        # of the way through the host, only what its PCI Express links carry is known
        source = "stated" if fabric else "its narrowest PCIe link"
    count = route.count
    if fabric and count is None and not route.through:
        count = 1
    if fabric and rate is None and count is not None and target is not None:
        per_link = _link_rate(target, route.kind or "")
        if per_link is not None:
            rate, source = count * per_link, f"{target.id}: {count} x {per_link / 1e9:g} GB/s"
    weight = group.weight if group is not None and fabric else None
    word = route.path or route.kind or UNKNOWN
    listed = FABRICS.get(route.kind or "")
    if listed is not None and listed.counted is None and (route.count or 0) > 1:
        word = f"{word}x{route.count}"
    return Edge(
        a=a,
        b=b,
        word=word,
        kind=route.kind,
        bandwidth_bytes_s=rate,
        source=source,
        own=_own_links(route, group),
        speed=(_class_of(route), float(count or 0), -math.inf if weight is None else -weight),
    )


def _own_links(route: Route, group: LinkGroup | None) -> int:
    """The links of this pair alone; 0 for those through switches, and where that is not known.

    A matrix of a vendor whose words count links shows as many between GPUs that a switch joins.
    """
    fabric = FABRICS.get(route.kind or "")
    if fabric is None or group is None or route.through:
        return 0
    if fabric.counted is None:
        return route.count or 1
    return 0 if group.path is not None else route.count or 0


def _class_of(route: Route) -> int:
    if route.peer_access is False:
        return _NO_ACCESS
    if route.kind in FABRICS:
        return _FABRIC_CLASS
    if route.path in NEAREST_FIRST:
        return _FABRIC_CLASS - 1 - NEAREST_FIRST.index(route.path)
    return 0


def _with_speeds(edges: Sequence[Edge]) -> list[Edge]:
    """The edges with bandwidths in the places of counts, in each class where all are known."""
    unknown = {each.speed[0] for each in edges if each.bandwidth_bytes_s is None}
    found = []
    for each in edges:
        grade = each.speed[0]
        rate = each.bandwidth_bytes_s
        if rate is not None and grade not in unknown:
            # sources round: three digits distinguish links
            found.append(replace(each, speed=(grade, float(f"{rate:.3g}"))))
        elif grade < _FABRIC_CLASS:
            found.append(replace(each, speed=(grade, 0.0)))
        else:
            found.append(each)
    return found


def _slower_direction(group: LinkGroup) -> float | None:
    """The bandwidth of the slower direction by the first source that states any.

    ``LinkGroup`` keeps the direction that is stated first.
    """
    by_source: dict[str, dict[str, float]] = {}
    for link in group.statements:
        if link.bandwidth_bytes_s is not None and link.up is not False:
            ways = by_source.setdefault(link.source, {})
            start = link.a.pci or link.a.name
            ways[start] = ways.get(start, 0.0) + link.bandwidth_bytes_s
    first = next(iter(by_source.values()), {})
    return min(first.values(), default=None)


def _link_rate(target: Target, kind: str) -> float | None:
    """Bytes a second of one link in one direction, if the target's links are of that kind."""
    rate = target.value("link.per_link_per_direction")
    named = str(target.value("link.kind") or "")
    return 1e9 * float(rate) if rate is not None and kind in named.lower() else None


def _assume_fabric(
    edges: Sequence[Edge], targets: Mapping[str, Target], assumed: Target | None
) -> tuple[list[Edge], list[str]]:
    """The edges over the links of ``assumed``, and what there is to say of it."""
    edges = list(edges)
    linked = [each for each in targets.values() if each.value("link.count") is not None]
    if assumed is None:
        if not linked and targets:
            return edges, []
        if not linked:
            remark = (
                "the sources state neither the GPUs' product nor a link between them: if they have "
                "links, --target assumes those of a product"
            )
            return edges, [remark]
        first = linked[0]
        has = f"{first.value('link.count')} of {first.value('link.kind')}"
        remark = (
            f"the source states no link between GPUs, and {first.product} has {has}: with "
            f"--target {first.id} they are assumed to join all GPUs"
        )
        return edges, [remark]
    count, shape = assumed.value("link.count"), assumed.value("link.topology")
    rates = {each: _link_rate(assumed, each) for each in FABRICS}
    known = [(each, rate) for each, rate in rates.items() if rate is not None]
    if not known or count is None or shape not in ("switched", "mesh"):
        return edges, [f"{assumed.id} states no links that join all GPUs: none is assumed"]
    fabric, per_link = known[0]
    links = int(count) if shape == "switched" else 1
    counted = FABRICS[fabric].counted
    new = [
        replace(
            each,
            word=fabric.upper() if counted is None else counted.format(count=links),
            kind=fabric,
            bandwidth_bytes_s=links * per_link,
            source=f"assumed of {assumed.id}",
            own=0 if shape == "switched" else 1,
            speed=(_FABRIC_CLASS, float(links)),
        )
        for each in edges
    ]
    return new, [f"the source states no link between GPUs: those of {assumed.id} are assumed"]


def _places(topology: Topology, numa_nodes: Sequence[NumaNode]) -> list[Place]:
    of_node = {each.index: format_cpu_list(each.cpus) for each in numa_nodes if each.cpus}
    near = nic_ways(topology)
    users: dict[str, int] = {}
    for ways in near.values():
        for nic, _ in ways:
            users[nic.key] = users.get(nic.key, 0) + 1
    network: dict[str, float] = {}
    for group in topology.link_groups:
        if group.kind in _NETWORKS and group.bandwidth_bytes_s is not None:
            for end in (group.a, group.b):
                if topology.devices[end].node is Node.NIC:
                    network[end] = network.get(end, 0.0) + group.bandwidth_bytes_s
    found = []
    for gpu in topology.gpus:
        stated = [r.extra["cpu affinity"] for r in gpu.readings if "cpu affinity" in r.extra]
        stated += [
            link.extra["cpu affinity"]
            for key in ancestors(gpu.key, topology.parents)
            if (link := topology.edges.get(key)) is not None and "cpu affinity" in link.extra
        ]
        cpus = of_node.get(gpu.numa_node) if gpu.numa_node is not None else None
        # these reach a command line: nothing but a list of CPUs does
        lists = [format_cpu_list(read) for text in stated if (read := cpu_list(text))]
        nics = near.get(gpu.key, ())
        rates = [network[nic.key] / users[nic.key] for nic, _ in nics if nic.key in network]
        found.append(
            Place(
                key=gpu.key,
                name=gpu.name,
                vendor=next((reading.vendor for reading in gpu.readings), None),
                numa_node=gpu.numa_node,
                cpus=cpus or next(iter(lists), None),
                nics=tuple((nic.name, word) for nic, word in nics),
                network_bytes_s=sum(rates) if rates else None,
            )
        )
    return found


def numbered(positions: Iterable[int], noun: str = "GPU") -> str:
    """ "GPU 0-3,7"."""
    return f"{noun} {format_cpu_list(tuple(sorted(positions)))}"


def networkx() -> Any:
    """The module. Raises MissingDependency, with what to install."""
    try:
        import networkx as module
    except ImportError as error:
        raise MissingDependency(
            "placement needs networkx, which comes with torch: python -m pip install networkx"
        ) from error
    return module


def weighted(graph: PlaceGraph, at_least: int = 0) -> Any:
    """A networkx graph of the edges at these levels; ``cost`` and ``level`` are attributes."""
    costs = graph.costs
    found = networkx().Graph()
    found.add_nodes_from(range(len(graph)))
    found.add_edges_from(
        (a, b, {"cost": costs[a][b], "level": edge.level})
        for (a, b), edge in graph.edges.items()
        if edge.level >= at_least
    )
    return found


def components(graph: PlaceGraph, at_least: int) -> Iterable[tuple[int, ...]]:
    """The groups of places that edges of these levels join, the largest first."""
    groups = networkx().connected_components(weighted(graph, at_least))
    return sorted((tuple(sorted(each)) for each in groups), key=lambda g: (-len(g), g))
