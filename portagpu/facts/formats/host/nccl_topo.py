"""The topology XML of NCCL and RCCL, dumped by them or written for them.

``NCCL_TOPO_DUMP_FILE`` writes it and ``NCCL_TOPO_FILE`` reads it (NCCL, ``src/graph/xml.cc`` and
``topo.cc``). PCI devices are nested below the CPU that they are attached to, with every other
level of bridges left out. ``link_speed`` and ``link_width`` are the most that device and slot can
do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from portagpu.base.paths import matrix_dir
from portagpu.facts.formats import integer, number, pci_address, stated
from portagpu.facts.formats.json_xml import Element, read_xml, root_tag
from portagpu.facts.formats.pci import (
    generation,
    hexadecimal,
    node_kind,
    transfer_rate,
    vendor_name,
)
from portagpu.facts.host.tree import MAX_CPUS, format_cpu_list
from portagpu.facts.readings.model import End, Findings, FormatError, Link, Node, Pcie, Reading

KIND: Final = "NCCL topology XML"

ROOT: Final = "system"
SINGLE: Final = True
_FABRICS: Final = ("nvlink", "xgmi", "c2c")
_OF_NEIGHBOURS: Final = _FABRICS[1]
_INFINIBAND: Final = 0x0207
_CPU_WITH_NVLINKS: Final = 0x068001


def matches(text: str) -> bool:
    """Whether the outermost element is NCCL's."""
    return root_tag(text) == ROOT


def parse(text: str) -> Findings:
    """The GPUs, their links, and the PCI devices on the way to the CPUs."""
    root, problems = read_xml(text, KIND)
    if root.tag != ROOT:
        raise FormatError(f"{KIND}: the outermost element is {root.tag[:40]!r}, not 'system'")
    walk = _Walk(list(problems))
    for cpu in root.children_named("cpu"):
        node = integer(cpu.get("numaid"))
        # -1 where the kernel states none (NCCL, xml.cc)
        node = node if node is not None and node >= 0 else None
        end = End(Node.CPU, f"node {node if node is not None else '?'}", index=node)
        walk.cpu = {name: value for name in ("arch", "vendor") if (value := stated(cpu.get(name)))}
        if cpus := _cpu_list(cpu.get("affinity")):
            walk.cpu["affinity"] = cpus
        for pci in cpu.children_named("pci"):
            walk.device(pci, end, node)
    if not walk.links and not walk.readings:
        raise FormatError(f"{KIND}: no PCI device in it")
    return Findings(
        kind=KIND,
        readings=tuple(walk.readings),
        links=tuple(walk.without_neighbour_counts()),
        versions={"system": version} if (version := stated(root.get("version"))) else {},
        problems=tuple(walk.problems),
        breaks_off=bool(problems),
    )


@dataclass(slots=True)
class _Walk:
    problems: list[str]
    readings: list[Reading] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    cpu: dict[str, str] = field(default_factory=dict)
    """Architecture and vendor of the CPU whose devices are being read, and the list of its CPUs."""

    def device(self, element: Element, parent: End, numa_node: int | None) -> None:
        """One PCI device and what is below it; the depth is bounded by the reader of XML."""
        address = pci_address(element.get("busid"))
        if address is None:
            self.problems.append(f"a PCI device has no address: {element.get('busid')!r:.60}")
            return
        code = hexadecimal(element.get("class"))
        kind = node_kind(None if code is None else code >> 8, hexadecimal(element.get("vendor")))
        gpus, nics = element.children_named("gpu"), element.children_named("nic")
        kind = Node.GPU if gpus else Node.NIC if nics else kind
        if kind is None:
            return
        names = [net.get("name") or "" for nic in nics for net in nic.children_named("net")]
        index = integer(gpus[0].get("dev")) if gpus else None
        end = End(kind, next(filter(None, names), address), address, index)
        about = {f"cpu {key}": value for key, value in self.cpu.items()}
        self.links.append(_pcie_link(element, end, parent, about))
        if kind is Node.GPU:
            self._gpu(element, gpus[0] if gpus else None, end, numa_node)
        for nic in nics:
            self.links += [_network(net, address, code) for net in nic.children_named("net")]
        for child in element.children_named("pci"):
            self.device(child, end, numa_node)

    def _gpu(self, pci: Element, gpu: Element | None, end: End, numa_node: int | None) -> None:
        gcn = stated(gpu.get("gcn")) if gpu is not None else None
        sm = integer(gpu.get("sm")) if gpu is not None else None
        vendor = vendor_name(hexadecimal(pci.get("vendor")))
        if vendor is None:
            vendor = "amd" if gcn is not None else "nvidia" if sm is not None else None
        if vendor is None:  # a file written for NCCL may leave the vendor out: the links have it
            return
        rate = transfer_rate(pci.get("link_speed"))
        self.readings.append(
            Reading(
                source=KIND,
                vendor=vendor,
                index=end.index,
                pci=end.pci,
                # RCCL writes the architecture next to it and the number of units into sm
                arch=_gcn_arch(gcn) if gcn is not None else f"sm_{sm}" if sm is not None else None,
                unit_count=sm if gcn is not None else None,
                device_id=hexadecimal(pci.get("device")),
                subsystem_id=hexadecimal(pci.get("subsystem_device")),
                numa_node=numa_node,
                pcie=Pcie(max_generation=generation(rate), max_width=_width(pci)),
                extra={
                    name: value
                    for name in ("rank", "gdr", "gcn")
                    if gpu is not None and (value := stated(gpu.get(name))) is not None
                },
            )
        )
        if gpu is not None:
            for link in gpu.children:
                if link.tag in _FABRICS:
                    self._fabric(link, end)

    def _fabric(self, link: Element, end: End) -> None:
        written = stated(link.get("count"))
        count = integer(written)
        if written is not None and (count is None or count < 0):
            self.problems.append(
                f"{end.pci} has {written!r:.40} links of {link.tag}: they are left out"
            )
            return
        self.links.append(_fabric(link, end, count))

    def without_neighbour_counts(self) -> list[Link]:
        """The links; of a fabric that has 1 everywhere, without counts.

        Older models of RCCL write count="1" for each neighbour (tools/topo_expl/models), and newer
        ones how many links lead there.
        """
        counts = {link.count for link in self.links if link.kind == _OF_NEIGHBOURS}
        if counts != {1}:
            return self.links
        return [
            replace(link, count=None) if link.kind == _OF_NEIGHBOURS else link
            for link in self.links
        ]


def _cpu_list(mask: str | None) -> str | None:
    """ "0000ff00,000000ff" as "0-7,40-47"; None for what is not a mask, or has no CPU."""
    digits = (mask or "").replace(",", "")
    if len(digits) > MAX_CPUS // 4 or not re.fullmatch(r"[0-9a-fA-F]+", digits):
        return None
    bits = int(digits, 16)
    return (
        format_cpu_list(tuple(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)) or None
    )


def _above_zero(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None


def _width(pci: Element) -> int | None:
    width = integer(pci.get("link_width"))
    return width if width is not None and width > 0 else None


def _pcie_link(element: Element, end: End, parent: End, about: dict[str, str]) -> Link:
    return Link(
        source=KIND,
        a=end,
        b=parent,
        kind="pcie",
        width=_width(element),
        speed_gbit_s=transfer_rate(element.get("link_speed")),
        extra={"speed": "the most that device and slot can do"}
        | (about if parent.node is Node.CPU else {}),
    )


def _fabric(link: Element, gpu: End, count: int | None) -> Link:
    """A link of the GPUs' own fabric; ``tclass`` is the PCI class of its other end."""
    target = pci_address(link.get("target"))
    code = hexadecimal(link.get("tclass"))
    node = node_kind(None if code is None else code >> 8, None)
    if link.tag == "c2c" or code == _CPU_WITH_NVLINKS:
        other = End(Node.CPU, "C2C")
    elif node is Node.GPU or (node is None and code is None and target is not None):
        other = End(Node.GPU, target or "GPU", target)
    else:
        # 0x068001 is POWER9, whose CPUs have NVLinks (NCCL, topo.cc, kvDictPciClass);
        # NCCL writes "fffffff:ffff:ff" for a switch that the machine does not show
        other = End(Node.SWITCH, target or "fabric switch", target)
    bandwidth = _above_zero(number(link.get("bw")))
    return Link(
        source=KIND,
        a=gpu,
        b=other,
        kind=link.tag,
        count=count,
        # in 1e9 bytes a second of one link (topo.cc)
        bandwidth_bytes_s=None if bandwidth is None else bandwidth * 1e9,
    )


def _network(net: Element, address: str, code: int | None) -> Link:
    """A port of a NIC to whatever it is plugged into; ``speed`` is in 1e6 bits a second."""
    name, port = net.get("name") or address, net.get("port") or "0"
    speed = _above_zero(number(net.get("speed")))
    infiniband = code is not None and code >> 8 == _INFINIBAND
    return Link(
        source=KIND,
        a=End(Node.NIC, name, address, integer(net.get("dev"))),
        b=End(Node.SWITCH, f"{name} port {port}"),
        kind="infiniband" if infiniband else "ethernet",
        bandwidth_bytes_s=None if speed is None else speed * 1e6 / 8,
        extra={key: value for key in ("gdr", "guid", "maxconn") if (value := net.get(key))},
    )


def _gcn_arch(gcn: str) -> str | None:
    """ "gfx942:sramecc+" as "gfx942"; "910", HIP's older number, as "gfx90a"; None if not known.

    A number of an architecture that the matrix does not have is read digit by digit.
    """
    if gcn.startswith("gfx"):
        return gcn.split(":")[0]
    plain = f"gfx{gcn}" if re.fullmatch(r"[89]\d\d|1\d\d\d", gcn) else None
    return _arch_by_number().get(gcn, plain)


@cache
def _arch_by_number() -> dict[str, str]:
    """HIP's ``gcnArch`` of the architectures in the matrix: major * 100 + minor * 10 + stepping.

    The number alone does not say where one part ends: 910 is 9.0.10, and not 9.1.0.
    """
    found = {}
    for path in sorted((matrix_dir() / "targets" / "families").glob("gfx*.toml")):
        match = re.fullmatch(r"gfx(\d+)([0-9a-f])([0-9a-f])", path.stem)
        if match is not None:
            major, minor, stepping = int(match[1]), int(match[2], 16), int(match[3], 16)
            found[str(major * 100 + minor * 10 + stepping)] = path.stem
    return found
