"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.machine.placement.graph import Edge as Edge
from portagpu.machine.placement.graph import Place as Place
from portagpu.machine.placement.graph import PlaceGraph as PlaceGraph
from portagpu.machine.placement.graph import gpu_graph as gpu_graph
from portagpu.machine.placement.graph import numa_graph as numa_graph
from portagpu.machine.placement.graph import with_levels as with_levels
from portagpu.machine.placement.machine import device_mesh as device_mesh
from portagpu.machine.placement.machine import Placement as Placement
from portagpu.machine.placement.machine import graph_of_machine as graph_of_machine
from portagpu.machine.placement.machine import place as place
from portagpu.machine.placement.orders import Ring as Ring
from portagpu.machine.placement.orders import Tree as Tree
from portagpu.machine.placement.orders import ring_order as ring_order
from portagpu.machine.placement.orders import rings as rings
from portagpu.machine.placement.orders import tree_order as tree_order
from portagpu.machine.placement.parallel_groups import Domain as Domain
from portagpu.machine.placement.parallel_groups import Groups as Groups
from portagpu.machine.placement.parallel_groups import domains as domains
from portagpu.machine.placement.parallel_groups import groups as groups
