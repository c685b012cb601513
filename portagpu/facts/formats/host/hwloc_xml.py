"""The XML of hwloc's ``lstopo --of xml``: PCI, NUMA nodes, and what hwloc's plugins add.

Objects nest as the machine does (``hwloc2.dtd``). A GPU's PCI device holds operating-system
devices ("nvml0", "rsmi0", "cuda0") whose infos name it, and ``distances2hetero`` is a matrix of
link bandwidths in MB/s. ``pci_link_speed`` is in GB/s, what the link carries now.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Final

from portagpu.facts.formats import integer, number, pci_address, stated
from portagpu.facts.formats.json_xml import Element, read_xml, root_tag
from portagpu.facts.formats.pci import hexadecimal, node_kind, vendor_name
from portagpu.facts.readings.model import End, Findings, FormatError, Link, Node, Reading

KIND: Final = "hwloc XML"

ROOT: Final = "topology"
SINGLE: Final = True
_BANDWIDTHS: Final = {"NVLinkBandwidth": "nvlink", "XGMIBandwidth": "xgmi"}
"""Matrices of hwloc's NVML and RSMI plugins, and the kind of link that they measure."""
_MEMORY_BESIDE: Final = frozenset(
    {"HBM", "MCDRAM", "SPM", "NVM", "GPUMemory", "CXL-DRAM", "CXL-NVM"}
)
_MAX_OBJECTS: Final = 2048
"""Of one matrix: its values are the square."""


def matches(text: str) -> bool:
    """Whether the outermost element is hwloc's."""
    return root_tag(text) == ROOT


def parse(text: str) -> Findings:
    """The GPUs with the names that hwloc's plugins gave them, and the PCI and fabric links."""
    root, problems = read_xml(text, KIND)
    if root.tag != ROOT:
        raise FormatError(f"{KIND}: the outermost element is {root.tag[:40]!r}, not 'topology'")
    walk = _Walk(list(problems))
    for child in root.children_named("object"):
        walk.visit(child, None, None)
    for matrix in (*root.children_named("distances2hetero"), *root.children_named("distances2")):
        walk.matrix(matrix)
    if not walk.links:
        raise FormatError(f"{KIND}: no PCI device in it; run lstopo without --no-io")
    version = next(
        (v for i in root.children_named("info") if (v := _info(i, "hwlocVersion"))), None
    )
    return Findings(
        kind=KIND,
        readings=tuple(walk.readings),
        links=tuple(walk.links),
        versions={} if version is None else {"hwloc": version},
        problems=tuple(walk.problems),
        breaks_off=bool(problems),
    )


@dataclass(frozen=True, slots=True)
class _Walk:
    problems: list[str]
    readings: list[Reading] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    ends: dict[str, End] = field(default_factory=dict)
    """Ends by what matrices call them ("OSDev:802", "PCIDev:449")."""
    peers: dict[str, End] = field(default_factory=dict)
    """GPUs by the name of their device of the operating system."""
    cpusets: dict[str, str] = field(default_factory=dict)
    """The processors of each NUMA node, as hwloc writes them ("0x00000003")."""

    def visit(self, element: Element, parent: End | None, near: End | None) -> None:
        """An object and what is in it; ``near`` is the NUMA node around, ``parent`` on PCI."""
        kind = element.get("type")
        if kind in ("NUMANode", "Node"):
            near = self._numa(element)
        else:
            local = _memory_children(element)
            if len(local) == 1:
                near = self._numa(local[0])
            elif len(local) > 1:
                near = None  # attached to one of several, and nothing says to which
        if kind == "Bridge" and element.get("pci_busid") is None:
            parent = self._host_bridge(element, near)
        elif kind in ("Bridge", "PCIDev"):
            parent = self._pci(element, parent or near, near) or parent
        for child in element.children_named("object"):
            self.visit(child, parent, near)

    def _host_bridge(self, element: Element, near: End | None) -> End:
        end = End(Node.SWITCH, f"root complex {element.get('bridge_pci') or '?'}")
        if near is not None:
            cpuset = self.cpusets.get(near.name)
            about = {"cpuset": cpuset} if cpuset is not None else {}
            self.links.append(Link(source=KIND, a=end, b=near, kind="pcie", extra=about))
        return end

    def _numa(self, element: Element) -> End:
        index = integer(element.get("os_index"))
        end = End(Node.CPU, f"node {index if index is not None else '?'}", index=index)
        if (cpuset := stated(element.get("cpuset"))) is not None:
            self.cpusets[end.name] = cpuset
        return end

    def _pci(self, element: Element, parent: End | None, near: End | None) -> End | None:
        address = pci_address(element.get("pci_busid"))
        ids = re.match(
            r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\](?: \[[0-9a-f]{4}:([0-9a-f]{4})\])?",
            element.get("pci_type") or "",
        )
        if address is None or ids is None:
            self.problems.append(f"a PCI device cannot be read: {element.get('pci_busid')!r:.60}")
            return None
        code, vendor_id, device_id, subsystem_id = (hexadecimal(text) for text in ids.groups())
        node = node_kind(code, vendor_id)
        if element.get("subtype") == "NVSwitch" or element.get("type") == "Bridge":
            node = Node.SWITCH
        if node is None:
            return None
        devices = element.children_named("object")
        # of a NIC's devices the one that libraries know it by ("mlx5_0") comes first
        devices.sort(key=lambda d: not any(_info(i, "NodeGUID") for i in d.children_named("info")))
        names = [n for d in devices if (n := stated(d.get("name"))) is not None]
        end = End(node, names[0] if names and node is Node.NIC else address, address)
        if node is Node.GPU:
            end = self._gpu(end, devices, vendor_id, device_id, subsystem_id, near)
        self.ends[f"PCIDev:{element.get('gp_index')}"] = end
        self._link(element, end, parent)
        return end

    def _link(self, element: Element, end: End, parent: End | None) -> None:
        speed = number(element.get("pci_link_speed"))
        self.links.append(
            Link(
                source=KIND,
                a=end,
                b=parent or End(Node.CPU, "host"),
                kind="pcie",
                # hwloc writes 0 for a link whose speed it could not read
                bandwidth_bytes_s=speed * 1e9 if speed else None,
            )
        )

    def _gpu(
        self,
        end: End,
        devices: list[Element],
        vendor_id: int | None,
        device_id: int | None,
        subsystem_id: int | None,
        near: End | None,
    ) -> End:
        infos = {
            name: value
            for device in devices
            for info in device.children_named("info")
            if (name := info.get("name")) and (value := stated(info.get("value")))
        }
        names = [device.get("name") or "" for device in devices]
        managed = next((n for n in names if re.fullmatch(r"(?:nvml|rsmi)\d{1,4}", n)), None)
        index = int(managed[4:]) if managed is not None else None
        end = End(Node.GPU, end.name, end.pci, index)
        for device in devices:
            self.ends[f"OSDev:{device.get('gp_index')}"] = end
            self.peers[device.get("name") or ""] = end
        vendor = vendor_name(vendor_id)
        if vendor is None:
            return end
        self.readings.append(
            Reading(
                source=KIND,
                vendor=vendor,
                index=index,
                pci=end.pci,
                uuid=infos.get("NVIDIAUUID"),
                unique_id=hexadecimal(infos.get("AMDUUID")),
                name=infos.get("GPUModel"),
                device_id=device_id,
                subsystem_id=subsystem_id,
                numa_node=near.index if near is not None else None,
                hive=infos.get("XGMIHiveID"),
                extra={"os devices": " ".join(names)} if names else {},
            )
        )
        return end

    def matrix(self, element: Element) -> None:
        """A matrix of bandwidths; one of anything else is not for links."""
        kind = _BANDWIDTHS.get(element.get("name") or "")
        if kind is None:
            return
        names = " ".join(child.text for child in element.children_named("indexes")).split()
        values = " ".join(child.text for child in element.children_named("u64values")).split()
        side = len(names)
        prefix = element.get("type")
        if prefix is not None:
            names = [f"{prefix}:{name}" for name in names]
        if side > _MAX_OBJECTS or math.isqrt(len(values)) != side or len(values) != side * side:
            self.problems.append(
                f"{element.get('name')} has {len(values)} values for {side} objects"
            )
            return
        for row, name in enumerate(names):
            for column, other in enumerate(names):
                rate = integer(values[row * side + column])
                a, b = self.ends.get(name), self.ends.get(other)
                if row == column or not rate or a is None or b is None or a == b:
                    continue
                self.links.append(
                    Link(source=KIND, a=a, b=b, kind=kind, bandwidth_bytes_s=rate * 1e6)
                )
        unknown = [name for name in names if name not in self.ends]
        if unknown:
            self.problems.append(
                f"{element.get('name')} names {len(unknown)} objects that are not there, "
                f"the first {unknown[0][:40]!r}"
            )


def _memory_children(element: Element) -> list[Element]:
    """The NUMA nodes of an object's own memory: of several the main one, where hwloc says which.

    They stand below a cache of the memory's side where there is one; the subtype distinguishes main
    memory from that of GPUs and from slower or faster memory (hwloc documentation, "Normal
    attributes").
    """
    found: list[Element] = []
    for child in element.children_named("object"):
        if child.get("type") == "MemCache":
            found += _memory_children(child)
        elif child.get("type") == "NUMANode":
            found.append(child)
    return [child for child in found if child.get("subtype") not in _MEMORY_BESIDE] or found


def _info(element: Element, name: str) -> str | None:
    return stated(element.get("value")) if element.get("name") == name else None
