"""Where ranks belong: rings, trees, domains and groups over the links of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.placement.graph import Edge as Edge
    from portagpu.placement.graph import Place as Place
    from portagpu.placement.graph import PlaceGraph as PlaceGraph
    from portagpu.placement.graph import gpu_graph as gpu_graph
    from portagpu.placement.graph import numa_graph as numa_graph
    from portagpu.placement.graph import with_levels as with_levels
    from portagpu.placement.live import device_mesh as device_mesh
    from portagpu.placement.machine import Placement as Placement
    from portagpu.placement.machine import graph_of_machine as graph_of_machine
    from portagpu.placement.machine import place as place
    from portagpu.placement.orders import Ring as Ring
    from portagpu.placement.orders import Tree as Tree
    from portagpu.placement.orders import ring_order as ring_order
    from portagpu.placement.orders import rings as rings
    from portagpu.placement.orders import tree_order as tree_order
    from portagpu.placement.parallel_groups import Domain as Domain
    from portagpu.placement.parallel_groups import Groups as Groups
    from portagpu.placement.parallel_groups import domains as domains
    from portagpu.placement.parallel_groups import groups as groups
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.placement.graph": "Edge Place PlaceGraph gpu_graph numa_graph with_levels",
            "portagpu.placement.live": "device_mesh",
            "portagpu.placement.machine": "Placement graph_of_machine place",
            "portagpu.placement.orders": "Ring Tree ring_order rings tree_order",
            "portagpu.placement.parallel_groups": "Domain Groups domains groups",
        },
    )
