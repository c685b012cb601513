"""Groups of ranks for tensor, pipeline and data parallelism, in the order of torch's DeviceMesh.

The mesh has the dimensions (pp, dp, tp). Rank r of an arranged world is at
``r = (p * dp + d) * tp + t`` (``init_device_mesh`` counts so), and runs on machine
``r // local_ranks`` as local rank ``r % local_ranks``. So ranks of one tensor-parallel group are
neighbours: they share a machine, and there the fastest domain that holds them. Data-parallel groups
come next, and the pipeline, which needs least bandwidth, crosses machines first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

from portagpu.base.units import count, number
from portagpu.machine.placement.graph import components, networkx, numbered, weighted
from portagpu.machine.placement.orders import (
    EXACT,
    best_cycle,
    domain_order,
    ring_edges,
    ring_order,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from portagpu.machine.placement.graph import Edge, PlaceGraph

MAX_RANKS: Final = 1 << 20
_SWAPS: Final = 20_000
"""Exchanges of two places that are looked at beyond ``EXACT``, from each start."""
_STRIDES: Final = (2, 3, 5, 7)

Mesh = tuple[tuple[tuple[int, ...], ...], ...]
Ranks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Places that edges of one speed or faster join, ``complete`` if each two of them directly.

    ``slowest`` is the edge that bounds it.
    """

    places: tuple[int, ...]
    slowest: Edge
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Who belongs together.

    ``order`` has the place of each local rank, the same on every machine. The rank lists and
    ``arranged`` are for a world in which local rank i runs on ``order[i]``: that mesh is
    ``arange(world).view(pp, dp, tp)``. ``mesh`` is for a world in which local rank i runs on
    place i: give it to ``DeviceMesh``.
    """

    tp: int
    pp: int
    dp: int
    nodes: int
    order: tuple[int, ...]
    mesh: Mesh
    tensor: Ranks
    pipeline: Ranks
    data: Ranks
    slowest: Edge | None
    """The slowest edge of the tensor-parallel groups' rings on a machine; None without any edge."""
    findings: tuple[str, ...] = ()

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.tp * self.pp * self.dp


def domains(graph: PlaceGraph) -> tuple[Domain, ...]:
    """The domains of at least two places, the fastest first; each set of places once."""
    found: dict[tuple[int, ...], Domain] = {}
    for level in sorted({each.level for each in graph.edges.values()}, reverse=True):
        for places in components(graph, level):
            edges = graph.between(places)
            joined = [each for each in edges if each.level >= level]
            slowest = min(joined, key=lambda each: each.level, default=None)
            # where no source states a way, it joins nothing
            if slowest is not None and slowest.kind is not None and places not in found:
                complete = len(joined) == len(edges)
                found[places] = Domain(places=places, slowest=slowest, complete=complete)
    return tuple(found.values())


def fastest_domains(graph: PlaceGraph) -> tuple[tuple[int, ...], ...]:
    """The places that the fastest class of ways joins, whatever their bandwidths, largest first.

    A place that it does not reach is alone.
    """
    top = max((each.speed[0] for each in graph.edges.values()), default=0)
    if top == 0:
        return tuple((place,) for place in range(len(graph)))
    least = min(each.level for each in graph.edges.values() if each.speed[0] == top)
    return tuple(components(graph, least))


def sizes(
    local: int, tp: int | None, pp: int | None, dp: int | None, nodes: int
) -> tuple[int, int, int]:
    """(tp, pp, dp) of a world of ``local * nodes`` ranks; what is None follows from the others.

    Without dp, dp takes what is left; without tp and pp they are 1. Raises ValueError, in one line,
    where the product is not the number of ranks, or tp does not fit the machines.
    """
    world = local * nodes
    machines = f"{count(nodes, 'machine')} of {local}"
    ranks = count(world, "rank")
    if world > MAX_RANKS:
        raise ValueError(f"{machines} are {ranks}: at most {MAX_RANKS} are placed")
    if min(each for each in (tp, pp, dp, 1, nodes) if each is not None) < 1:
        raise ValueError("tp, pp, dp and nodes are at least 1")
    if tp is None and pp is not None and dp is not None and world % (pp * dp) == 0:
        tp = world // (pp * dp)
    elif pp is None and tp is not None and dp is not None and world % (tp * dp) == 0:
        pp = world // (tp * dp)
    tp, pp = tp or 1, pp or 1
    if dp is None:
        if world % (tp * pp):
            raise ValueError(f"tp {tp} x pp {pp} = {tp * pp} does not divide {ranks} ({machines})")
        dp = world // (tp * pp)
    if tp * pp * dp != world:
        raise ValueError(f"tp {tp} x pp {pp} x dp {dp} = {tp * pp * dp}, not {ranks} ({machines})")
    if local % tp and tp % local:
        raise ValueError(
            f"tp {tp} neither divides the {count(local, 'rank')} of a machine nor is a multiple "
            "of them: groups would begin on one machine and end on another"
        )
    return tp, pp, dp


def groups(
    graph: PlaceGraph,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    nodes: int = 1,
) -> Groups:
    """The groups over several machines like this one.

    :param graph: the places of one machine.
    :param tp: ranks of a group of tensor parallelism; None is 1, or what ``pp`` and ``dp`` leave.
    :param pp: stages of a pipeline; None is 1, or what ``tp`` and ``dp`` leave.
    :param dp: ranks of a group of data parallelism; None is what ``tp`` and ``pp`` leave.
    :param nodes: how many machines there are.
    :raises ValueError: in one line, where the product is not the number of ranks, or ``tp`` does
        not fit the machines.
    """
    local = len(graph)
    tp, pp, dp = sizes(local, tp, pp, dp, nodes)
    order = arrange(graph, min(tp, local))
    arranged = mesh_of(range(tp * pp * dp), tp, pp, dp)
    # the rank of a world without rearranging, whose device is that place
    by_place = [node * local + place for node in range(nodes) for place in order]
    inner = [edge for block in _blocks(order, min(tp, local)) for edge in ring_edges(graph, block)]
    slowest = graph.slowest(inner)
    return Groups(
        tp=tp,
        pp=pp,
        dp=dp,
        nodes=nodes,
        order=order,
        mesh=mesh_of(by_place, tp, pp, dp),
        tensor=tuple(row for plane in arranged for row in plane),
        pipeline=tuple(
            tuple(arranged[p][d][t] for p in range(pp)) for d in range(dp) for t in range(tp)
        ),
        data=tuple(
            tuple(arranged[p][d][t] for d in range(dp)) for p in range(pp) for t in range(tp)
        ),
        slowest=slowest,
        findings=tuple(_findings(graph, tp, nodes, order)),
    )


def mesh_of(ranks: Sequence[int], tp: int, pp: int, dp: int) -> Mesh:
    """``ranks`` in the shape (pp, dp, tp), the last dimension first."""
    return tuple(
        tuple(tuple(ranks[(p * dp + d) * tp : (p * dp + d + 1) * tp]) for d in range(dp))
        for p in range(pp)
    )


def arrange(graph: PlaceGraph, size: int) -> tuple[int, ...]:
    """The places, those of each group of that size together, in the order of the group's ring.

    The best division has the fastest slowest edge within its rings, then the fewest slow pairs
    within groups. With up to ``EXACT`` places every division is compared; pairs are matched
    exactly; beyond, blocks of several orders are exchanged place by place. The groups stand in the
    order of their best ring.
    """
    size_of_all = len(graph)
    if size in (1, size_of_all):
        return ring_order(graph).order
    choices: Iterable[Ranks]
    if size_of_all <= EXACT:
        choices = _divisions(tuple(range(size_of_all)), size)
    else:
        every = range(size_of_all)
        orders = [tuple(every), domain_order(graph), ring_order(graph).order]
        # the places at other distances, for exchanges to begin with
        orders += [tuple(sorted(every, key=lambda p: (p * by % size_of_all, p))) for by in _STRIDES]
        blocks = [
            tuple(sorted(tuple(sorted(block)) for block in _blocks(order, size)))
            for order in dict.fromkeys(orders)
        ]
        choices = [*blocks, *(_swapped(graph, each) for each in dict.fromkeys(blocks))]
        if size == 2:
            choices = [blocks[0], _matching(graph)]
    rings: dict[tuple[int, ...], tuple[int, ...]] = {}

    def cost(division: Ranks) -> tuple[int, int]:
        for group in division:
            if group not in rings:
                rings[group] = _ring_within(graph, group)
        edges = [edge for group in division for edge in ring_edges(graph, rings[group])]
        slowest = graph.slowest(edges)
        return -(slowest.level if slowest is not None else 0), _pair_costs(graph, division)

    # min keeps the first of equal ones
    division = min(choices, key=cost)
    return tuple(place for group in _in_ring(graph, division) for place in rings[group])


def _blocks(order: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    for start in range(0, len(order), size):
        yield tuple(order[start : start + size])


def _ring_within(graph: PlaceGraph, group: Sequence[int]) -> tuple[int, ...]:
    order, _ = best_cycle([[graph.costs[a][b] for b in group] for a in group])
    return tuple(group[at] for at in order)


def _pair_costs(graph: PlaceGraph, division: Ranks) -> int:
    costs = graph.costs
    return sum(costs[a][b] for group in division for a, b in combinations(group, 2))


def _divisions(places: tuple[int, ...], size: int) -> Iterator[Ranks]:
    """Every division into groups of that size, the identity first."""
    if not places:
        yield ()
        return
    first, *rest = places
    for others in combinations(rest, size - 1):
        left = tuple(each for each in rest if each not in others)
        for more in _divisions(left, size):
            yield ((first, *others), *more)


def _matching(graph: PlaceGraph) -> Ranks:
    """The pairs of the least sum of costs (Edmonds' blossom algorithm, networkx)."""
    pairs = networkx().min_weight_matching(weighted(graph), weight="cost")
    return tuple(sorted((min(pair), max(pair)) for pair in pairs))


def _swapped(graph: PlaceGraph, division: Ranks) -> Ranks:
    """The division after every exchange of two places that lowers the costs within groups."""
    groups, costs = [list(each) for each in division], graph.costs
    budget, better = _SWAPS, True

    def within(place: int, group: Sequence[int], but: int) -> int:
        return sum(costs[place][each] for each in group if each not in (place, but))

    while better and budget > 0:
        better = False
        for left, right in combinations(groups, 2):
            for i in range(len(left)):
                for j in range(len(right)):
                    budget -= 1
                    a, b = left[i], right[j]
                    now = within(a, left, b) + within(b, right, a)
                    if within(b, left, a) + within(a, right, b) < now:
                        left[i], right[j] = b, a
                        better = True
            if budget <= 0:
                break
    return tuple(sorted(tuple(sorted(each)) for each in groups))


def _in_ring(graph: PlaceGraph, division: Ranks) -> Ranks:
    """The groups in the order of their fastest ring, by the fastest edge of each two."""
    costs = graph.costs
    between = [
        [0 if a is b else min(costs[x][y] for x in a for y in b) for b in division]
        for a in division
    ]
    order, _ = best_cycle(between)
    return tuple(division[at] for at in order)


def _findings(graph: PlaceGraph, tp: int, nodes: int, order: Sequence[int]) -> Iterator[str]:
    local = len(graph)
    if tp == 1:
        return
    best = max(graph.edges.values(), key=lambda each: each.level, default=None)
    largest = len(fastest_domains(graph)[0])
    if tp > local:
        yield _across_machines(graph, tp, nodes, best)
        return
    slowest = graph.slowest(
        edge for block in _blocks(order, tp) for edge in ring_edges(graph, block)
    )
    if best is None or slowest is None or slowest.speed[0] == best.speed[0]:
        return
    noun = "GPU" if graph.places[0].is_gpu else "node"
    why = (
        f"tp {tp} is larger than the fastest domain of {largest} ({best.word})"
        if tp > largest
        else f"the domains joined by {best.word} do not divide into groups of {tp}"
    )
    pair = numbered((slowest.a, slowest.b), noun)
    yield f"{why}: {pair} of one group are joined by {slowest.word}{_loss(best, slowest)}"


def _across_machines(graph: PlaceGraph, tp: int, nodes: int, best: Edge | None) -> str:
    local = len(graph)
    shares = [each.network_bytes_s for each in graph.places if each.network_bytes_s is not None]
    within = best.bandwidth_bytes_s if best is not None else None
    text = f"tp {tp} is larger than a machine of {local}: its groups use the network"
    if not shares:
        return f"{text}, whose bandwidth is not known"
    rate = min(shares)
    text += f", {number(rate / 1e9, 3)} GB/s for each GPU"
    if within is None or best is None:
        return text
    return f"{text} instead of {number(within / 1e9, 3)} ({best.word}): {_times(within, rate)}"


def _loss(fast: Edge, slow: Edge) -> str:
    a, b = fast.bandwidth_bytes_s, slow.bandwidth_bytes_s
    if a is None or b is None:
        return ", and no source states how much slower that is"
    if a <= b:
        return ", a longer way, at the same bandwidth of its links"
    return f", {number(b / 1e9, 3)} GB/s instead of {number(a / 1e9, 3)}: {_times(a, b)}"


def _times(fast: float, slow: float) -> str:
    return f"{number(fast / slow, 2)} times less"
