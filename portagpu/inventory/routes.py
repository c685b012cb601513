"""Questions to a topology: how two GPUs reach each other, who is fastest, what is near."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from portagpu.inventory.model import Node
from portagpu.inventory.topology import FABRICS, ancestors
from portagpu.pcie import link_bytes_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from portagpu.inventory.topology import Device, Joint, Topology

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
    direct: dict[tuple[str, str], list[Joint]] = {}
    switched: dict[str, dict[str, Joint]] = {gpu.key: {} for gpu in gpus}
    for joint in topology.joints:
        direct.setdefault((joint.a, joint.b), []).append(joint)
        for gpu, other in ((joint.a, joint.b), (joint.b, joint.a)):
            device = topology.devices[other]
            if gpu in switched and device.node is Node.SWITCH and joint.kind in FABRICS:
                switched[gpu][other] = joint
    tree = _Tree(topology)
    trunks = _trunks(topology)
    found = {}
    for position, a in enumerate(gpus):
        for b in gpus[position + 1 :]:
            joints = direct.get((min(a.key, b.key), max(a.key, b.key)), [])
            found[a.key, b.key] = _route(
                joints, switched[a.key], switched[b.key], trunks, tree, (a.key, b.key)
            )
    return found


def _route(
    joints: Sequence[Joint],
    a_switches: Mapping[str, Joint],
    b_switches: Mapping[str, Joint],
    trunks: Mapping[str, int],
    tree: _Tree,
    pair: tuple[str, str],
) -> Route:
    access = next((j.peer_access for j in joints if j.peer_access is not None), None)
    for kind in FABRICS:
        joint = next((j for j in joints if j.kind == kind and j.count != 0), None)
        if joint is not None:
            word = joint.path or _word(kind, joint.count)
            return Route(kind, word, joint.count, 0, joint.bandwidth_bytes_s, access)
        common = [
            (joint, b_switches[key])
            for key, joint in a_switches.items()
            if key in b_switches
            and joint.kind == kind
            and 0 not in (joint.count, b_switches[key].count)
        ]
        if common:
            counts = [_smaller(a.count, b.count) for a, b in common]
            rates = [_smaller(a.bandwidth_bytes_s, b.bandwidth_bytes_s) for a, b in common]
            count = None if None in counts else sum(c for c in counts if c is not None)
            rate = None if None in rates else sum(r for r in rates if r is not None)
            return Route(kind, _word(kind, count), count, len(common), rate, access)
        ends = [
            {
                trunks[key]
                for key, joint in switches.items()
                if joint.kind == kind and joint.count != 0
            }
            for switches in (a_switches, b_switches)
        ]
        if ends[0] & ends[1]:  # how many links the trunks between the switches leave is not said
            return Route(kind, _word(kind, None), None, 2, None, access)
    stated = next((j for j in joints if j.path is not None), joints[0] if joints else None)
    path, rate = tree.way(*pair)
    if stated is not None and stated.path is not None:
        path = stated.path
    if stated is None and path is None:
        return Route(peer_access=access)
    known = stated.bandwidth_bytes_s if stated is not None else None
    return Route("pcie", path, None, 0, known if known is not None else rate, access)


def _trunks(topology: Topology) -> Mapping[str, int]:
    """The group of each switch of a fabric: those that links between switches join."""
    switches = [d.key for d in topology.devices.values() if d.node is Node.SWITCH]
    pairs = [
        (joint.a, joint.b)
        for joint in topology.joints
        if joint.kind in FABRICS
        and joint.count != 0
        and topology.devices[joint.a].node is topology.devices[joint.b].node is Node.SWITCH
    ]
    groups = components(switches, pairs)
    return {key: number for number, group in enumerate(groups) for key in group}


def _word(kind: str, count: int | None) -> str:
    if kind == "nvlink":
        return f"NV{count}" if count is not None else "NVLINK"
    return kind.upper()


def _smaller(a: _Number, b: _Number) -> _Number:
    return b if a is None or (b is not None and b < a) else a


class _Tree:
    """Ways over PCI Express; the ancestors of each device are looked up once."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._up: dict[str, list[str]] = {}
        self._least: dict[str, list[float | None]] = {}

    def up(self, key: str) -> list[str]:
        if key not in self._up:
            self._up[key] = ancestors(key, self._topology.parents)
        return self._up[key]

    def _rates(self, key: str) -> list[float | None]:
        """The narrowest link on the way to each ancestor; None where none is known."""
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
        """(the way in words, bytes a second of its narrowest link)."""
        up_a, up_b = self.up(a), self.up(b)
        depth = {key: position for position, key in enumerate(up_b)}
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

    def distance(self, a: str, b: str) -> tuple[int, int]:
        """What sorts the nearest first: the way, then the number of links."""
        word, _ = self.way(a, b)
        rank = NEAREST_FIRST.index(word) if word in NEAREST_FIRST else len(NEAREST_FIRST)
        depth = {key: position for position, key in enumerate(self.up(b))}
        meet = next((p + depth[key] for p, key in enumerate(self.up(a)) if key in depth), 0)
        return rank, meet


def domains(topology: Topology) -> tuple[tuple[str, ...], ...]:
    """GPUs that the machine's fastest fabric joins, directly, through other GPUs or its switches.

    The largest group first; empty without a fabric. A GPU that the fabric does not reach is alone.
    """
    working = [joint for joint in topology.joints if joint.kind in FABRICS and joint.count != 0]
    kind = next((kind for kind in FABRICS if any(j.kind == kind for j in working)), None)
    if kind is None:
        return ()
    gpus = [gpu.key for gpu in topology.gpus]
    pairs = [(joint.a, joint.b) for joint in working if joint.kind == kind]
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


def nearest_nics(topology: Topology) -> Mapping[str, tuple[Device, ...]]:
    """The NICs that are nearest to each GPU over PCI Express, all that are equally near.

    A GPU is absent where no way to any NIC is known.
    """
    tree = _Tree(topology)
    stated = {
        frozenset((j.a, j.b)): NEAREST_FIRST.index(j.path)
        for j in topology.joints
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
            found[gpu.key] = tuple(nic for rank, nic in ranked if rank == least)
    return found
