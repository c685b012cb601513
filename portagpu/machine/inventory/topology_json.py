"""A topology as JSON: ``portagpu.topology/1``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.readings.model import Node
from portagpu.machine.inventory.routes import domains, hives, nearest_nics, routes

if TYPE_CHECKING:
    from portagpu.machine.inventory.routes import Route
    from portagpu.machine.inventory.topology import Topology

SCHEMA: Final = "portagpu.topology/1"


def topology_document(topology: Topology) -> dict[str, Any]:
    """Plain values. ``matrix[i][j]`` is the position in ``ways`` of the route from GPU i to GPU j.

    Bandwidths are in bytes a second one way, as sources state them; None is unknown.
    """
    gpus = topology.gpus
    near = nearest_nics(topology)
    position = {gpu.key: number for number, gpu in enumerate(gpus)}
    ways: dict[Route, int] = {}
    matrix: list[list[int | None]] = [[None] * len(gpus) for _ in gpus]
    for (a, b), route in routes(topology).items():
        way = ways.setdefault(route, len(ways))
        matrix[position[a]][position[b]] = matrix[position[b]][position[a]] = way
    return {
        "schema": SCHEMA,
        "gpus": [
            {
                "key": gpu.key,
                "name": gpu.name,
                "pci": gpu.pci,
                "numa_node": gpu.numa_node,
                "hive": gpu.hive,
                "nearest_nics": [nic.key for nic in near.get(gpu.key, ())],
                "sources": list(dict.fromkeys(reading.source for reading in gpu.readings)),
            }
            for gpu in gpus
        ],
        "devices": [
            {
                "key": device.key,
                "kind": str(device.node),
                "name": device.name,
                "numa_node": device.numa_node,
                "parent": topology.parents.get(device.key),
            }
            for device in topology.devices.values()
            if device.node is not Node.GPU
        ],
        "links": [
            {
                "a": link_group.a,
                "b": link_group.b,
                "kind": link_group.kind,
                "count": link_group.count,
                "down": link_group.down,
                "width": link_group.width,
                "speed_gbit_s": link_group.speed_gbit_s,
                "bandwidth_bytes_s": link_group.bandwidth_bytes_s,
                "peer_access": link_group.peer_access,
                "sources": list(dict.fromkeys(link.source for link in link_group.statements)),
            }
            for link_group in topology.link_groups
        ],
        "ways": [asdict(route) for route in ways],
        "matrix": matrix,
        "domains": [list(group) for group in domains(topology)],
        "hives": {hive: list(group) for hive, group in hives(topology).items()},
        "problems": list(topology.problems),
    }
