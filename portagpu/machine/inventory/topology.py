"""The graph of a machine's GPUs, NUMA nodes, switches and NICs, from all sources.

Sources name the same device differently. Ends are joined by PCI address, then by a GPU's UUID or
index. A link keeps the statements of all sources. Where they contradict each other the first
counts, and a sentence in ``problems`` names both.

The PCI Express tree is that of the source with most links: NCCL leaves bridges out, lspci may not
show any, and trees of two sources cannot be mixed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from portagpu.facts.readings.model import End, Link, Node
from portagpu.facts.vendors import LazyMapping, vendors
from portagpu.machine.inventory.kernel_links import INDIRECT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from portagpu.facts.readings.model import Findings, Reading
    from portagpu.facts.vendors import Fabric


def _fabrics() -> dict[str, Fabric]:
    found: dict[str, Fabric] = {}
    for each in (one for vendor in vendors().values() for one in vendor.fabrics):
        # of two vendors that name one kind, the first keeps it
        found.setdefault(each.kind, each)
    return found


FABRICS: Final[Mapping[str, Fabric]] = LazyMapping(_fabrics)
"""Links between GPUs that are faster than PCI Express, by kind, the fastest of a vendor first."""

_ROUNDING: Final = 0.1
"""Tolerance of bandwidths: sources round and count line codes differently. A missing link of
eighteen is more than 5 %, and shows in the counts."""
_MAX_PROBLEMS: Final = 200
_MAX_NAMED: Final = 8
_DEEPEST: Final = 256
"""Devices on a way to the CPU: PCI has 256 buses."""


@dataclass(frozen=True, slots=True)
class TopologyNode:
    """A node of the graph; ``key`` is its PCI address, or the name that its source gives it.

    ``readings`` are those of every source for a GPU.
    """

    key: str
    node: Node
    name: str
    pci: str | None = None
    index: int | None = None
    numa_node: int | None = None
    hive: str | None = None
    readings: tuple[Reading, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """The parallel links of one kind between two devices.

    ``count`` is the number of links that are up or whose state is not known, ``down`` of those that
    are down. ``bandwidth_bytes_s`` is the sum of all in one direction. ``statements`` are the links
    as each source states them.
    """

    a: str
    b: str
    kind: str
    count: int | None = None
    down: int | None = None
    width: int | None = None
    speed_gbit_s: float | None = None
    bandwidth_bytes_s: float | None = None
    path: str | None = None
    weight: int | None = None
    hops: int | None = None
    peer_access: bool | None = None
    statements: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """The graph. ``parents`` leads from a PCI device to what it is plugged into."""

    devices: Mapping[str, TopologyNode]
    link_groups: tuple[LinkGroup, ...] = ()
    parents: Mapping[str, str] = field(default_factory=dict)
    edges: Mapping[str, Link] = field(default_factory=dict)
    """The PCI Express link from a device to its parent, as the source of the tree states it."""
    problems: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[TopologyNode, ...]:
        """The GPUs by PCI address, those without one last."""
        return self._nodes_of_kind(Node.GPU)

    @property
    def nics(self) -> tuple[TopologyNode, ...]:
        """The NICs by PCI address, those without one last."""
        return self._nodes_of_kind(Node.NIC)

    def _nodes_of_kind(self, node: Node) -> tuple[TopologyNode, ...]:
        found = [device for device in self.devices.values() if device.node is node]
        return tuple(sorted(found, key=lambda d: (d.pci is None, d.pci or "", d.index or 0, d.key)))


def build_topology(findings: Iterable[Findings]) -> Topology:
    """The graph of all findings; where they contradict each other, the first counts."""
    findings = tuple(findings)
    readings = [reading for each in findings for reading in each.readings]
    links = [link for each in findings for link in each.links]
    names = _NodeIndex(readings)
    for link in links:
        names.add(link.a)
        names.add(link.b)
    pairs: dict[tuple[str, str, str], list[tuple[str, Link]]] = {}
    trees: dict[str, list[tuple[str, str, Link]]] = {}
    for link in links:
        a, b = names.key(link.a, link.source), names.key(link.b, link.source)
        if a == b:
            names.problems.append(f"{link.source} links {a} to itself")
        elif _is_branch(link):
            # whichever way it is stated, the device is plugged into the other end
            if link.a.node is Node.CPU or link.b.node in (Node.GPU, Node.NIC):
                a, b = b, a
            trees.setdefault(link.source, []).append((a, b, link))
        else:
            pairs.setdefault((min(a, b), max(a, b), link.kind), []).append((a, link))
    problems = names.problems
    link_groups = tuple(_link_group(pair, stated, problems) for pair, stated in pairs.items())
    parents, edges = _tree(trees)
    devices = {key: _with_agreed_facts(device, problems) for key, device in names.devices.items()}
    _numa_from_tree(devices, parents, problems)
    _limit_problems(problems)
    return Topology(devices, link_groups, parents, edges, tuple(problems))


def only_gpus(topology: Topology, gpus: Collection[str]) -> Topology:
    """The topology without the GPUs that are not among ``gpus``, and without their links."""
    devices = {
        key: device
        for key, device in topology.devices.items()
        if device.node is not Node.GPU or key in gpus
    }
    return replace(
        topology,
        devices=devices,
        link_groups=tuple(j for j in topology.link_groups if j.a in devices and j.b in devices),
    )


def _is_branch(link: Link) -> bool:
    """Whether a link is a branch of the PCI Express tree, and not a path through it."""
    nodes = {link.a.node, link.b.node}
    direct = link.path is None and link.extra.get("list") != INDIRECT
    return link.kind == "pcie" and direct and bool(nodes & {Node.SWITCH, Node.CPU})


class _NodeIndex:
    """Finds the device of an end; an unknown end becomes a new device."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self.devices: dict[str, TopologyNode] = {}
        self.problems: list[str] = []
        self._by_index: dict[tuple[str, int], str] = {}
        self._any_index: dict[int, set[str]] = {}
        self._by_name: dict[tuple[Node, str], str] = {}
        self._ambiguous: dict[int, str] = {}
        stated: dict[str, list[Reading]] = {}
        by_uuid = {r.uuid: r.pci for r in readings if r.uuid and r.pci}
        # one tool uses the same numbers in all of its outputs
        of_tool = {(r.source.split(" ")[0], r.index): r.pci for r in readings if r.pci}
        for reading in readings:
            numbered = of_tool.get((reading.source.split(" ")[0], reading.index))
            pci = reading.pci or by_uuid.get(reading.uuid or "")
            if pci is None and reading.index is not None:
                pci = numbered
            key = (
                pci or reading.uuid or (f"GPU{reading.index}" if reading.index is not None else "")
            )
            if not key:
                continue
            device = self.devices.get(key) or TopologyNode(key, Node.GPU, key, pci, reading.index)
            index = device.index if device.index is not None else reading.index
            self.devices[key] = replace(device, index=index)
            stated.setdefault(key, []).append(reading)
            if reading.index is not None:
                self._by_index.setdefault((reading.source, reading.index), key)
                self._any_index.setdefault(reading.index, set()).add(key)
        for key, all_of_it in stated.items():
            self.devices[key] = replace(self.devices[key], readings=tuple(all_of_it))

    def add(self, end: End) -> None:
        """Register the name and index of an end that has an address."""
        if end.pci is None:
            return
        known = self.devices.get(end.pci)
        if known is None:
            self.devices[end.pci] = TopologyNode(end.pci, end.node, end.name, end.pci, end.index)
        elif known.name == known.key != end.name and end.node is known.node:
            self.devices[end.pci] = replace(known, name=end.name)
        self._by_name.setdefault((end.node, end.name), end.pci)

    def key(self, end: End, source: str) -> str:
        if end.pci is not None:
            return end.pci
        key = self._by_name.get((end.node, end.name))
        if key is None and end.node is Node.GPU and end.index is not None:
            key = self._by_index.get((source, end.index))
            same = self._any_index.get(end.index, set())
            if key is None and len(same) == 1:
                key = next(iter(same))
            elif key is None and len(same) > 1:
                key = f"{source}: {end.name}"
                if end.index not in self._ambiguous:
                    first = nsmallest(_MAX_NAMED, same)
                    more = f" or {len(same) - len(first)} more" if len(same) > len(first) else ""
                    self._ambiguous[end.index] = " or ".join(first) + more
                self.problems.append(
                    f"{end.name} of {source} is {self._ambiguous[end.index]}, as sources count"
                )
        if key is None:
            key = end.name if end.node is not Node.CPU or end.index is None else f"node {end.index}"
        self._by_name[end.node, end.name] = key
        self.devices.setdefault(key, TopologyNode(key, end.node, end.name, None, end.index))
        return key


@dataclass(frozen=True, slots=True)
class _Sum:
    """The sum of one source's parallel links in one direction."""

    source: str
    count: int | None
    down: int | None
    bandwidth: float | None
    link: Link


def _sums(stated: Sequence[tuple[str, Link]]) -> Iterator[_Sum]:
    groups: dict[tuple[str, str], list[Link]] = {}
    for start, link in stated:
        groups.setdefault((link.source, start), []).append(link)
    for (source, _), links in groups.items():
        working = [link for link in links if link.up is not False]
        counts = [link.count if link.count is not None else 1 for link in working]
        # lines that state nothing but errors may be chosen ones
        several = any(link.count is not None or link.up is not None for link in links) and (
            len(links) > 1 or links[0].count is not None or links[0].up is False
        )
        rates = [r for link in working if (r := link.bandwidth_bytes_s) is not None]
        states = [link.up for link in links if link.up is not None]
        down = sum(link.count or 1 for link in links if link.up is False)
        yield _Sum(
            source,
            sum(counts) if several else None,
            down if states else None,
            sum(rates) if rates else None,
            (working or links)[0],
        )


def _link_group(
    pair: tuple[str, str, str], stated: Sequence[tuple[str, Link]], problems: list[str]
) -> LinkGroup:
    a, b, kind = pair
    sums = list(_sums(stated))
    what = f"the {kind} links between {a} and {b}"

    def first_stated(
        name: str, values: list[tuple[str, float | int | None]], slack: float = 0.0
    ) -> float | None:
        known = [(source, value) for source, value in values if value is not None]
        if not known:
            return None
        source, value = known[0]
        for other, different in known[1:]:
            if abs(different - value) > slack * max(abs(value), abs(different)):
                problems.append(
                    f"{name} of {what}: {value:g} by {source}, {different:g} by {other}"
                )
                break
        return value

    def first_integer(name: str, values: list[tuple[str, int | None]]) -> int | None:
        value = first_stated(name, [*values])
        return None if value is None else int(value)

    access = [s.link.peer_access for s in sums if s.link.peer_access is not None]
    if len(set(access)) > 1:
        problems.append(f"peer access of {what}: stated both as possible and as not")
    return LinkGroup(
        a,
        b,
        kind,
        count=first_integer("the number", [(s.source, s.count) for s in sums]),
        down=max((s.down for s in sums if s.down is not None), default=None),
        width=first_integer("the width", [(s.source, s.link.width) for s in sums]),
        speed_gbit_s=first_stated(
            "the speed", [(s.source, s.link.speed_gbit_s) for s in sums], _ROUNDING
        ),
        bandwidth_bytes_s=first_stated(
            "the bandwidth", [(s.source, s.bandwidth) for s in sums], _ROUNDING
        ),
        path=next((s.link.path for s in sums if s.link.path is not None), None),
        weight=next((s.link.weight for s in sums if s.link.weight is not None), None),
        hops=next((s.link.hops for s in sums if s.link.hops is not None), None),
        peer_access=access[0] if access and len(set(access)) == 1 else None,
        statements=tuple(link for _, link in stated),
    )


def _tree(
    trees: Mapping[str, list[tuple[str, str, Link]]],
) -> tuple[dict[str, str], dict[str, Link]]:
    """(parents, links to them): the largest tree, and from the others what it does not have."""
    parents: dict[str, str] = {}
    edges: dict[str, Link] = {}
    for source in sorted(trees, key=lambda source: -len(trees[source])):
        new = [(a, b, link) for a, b, link in trees[source] if a not in parents]
        for a, b, link in new:
            parents.setdefault(a, b)
            edges.setdefault(a, link)
    return parents, edges


def ancestors(key: str, parents: Mapping[str, str]) -> list[str]:
    """The device and what it is plugged into, up to a CPU; a loop ends where it closes."""
    found = [key]
    seen = {key}
    while (
        (above := parents.get(found[-1])) is not None
        and above not in seen
        and len(found) < _DEEPEST
    ):
        found.append(above)
        seen.add(above)
    return found


def _with_agreed_facts(device: TopologyNode, problems: list[str]) -> TopologyNode:
    """A GPU with the facts of its readings. The first counts; a disagreement is a problem."""
    if not device.readings:
        return device

    def agreed_value(name: str, values: list[tuple[str, object]]) -> object:
        known = [(source, value) for source, value in values if value is not None]
        different = next((v for v in known if v[1] != known[0][1]), None)
        if different is not None:
            problems.append(
                f"{name} of {device.key}: {known[0][1]} by {known[0][0]}, "
                f"{different[1]} by {different[0]}"
            )
        return known[0][1] if known else None

    sources = device.readings
    for name in ("width", "max_width", "max_generation"):
        agreed_value(f"PCIe {name}", [(r.source, getattr(r.pcie, name)) for r in sources])
    numa_node = agreed_value("NUMA node", [(r.source, r.numa_node) for r in sources])
    hive = next((r.hive for r in sources if r.hive is not None), None)
    title = next((r.name for r in sources if r.name is not None), None)
    return replace(
        device,
        name=title or device.name,
        numa_node=numa_node if isinstance(numa_node, int) else None,
        hive=hive,
    )


def _numa_from_tree(
    devices: dict[str, TopologyNode], parents: Mapping[str, str], problems: list[str]
) -> None:
    for key, device in devices.items():
        if device.node not in (Node.GPU, Node.NIC):
            continue
        top = devices.get(ancestors(key, parents)[-1])
        node = top.index if top is not None and top.node is Node.CPU else None
        if device.numa_node is None and node is not None:
            devices[key] = replace(device, numa_node=node)
        elif node is not None and device.numa_node != node:
            problems.append(
                f"NUMA node of {key}: {device.numa_node} by its readings, {node} by the PCI tree"
            )


def _limit_problems(problems: list[str]) -> None:
    repeated = Counter(problems)
    problems[:] = list(repeated)
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"and {len(problems) - _MAX_PROBLEMS} more"]
