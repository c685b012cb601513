"""Queries on a topology: routes between GPUs, the fastest fabric, the nearest NICs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from portagpu.facts.pcie import link_bytes_s
from portagpu.facts.readings.model import Node
from portagpu.machine.inventory.topology import FABRICS, ancestors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from portagpu.machine.inventory.topology import LinkGroup, Topology, TopologyNode

_Number = TypeVar("_Number", int | None, float | None)

NEAREST_FIRST: Final = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Ways over PCI Express in nvidia-smi's words: one switch, several, the host bridge, several host
bridges of a NUMA node, and the link between sockets (``nvidia-smi topo --help``)."""


@dataclass(frozen=True, slots=True)
class Route:
    """How one GPU reaches another.

    ``kind`` is the fastest kind of link, None where nothing is known; ``path`` the way in words
    ("NV18", "XGMI", "PIX"); ``count`` the number of parallel links; ``through`` how many switches
    of the fabric share them. ``bandwidth_bytes_s`` is one way, as stated, or of PCI Express what
    its narrowest link carries.
    """

    kind: str | None = None
    path: str | None = None
    count: int | None = None
    through: int = 0
    bandwidth_bytes_s: float | None = None
    peer_access: bool | None = None


def routes(topology: Topology) -> Mapping[tuple[str, str], Route]:
    """The route of every pair of GPUs, each pair once, by keys in the order of ``gpus``."""
    gpus = topology.gpus
    direct: dict[tuple[str, str], list[LinkGroup]] = {}
    for link_group in topology.link_groups:
        direct.setdefault((link_group.a, link_group.b), []).append(link_group)
    fabrics = [_SwitchFabric(topology, kind) for kind in FABRICS]
    tree = _Tree(topology)
    # without a link of their own, GPUs in like places have like routes: quick for hundreds of GPUs
    places: dict[object, int] = {}
    at = [
        places.setdefault((tree.place(gpu.key), *(f.place(gpu.key) for f in fabrics)), len(places))
        for gpu in gpus
    ]
    like: dict[tuple[int, int], Route] = {}
    found: dict[tuple[str, str], Route] = {}
    for i, a in enumerate(gpus):
        for j, b in enumerate(gpus[i + 1 :], i + 1):
            link_groups = direct.get((a.key, b.key)) or direct.get((b.key, a.key)) or ()
            route = None if link_groups else like.get((at[i], at[j]))
            if route is None:
                route = _route(link_groups, fabrics, tree, a.key, b.key)
                if not link_groups:
                    like[at[i], at[j]] = route
            found[a.key, b.key] = route
    return found


def _route(
    link_groups: Sequence[LinkGroup], fabrics: Sequence[_SwitchFabric], tree: _Tree, a: str, b: str
) -> Route:
    access = next((j.peer_access for j in link_groups if j.peer_access is not None), None)
    for fabric in fabrics:
        kind = fabric.kind
        link_group = next((j for j in link_groups if j.kind == kind and j.count != 0), None)
        if link_group is not None:
            word = link_group.path or _path_word(kind, link_group.count)
            return Route(kind, word, link_group.count, 0, link_group.bandwidth_bytes_s, access)
        through, count, rate = fabric.shared_links(a, b)
        if through:
            return Route(kind, _path_word(kind, count), count, through, rate, access)
    stated = next(
        (j for j in link_groups if j.path is not None), link_groups[0] if link_groups else None
    )
    path, rate = tree.way(a, b)
    if stated is None and path is None:
        return Route(peer_access=access)
    if stated is not None:
        path = stated.path or path
        rate = stated.bandwidth_bytes_s or rate
    return Route("pcie", path, None, 0, rate, access)


class _SwitchFabric:
    """The switches of one fabric: which GPUs they join, and with how many links."""

    def __init__(self, topology: Topology, kind: str) -> None:
        self.kind = kind
        self._at: dict[str, dict[str, LinkGroup]] = {}
        groups = _switch_groups(topology, kind)
        for link_group in topology.link_groups:
            if link_group.kind != kind or link_group.count == 0:
                continue
            for gpu, other in ((link_group.a, link_group.b), (link_group.b, link_group.a)):
                nodes = topology.devices[gpu].node, topology.devices[other].node
                if nodes == (Node.GPU, Node.SWITCH):
                    self._at.setdefault(gpu, {})[other] = link_group
        self._groups = {
            gpu: frozenset(groups[switch] for switch in switches)
            for gpu, switches in self._at.items()
        }

    def place(self, gpu: str) -> object:
        """What its routes through switches depend on: its links to them."""
        return tuple(
            (key, link_group.count, link_group.bandwidth_bytes_s)
            for key, link_group in self._at.get(gpu, {}).items()
        )

    def shared_links(self, a: str, b: str) -> tuple[int, int | None, float | None]:
        """(switches on the way, links, bytes a second one way); no switches where none joins them.

        Through links between switches, how many are left for two GPUs is not said.
        """
        if not self._groups.get(a, frozenset()) & self._groups.get(b, frozenset()):
            return 0, None, None
        from_a, from_b = self._at[a], self._at[b]
        common = [(link_group, from_b[key]) for key, link_group in from_a.items() if key in from_b]
        if not common:
            return 2, None, None
        counts = [_smaller(a.count, b.count) for a, b in common]
        rates = [_smaller(a.bandwidth_bytes_s, b.bandwidth_bytes_s) for a, b in common]
        count = None if None in counts else sum(c for c in counts if c is not None)
        rate = None if None in rates else sum(r for r in rates if r is not None)
        return len(common), count, rate


def _switch_groups(topology: Topology, kind: str) -> Mapping[str, int]:
    """The group of each switch: those that links of the fabric between switches join."""
    switches = [d.key for d in topology.devices.values() if d.node is Node.SWITCH]
    pairs = [
        (link_group.a, link_group.b)
        for link_group in topology.link_groups
        if link_group.kind == kind
        and link_group.count != 0
        and topology.devices[link_group.a].node
        is topology.devices[link_group.b].node
        is Node.SWITCH
    ]
    groups = components(switches, pairs)
    return {key: number for number, group in enumerate(groups) for key in group}


def _path_word(kind: str, count: int | None) -> str:
    counted = FABRICS[kind].counted if kind in FABRICS else None
    return kind.upper() if counted is None or count is None else counted.format(count=count)


def _smaller(a: _Number, b: _Number) -> _Number:
    return b if a is None or (b is not None and b < a) else a


class _Tree:
    """Paths over PCI Express; caches the ancestors of each device."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._up: dict[str, list[str]] = {}
        self._least: dict[str, list[float | None]] = {}
        self._depths: dict[str, dict[str, int]] = {}

    def up(self, key: str) -> list[str]:
        if key not in self._up:
            self._up[key] = ancestors(key, self._topology.parents)
        return self._up[key]

    def depths(self, key: str) -> dict[str, int]:
        """How many links lie below each ancestor."""
        if key not in self._depths:
            self._depths[key] = {above: depth for depth, above in enumerate(self.up(key))}
        return self._depths[key]

    def _rates(self, key: str) -> list[float | None]:
        """The rate of the narrowest link on the way to each ancestor; None if none is known."""
        if key not in self._least:
            least: float | None = None
            found: list[float | None] = [None]
            for step in self.up(key)[:-1]:
                link = self._topology.edges[step]
                rate = link.bandwidth_bytes_s or link_bytes_s(link.speed_gbit_s, link.width)
                least = _smaller(least, rate)
                found.append(least)
            self._least[key] = found
        return self._least[key]

    def way(self, a: str, b: str) -> tuple[str | None, float | None]:
        """(the way in words, bytes a second of its narrowest link) between two leaves."""
        up_a, up_b = self.up(a), self.up(b)
        depth = self.depths(b)
        meet = next((p for p, key in enumerate(up_a) if key in depth), None)
        devices = self._topology.devices
        if meet is None:
            tops = [devices[up[-1]] for up in (up_a, up_b)]
            nodes = [top.index if top.node is Node.CPU else None for top in tops]
            if None in nodes:
                nodes = [devices[key].numa_node for key in (a, b)]
            known = None not in nodes
            crossed = "SYS" if known and nodes[0] != nodes[1] else "NODE" if known else None
            return crossed, _smaller(self._rates(a)[-1], self._rates(b)[-1])
        top = up_a[meet]
        rate = _smaller(self._rates(a)[meet], self._rates(b)[depth[top]])
        if devices[top].node is Node.CPU:
            return ("NODE" if devices[top].index is not None else None), rate
        if devices[top].pci is None:
            return "PHB", rate
        # a switch is a bridge above and a bridge for each port below
        single = meet <= 2 and depth[top] <= 2
        return ("PIX" if single else "PXB"), rate

    def place(self, key: str) -> object:
        """What the ways from a leaf depend on: its link, and what that leads to."""
        device, link = self._topology.devices[key], self._topology.edges.get(key)
        above = self.up(key)[1:2] or [key]
        own = (link.bandwidth_bytes_s, link.speed_gbit_s, link.width) if link else ()
        return (above[0], device.numa_node, own)

    def distance(self, a: str, b: str) -> tuple[int, int]:
        """What sorts the nearest first: the way, then the number of links."""
        word, _ = self.way(a, b)
        rank = NEAREST_FIRST.index(word) if word in NEAREST_FIRST else len(NEAREST_FIRST)
        depth = self.depths(b)
        meet = next((p + depth[key] for p, key in enumerate(self.up(a)) if key in depth), 0)
        return rank, meet


def domains(topology: Topology) -> tuple[tuple[str, ...], ...]:
    """GPUs that the machine's fastest fabric joins, directly, through other GPUs or its switches.

    The largest group first; empty without a fabric. A GPU that the fabric does not reach is alone.
    """
    working = [
        link_group
        for link_group in topology.link_groups
        if link_group.kind in FABRICS and link_group.count != 0
    ]
    kind = next((kind for kind in FABRICS if any(j.kind == kind for j in working)), None)
    if kind is None:
        return ()
    gpus = [gpu.key for gpu in topology.gpus]
    pairs = [(link_group.a, link_group.b) for link_group in working if link_group.kind == kind]
    groups = components(dict.fromkeys([*gpus, *(key for pair in pairs for key in pair)]), pairs)
    wanted = set(gpus)
    found = [tuple(key for key in group if key in wanted) for group in groups]
    return tuple(sorted(filter(None, found), key=lambda group: -len(group)))


def components(
    keys: Iterable[str], pairs: Iterable[tuple[str, str]]
) -> tuple[tuple[str, ...], ...]:
    """Groups of keys that pairs join, largest first, each in the order of ``keys``."""
    keys = list(keys)
    parent = {key: key for key in keys}

    def find(key: str) -> str:
        while parent[key] != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    for a, b in pairs:
        parent[find(b)] = find(a)
    groups: dict[str, list[str]] = {}
    for key in keys:
        groups.setdefault(find(key), []).append(key)
    return tuple(sorted((tuple(g) for g in groups.values()), key=lambda g: -len(g)))


def hives(topology: Topology) -> Mapping[str, tuple[str, ...]]:
    """GPUs by the hive that their readings state."""
    found: dict[str, list[str]] = {}
    for gpu in topology.gpus:
        if gpu.hive is not None:
            found.setdefault(gpu.hive, []).append(gpu.key)
    return {hive: tuple(keys) for hive, keys in found.items()}


def nearest_nics(topology: Topology) -> Mapping[str, tuple[TopologyNode, ...]]:
    """The NICs that are nearest to each GPU over PCI Express, all that are equally near.

    A GPU is absent where no way to any NIC is known.
    """
    return {gpu: tuple(nic for nic, _ in ways) for gpu, ways in nic_ways(topology).items()}


def nic_ways(topology: Topology) -> Mapping[str, tuple[tuple[TopologyNode, str], ...]]:
    """As :func:`nearest_nics`, each NIC with the way to it, a word of ``NEAREST_FIRST``."""
    tree = _Tree(topology)
    stated = {
        frozenset((j.a, j.b)): NEAREST_FIRST.index(j.path)
        for j in topology.link_groups
        if j.path in NEAREST_FIRST
    }
    found = {}
    for gpu in topology.gpus:
        ranked = []
        for nic in topology.nics:
            rank = tree.distance(gpu.key, nic.key)
            said = stated.get(frozenset((gpu.key, nic.key)))
            ranked.append(((said, 0) if said is not None else rank, nic))
        least = min((rank for rank, _ in ranked), default=(len(NEAREST_FIRST), 0))
        if least[0] < len(NEAREST_FIRST):
            word = NEAREST_FIRST[least[0]]
            found[gpu.key] = tuple((nic, word) for rank, nic in ranked if rank == least)
    return found


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
