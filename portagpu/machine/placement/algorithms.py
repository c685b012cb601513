"""networkx, which comes with torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.base.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Iterable

    from portagpu.machine.placement.graph import PlaceGraph


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
