"""Rings and trees over the places of a machine.

A ring is as fast as its slowest edge. The best ring has the fastest slowest edge, then the fewest
edges as slow, then the fewest of the next level, and so on; of equal ones that which comes first in
the order of places. With up to ``EXACT`` places every ring is compared. Beyond, rings are built
from the domains, from the nearest neighbours and from the identity, and edges are exchanged (2-opt)
until none is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from portagpu.machine.placement.graph import components, networkx, weighted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from portagpu.machine.placement.graph import Edge, PlaceGraph

EXACT: Final = 8
"""Places up to which every ring, and every division into groups, is compared."""
_STARTS: Final = 8
_MAX_RINGS: Final = 64
"""No library runs more channels."""
_EXCHANGES: Final = 400_000
"""Exchanges that are looked at beyond ``EXACT``: a second or so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """An order of places that closes. Two places are joined in both directions, one is alone.

    ``slowest`` is the edge that bounds it, ``identity`` that of the places in their own order; None
    for one place. ``basis`` is "every ring was compared", "no ring can be better", "no ring can
    have a faster slowest edge" or "found by exchanges, not proven".
    """

    order: tuple[int, ...]
    slowest: Edge | None
    identity: Edge | None
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A tree with at most two children for each place.

    ``parents`` is by position, None for the root. ``slowest`` is its slowest edge; ``bound`` that
    of the best tree with any number of children. ``depth`` is the longest way to the root.
    """

    root: int
    parents: tuple[int | None, ...]
    depth: int
    slowest: Edge | None
    bound: Edge | None


def ring_edges(graph: PlaceGraph, order: Sequence[int]) -> tuple[Edge, ...]:
    """The edges of a ring; of two places their one edge, of one place none."""
    if len(order) < 2:
        return ()
    closed = [*order, order[0]] if len(order) > 2 else list(order)
    return tuple(graph.edge(a, b) for a, b in pairwise(closed))


def ring_order(graph: PlaceGraph) -> Ring:
    """The best ring over all places that was found, and how good it is known to be."""
    size = len(graph)
    identity = tuple(range(size))
    order, proven = best_cycle(graph.costs, list(_candidates(graph)))
    slowest = graph.slowest(ring_edges(graph, order))
    if size <= EXACT:
        basis = "every ring was compared"
    elif proven:
        basis = "no ring can be better"
    elif slowest is not None and slowest.level >= _ring_bound(graph):
        basis = "no ring can have a faster slowest edge"
    else:
        basis = "found by exchanges, not proven"
    return Ring(
        order=order,
        slowest=slowest,
        identity=graph.slowest(ring_edges(graph, identity)),
        basis=basis,
    )


def rings(graph: PlaceGraph) -> tuple[tuple[int, ...], ...]:
    """Rings that share no link, found one after another over links that each join two places.

    A library runs channels over all of them, each in both directions. Empty where links go through
    switches or PCI Express, which all rings share, or where no ring of such links is found.
    """
    size = len(graph)
    left = {pair: each.own for pair, each in graph.edges.items()}
    found: list[tuple[int, ...]] = []
    # more rings than links of one place cannot be
    most = sum(left[pair] for pair in left if 0 in pair) // 2 if size > 2 else 0
    for _ in range(min(most, _MAX_RINGS)):
        costs = [[2 * size] * size for _ in range(size)]
        for (a, b), count in left.items():
            if count:
                costs[a][b] = costs[b][a] = 1
        order, _ = best_cycle(costs, found)
        used = [(min(a, b), max(a, b)) for a, b in _steps(order)]
        if any(not left[pair] for pair in used):
            break
        for pair in used:
            left[pair] -= 1
        found.append(order)
    return tuple(found)


def tree_order(graph: PlaceGraph) -> Tree:
    """A tree for reductions: each place joins over its fastest edge, with at most two children.

    Of equal edges that to the place nearest the root counts. Where the best ring without its
    slowest edge has a faster slowest edge, that chain is the tree.
    """
    size = len(graph)
    greedy = _two_children(graph)
    slowest = _slowest_of_tree(graph, greedy)
    ring = ring_order(graph).order
    steps = ring_edges(graph, ring)
    worst = steps.index(weakest) if (weakest := graph.slowest(steps)) in steps else 0
    # the chain begins after the slowest edge, and its root is in the middle
    chain = [*ring[worst + 1 :], *ring[: worst + 1]]
    line = _parents_of_chain(chain)
    of_line = _slowest_of_tree(graph, line)
    if slowest is not None and of_line is not None and of_line.level > slowest.level:
        greedy, slowest = line, of_line
    best = networkx().maximum_spanning_edges(weighted(graph), weight="level", data=False)
    return Tree(
        root=greedy.index(None),
        parents=tuple(greedy),
        depth=max((_depth(greedy, place) for place in range(size)), default=0),
        slowest=slowest,
        bound=graph.slowest(graph.edge(a, b) for a, b in best),
    )


def best_cycle(
    costs: Sequence[Sequence[int]], candidates: Iterable[Sequence[int]] = ()
) -> tuple[tuple[int, ...], bool]:
    """(the order of the least sum, whether no other can be less); it begins with 0.

    ``candidates`` are orders to begin with, next to the identity; they count beyond ``EXACT``.
    """
    size = len(costs)
    identity = tuple(range(size))
    least = _least_sum(costs)
    if size < 4 or 2 * _length(costs, identity) == least:
        return identity, True
    if size <= EXACT:
        return _least_of_all(costs), True
    starts = dict.fromkeys([identity, *map(_from_zero, candidates), *_neighbours(costs)])
    best, budget = identity, _EXCHANGES
    for start in sorted(starts, key=lambda order: _length(costs, order)):
        order, budget = _exchange(costs, start, budget)
        if _length(costs, order) < _length(costs, best):
            best = _from_zero(order)
        if 2 * _length(costs, best) == least:
            return best, True
    return best, False


def _steps(order: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(order, [*order[1:], order[0]], strict=True)


def _length(costs: Sequence[Sequence[int]], order: Sequence[int]) -> int:
    return sum(costs[a][b] for a, b in _steps(order))


def _least_sum(costs: Sequence[Sequence[int]]) -> int:
    """Twice what a ring costs at least: two edges at every place."""
    return sum(
        sum(sorted(row[:own] + row[own + 1 :])[:2]) for own, row in enumerate(map(list, costs))
    )


def _least_of_all(costs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The least of all rings, in one direction of each; of equal ones the first."""
    size = len(costs)
    best, least = tuple(range(size)), _length(costs, range(size))

    def extend(order: list[int], rest: list[int], cost: int) -> None:
        nonlocal best, least
        if cost >= least:
            return
        if not rest:
            whole = cost + costs[order[-1]][0]
            if whole < least and order[1] < order[-1]:
                best, least = tuple(order), whole
            return
        for place in rest:
            left = [each for each in rest if each != place]
            extend([*order, place], left, cost + costs[order[-1]][place])

    extend([0], list(range(1, size)), 0)
    return best


def _from_zero(order: Sequence[int]) -> tuple[int, ...]:
    """The same ring, beginning with 0, in the direction of the lower second place."""
    at = list(order).index(0)
    turned = [*order[at:], *order[:at]]
    return tuple(turned if turned[1] <= turned[-1] else [0, *turned[:0:-1]])


def _neighbours(costs: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Orders that always go on to the nearest place, from some starts."""
    size = len(costs)
    for start in range(0, size, max(1, size // _STARTS)):
        rest, order = set(range(size)) - {start}, [start]
        while rest:
            row = costs[order[-1]]
            nearest = min(rest, key=lambda place: (row[place], place))
            order.append(nearest)
            rest.discard(nearest)
        yield _from_zero(order)


def _exchange(
    costs: Sequence[Sequence[int]], start: Sequence[int], budget: int
) -> tuple[tuple[int, ...], int]:
    """(the order after every exchange of two edges that shortens it, the exchanges left)."""
    order, size = list(start), len(start)
    better = True
    while better and budget > 0:
        better = False
        for i in range(size - 1):
            for j in range(i + 2, size - (i == 0)):
                budget -= 1
                a, b, c, d = order[i], order[i + 1], order[j], order[(j + 1) % size]
                if costs[a][c] + costs[b][d] < costs[a][b] + costs[c][d]:
                    order[i + 1 : j + 1] = order[i + 1 : j + 1][::-1]
                    better = True
            if budget <= 0:
                break
    return tuple(order), budget


def _candidates(graph: PlaceGraph) -> Iterator[tuple[int, ...]]:
    if len(graph) > EXACT:
        yield domain_order(graph)


def domain_order(graph: PlaceGraph) -> tuple[int, ...]:
    """The places so that those of a faster domain stand together, at every level."""
    levels = sorted({each.level for each in graph.edges.values()})
    first: list[dict[int, int]] = []
    for level in levels:
        groups = components(graph, level)
        first.append({place: min(group) for group in groups for place in group})
    return tuple(sorted(range(len(graph)), key=lambda place: [*(of[place] for of in first), place]))


def _ring_bound(graph: PlaceGraph) -> int:
    """The highest level at which a ring may exist: its graph must stay whole without any place."""
    nx = networkx()
    levels = sorted({each.level for each in graph.edges.values()}, reverse=True)
    return next((level for level in levels if nx.is_biconnected(weighted(graph, level))), 0)


def _two_children(graph: PlaceGraph) -> list[int | None]:
    size = len(graph)
    parents: list[int | None] = [None] * size
    depth, children, inside = [0] * size, [0] * size, {0}
    # (slower edges last, depth, parent, child) of all edges that leave the tree
    leaving: list[tuple[int, int, int, int]] = []

    def add(parent: int) -> None:
        for child in range(size):
            if child not in inside:
                level = graph.edge(parent, child).level
                heappush(leaving, (-level, depth[parent], parent, child))

    add(0)
    while len(inside) < size:
        _, _, parent, child = heappop(leaving)
        if child not in inside and children[parent] < 2:
            parents[child], depth[child] = parent, depth[parent] + 1
            children[parent] += 1
            inside.add(child)
            add(child)
    return parents


def _parents_of_chain(chain: Sequence[int]) -> list[int | None]:
    parents: list[int | None] = [None] * len(chain)
    middle = len(chain) // 2
    for at in range(1, middle + 1):
        parents[chain[at - 1]] = chain[at]
    for at in range(middle + 1, len(chain)):
        parents[chain[at]] = chain[at - 1]
    return parents


def _slowest_of_tree(graph: PlaceGraph, parents: Sequence[int | None]) -> Edge | None:
    return graph.slowest(
        graph.edge(place, parent) for place, parent in enumerate(parents) if parent is not None
    )


def _depth(parents: Sequence[int | None], place: int) -> int:
    depth, above = 0, parents[place]
    while above is not None:
        depth, above = depth + 1, parents[above]
    return depth
