"""GPUs in the kernel's files: one Findings each from a driver's list, KFD, DRM and PCI.

Files: Linux ``Documentation/ABI/testing/sysfs-bus-pci`` and ``Documentation/gpu/amdgpu``, and the
drivers' own lists in /proc. Only files are opened, and none of them needs privileges.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats.pci import (
    generation,
    hexadecimal,
    node_kind,
    transfer_rate,
    vendor_name,
)
from portagpu.facts.host.gpus import (
    PCI_DEVICES,
    PCI_VENDORS,
    device_files,
    kfd_groups,
    pci_gpus,
    proc_gpus,
    render_file,
    rocr_uuid,
    sum_if_known,
)
from portagpu.facts.host.tree import Tree, as_tree
from portagpu.facts.readings.model import (
    End,
    Findings,
    GpuPart,
    GpuState,
    Link,
    Node,
    Pcie,
    Reading,
)
from portagpu.facts.vendors import vendor_named
from portagpu.machine.inventory.kernel_links import INDIRECT, kfd_links

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from portagpu.facts.host.gpus import KfdNode
    from portagpu.facts.host.tree import Tree

KIND: Final = "sysfs pci"

_DEVICES: Final = "sys/bus/pci/devices"
_ADDRESS: Final = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_ROOT: Final = r"pci[0-9a-f]{4,8}:[0-9a-f]{2}"


@dataclass(frozen=True, slots=True)
class _PciDevice:
    address: str
    node: Node
    vendor_id: int | None
    device_id: int | None
    parent: str | None
    """An address, or the name of a root complex ("pci0000:00")."""
    numa_node: int | None
    secondary: str | None
    """The bus below a bridge, as "domain:bus"."""
    rate: float | None
    width: int | None
    max_rate: float | None
    max_width: int | None


def read_pci(root: Tree | Path | str = "/") -> Findings:
    """GPUs as readings, and each link of GPUs, NICs and the bridges on their way to the CPUs.

    A link's own figures are what it does now; ``extra`` has "max_gt_s" and "max_width", the most
    that both its ends can do. Empty where the kernel's files are not there.
    """
    tree = as_tree(root)
    found = [_read_device(tree, address) for address in tree.names(_DEVICES, _ADDRESS)]
    devices = {device.address: device for device in found if device is not None}
    buses = {d.secondary: d.address for d in devices.values() if d.secondary is not None}
    parents = {
        device.address: device.parent or buses.get(device.address.rpartition(":")[0])
        for device in devices.values()
    }
    needed: dict[str, None] = {}
    for device in devices.values():
        at: str | None = device.address if device.node is not Node.SWITCH else None
        while at is not None and at not in needed:
            needed[at] = None
            at = parents.get(at)
    # devices below one root complex repeat its way to the NUMA node
    links = {
        (link.a.name, link.b.name): link
        for address in needed
        if address in devices
        for link in _links(devices[address], parents[address], devices)
    }
    readings = tuple(
        _reading(device, vendor, devices.get(parents[device.address] or ""))
        for device in devices.values()
        if device.node is Node.GPU and (vendor := vendor_name(device.vendor_id)) is not None
    )
    return Findings(kind=KIND, readings=readings, links=tuple(links.values()))


def _read_device(tree: Tree, address: str) -> _PciDevice | None:
    folder = f"{_DEVICES}/{address}"
    code, vendor_id = tree.integer(f"{folder}/class"), tree.integer(f"{folder}/vendor")
    node = node_kind(None if code is None else code >> 8, vendor_id)
    # a virtual function that its own host still sees is a part of the physical one
    if node is None or vendor_id is None or tree.exists(f"{folder}/physfn"):
        return None
    parts = tree.link_parts(folder)
    above = parts[-2] if len(parts) > 1 else ""
    numa_node = tree.integer(f"{folder}/numa_node")
    secondary = tree.integer(f"{folder}/secondary_bus_number")
    return _PciDevice(
        address=address,
        node=node,
        vendor_id=vendor_id,
        device_id=tree.integer(f"{folder}/device"),
        parent=above if re.fullmatch(f"{_ADDRESS}|{_ROOT}", above) else None,
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
        secondary=f"{address.split(':')[0]}:{secondary:02x}" if secondary else None,
        rate=transfer_rate(tree.text(f"{folder}/current_link_speed")),
        width=tree.integer(f"{folder}/current_link_width") or None,
        max_rate=transfer_rate(tree.text(f"{folder}/max_link_speed")),
        max_width=_lanes(tree.integer(f"{folder}/max_link_width")),
    )


def _lanes(width: int | None) -> int | None:
    # the kernel writes 255 where the device has no link of its own
    return width if width is not None and 0 < width < 255 else None


def _links(device: _PciDevice, parent: str | None, devices: dict[str, _PciDevice]) -> list[Link]:
    end = End(device.node, device.address, device.address)
    near = (
        End(Node.CPU, f"node {device.numa_node}", index=device.numa_node)
        if device.numa_node is not None
        else End(Node.CPU, "host")
    )
    above = devices.get(parent or "")
    root = End(Node.SWITCH, f"root complex {parent}") if parent and above is None else None
    other = root or (End(Node.SWITCH, parent, parent) if parent else near)
    rate, width = _common_limits(device, above)
    limits = {"max_gt_s": f"{rate:g}" if rate else "", "max_width": f"{width}" if width else ""}
    link = Link(
        source=KIND,
        a=end,
        b=other,
        kind="pcie",
        width=device.width,
        speed_gbit_s=device.rate,
        extra={key: value for key, value in limits.items() if value},
    )
    return [link] if root is None else [link, Link(source=KIND, a=root, b=near, kind="pcie")]


def _common_limits(device: _PciDevice, above: _PciDevice | None) -> tuple[float | None, int | None]:
    """(GT/s, lanes): the most that a device and the bridge above it can both do.

    None where one of them is not known: a virtual machine shows no bridge.
    """
    if above is None:
        return None, None
    rates, widths = (device.max_rate, above.max_rate), (device.max_width, above.max_width)
    return (
        None if None in rates else min(rate for rate in rates if rate is not None),
        None if None in widths else min(width for width in widths if width is not None),
    )


def _reading(device: _PciDevice, vendor: str, above: _PciDevice | None) -> Reading:
    rate, width = _common_limits(device, above)
    return Reading(
        source=KIND,
        vendor=vendor,
        pci=device.address,
        device_id=device.device_id,
        numa_node=device.numa_node,
        pcie=Pcie(
            generation=generation(device.rate),
            width=device.width,
            device_generation=generation(device.max_rate),
            device_width=device.max_width,
            max_generation=generation(rate),
            max_width=width,
        ),
    )


_DRM: Final = "sys/class/drm"


def kernel_findings(tree: Tree) -> tuple[Findings, ...]:
    """Findings of each kernel source that shows a GPU, the most detailed source first."""
    found = (
        _proc_findings(tree),
        _kfd_findings(tree),
        _drm_findings(tree),
        _pci_findings(tree),
        _device_file_findings(tree),
    )
    return tuple(each for each in found if each.readings)


def _findings(tree: Tree, kind: str, readings: Iterable[Reading]) -> Findings:
    found = tuple(readings)
    versions: dict[str, str] = {}
    if len({reading.vendor for reading in found}) == 1:
        file = vendor_named(found[0].vendor).driver_version
        version = tree.text(file) if file is not None else None
        versions = {"driver": version} if version else {}
    return Findings(kind=kind, readings=found, versions=versions)


def _proc_findings(tree: Tree) -> Findings:
    return _findings(
        tree,
        "proc",
        (
            Reading(
                source="proc",
                vendor=gpu.vendor,
                pci=gpu.pci,
                uuid=gpu.uuid,
                name=gpu.name,
                device_file=gpu.device_file,
            )
            for gpu in proc_gpus(tree).values()
        ),
    )


def _kfd_findings(tree: Tree) -> Findings:
    groups = kfd_groups(tree, pci_gpus(tree))
    near = _memory_nodes(tree) if groups else {}
    return _findings(
        tree,
        "kfd",
        (
            _kfd_reading(tree, address, nodes, near.get(nodes[0].index))
            for address, nodes in groups.items()
        ),
    )


def _memory_nodes(tree: Tree) -> dict[int, int]:
    """The NUMA node of each GPU's node: that of the CPUs to which it is linked directly.

    KFD has a node of CPUs for each NUMA node, in their order (``kfd_create_vcrat_image_cpu``).
    """
    cpus: dict[int, None] = {}
    direct: dict[int, list[tuple[int, int]]] = {}
    for link in kfd_links(tree).links:
        for end in (link.a, link.b):
            if end.node is Node.CPU and end.index is not None:
                cpus[end.index] = None
        to_cpu = link.a.node is Node.GPU and link.b.node is Node.CPU
        if to_cpu and link.extra.get("list") != INDIRECT:
            pair = (link.weight or 0, link.b.index or 0)
            direct.setdefault(link.a.index or 0, []).append(pair)
    order = {index: number for number, index in enumerate(sorted(cpus))}
    return {gpu: order[min(ends)[1]] for gpu, ends in direct.items()}


def _kfd_reading(tree: Tree, address: str, nodes: list[KfdNode], near: int | None) -> Reading:
    mode = tree.text(f"{PCI_DEVICES}/{address}/current_compute_partition") or None
    first = nodes[0]
    # a partition's number is in bits 31 to 28 of its location, of older kernels in bits 2 to 0
    # (rocm_smi.h, rsmi_dev_pci_id_get)
    numbers = [node.location_id >> 28 & 0xF or node.location_id & 7 for node in nodes]
    distinct = len(set(numbers)) == len(nodes)
    # a container may be given one partition alone
    whole = len(nodes) == 1 and mode in (None, "SPX")
    parts = tuple(
        GpuPart(
            index=numbers[index] if distinct else index,
            profile=mode,
            memory_bytes=node.memory_bytes,
            unit_count=node.unit_count,
            device_file=render_file(tree, node),
        )
        for index, node in enumerate(nodes)
    )
    single = len(nodes) == 1
    return Reading(
        source="kfd",
        vendor=PCI_VENDORS[first.vendor_id],
        index=first.index,
        pci=address,
        uuid=rocr_uuid(first.unique_id),
        unique_id=first.unique_id,
        arch=first.arch,
        warp_size=first.warp_size,
        device_id=first.device_id,
        memory_bytes=None if single and not whole else sum_if_known(p.memory_bytes for p in parts),
        unit_count=None if single and not whole else sum_if_known(p.unit_count for p in parts),
        # PCI states the node itself, where it is there
        numa_node=None if tree.exists(f"{PCI_DEVICES}/{address}/numa_node") else near,
        device_file=parts[0].device_file if whole else None,
        parts=() if whole else parts,
        hive=str(first.hive_id) if first.hive_id else None,
    )


def _drm_findings(tree: Tree) -> Findings:
    readings = (
        _drm_reading(tree, f"{_DRM}/{card}/device", int(card.removeprefix("card")))
        for card in tree.names(_DRM, r"card\d{1,9}")
    )
    return _findings(tree, "drm", (reading for reading in readings if reading is not None))


def _drm_reading(tree: Tree, folder: str, index: int) -> Reading | None:
    """A card's reading where its driver says more than PCI does; partitions' cards say nothing."""
    vendor = PCI_VENDORS.get(tree.integer(f"{folder}/vendor") or 0)
    name = tree.text(f"{folder}/product_name")
    memory = tree.integer(f"{folder}/mem_info_vram_total")
    unique_id = hexadecimal(tree.text(f"{folder}/unique_id")) or None
    if vendor is None or (name is None and memory is None and unique_id is None):
        return None
    bios = tree.text(f"{folder}/vbios_version")
    return Reading(
        source="drm",
        vendor=vendor,
        index=index,
        pci=_card_address(tree, folder),
        uuid=rocr_uuid(unique_id),
        unique_id=unique_id,
        name=name or None,
        device_id=tree.integer(f"{folder}/device"),
        memory_bytes=memory or None,
        firmware={"vbios": bios} if bios else {},
        compute_partition=tree.text(f"{folder}/current_compute_partition") or None,
        memory_partition=tree.text(f"{folder}/current_memory_partition") or None,
        pcie=Pcie(replays=tree.integer(f"{folder}/pcie_replay_count")),
        state=GpuState(memory_used_bytes=tree.integer(f"{folder}/mem_info_vram_used")),
    )


def _card_address(tree: Tree, folder: str) -> str | None:
    linked = (tree.link_name(folder) or "").lower()
    if re.fullmatch(_ADDRESS, linked):
        return linked
    stated = tree.fields(f"{folder}/uevent", "=").get("PCI_SLOT_NAME", "").lower()
    return stated if re.fullmatch(_ADDRESS, stated) else None


def _pci_findings(tree: Tree) -> Findings:
    """The PCI tree with its links, and further details of each GPU from its files."""
    found = read_pci(tree)
    named = _findings(tree, found.kind, (_with_pci_details(tree, each) for each in found.readings))
    return replace(found, readings=named.readings, versions=named.versions)


def _with_pci_details(tree: Tree, reading: Reading) -> Reading:
    folder = f"{PCI_DEVICES}/{reading.pci}"
    return replace(
        reading,
        revision_id=tree.integer(f"{folder}/revision"),
        subsystem_id=tree.integer(f"{folder}/subsystem_device"),
        driver=tree.link_name(f"{folder}/driver"),
    )


def _device_file_findings(tree: Tree) -> Findings:
    return Findings(
        kind="dev",
        readings=tuple(
            Reading(source="dev", vendor=vendor, device_file=file)
            for vendor, files in device_files(tree)
            for file in files
        ),
    )
