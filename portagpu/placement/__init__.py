"""Where ranks belong: rings, trees, domains and groups over the links of a machine."""

from __future__ import annotations

from portagpu.placement.graph import Edge, Place, PlaceGraph, gpu_graph, numa_graph, with_levels
from portagpu.placement.live import device_mesh
from portagpu.placement.machine import Placement, graph_of_machine, place
from portagpu.placement.orders import Ring, Tree, ring_order, rings, tree_order
from portagpu.placement.parallel_groups import Domain, Groups, domains, groups

__all__ = [
    "Domain",
    "Edge",
    "Groups",
    "Place",
    "PlaceGraph",
    "Placement",
    "Ring",
    "Tree",
    "device_mesh",
    "domains",
    "gpu_graph",
    "graph_of_machine",
    "groups",
    "numa_graph",
    "place",
    "ring_order",
    "rings",
    "tree_order",
    "with_levels",
]
