"""The GPUs of a machine without any vendor library: PCI, KFD, and the drivers' own files.

Every source is partial: a container may hide sysfs, and without a driver there is PCI only. The
sources are joined by PCI address, so that each GPU counts once. KFD's topology tree is the amdgpu
driver's (Linux ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``): a node is one schedulable device, a
whole GPU or one of its compute partitions, which share the GPU's ``unique_id``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from portagpu.facts.host.tree import Tree, as_tree, to_int
from portagpu.facts.vendors import LazyMapping, vendors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from portagpu.facts.vendors import DriverFiles


PCI_VENDORS: Final[Mapping[int, str]] = LazyMapping(
    lambda: {number: each.name for each in vendors().values() for number in each.pci_ids}
)
"""Vendors whose display controllers and accelerators can be scheduled, by PCI vendor id.

Anything else of those classes (a management controller's VGA, an emulated one) is not a GPU here.
"""
# PCI Code and ID Assignment: VGA, 3D and other display controllers; processing accelerators
GPU_CLASSES: Final = frozenset({0x0300, 0x0302, 0x0380, 0x1200})

PCI_DEVICES: Final = "sys/bus/pci/devices"


@dataclass(frozen=True, slots=True)
class Partition:
    """One schedulable part of a GPU."""

    memory_bytes: int | None
    unit_count: int | None
    device_file: str | None


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A GPU of the machine; None is unknown.

    ``pci`` is "domain:bus:device.function"; ``device_id`` is the PCI device id; ``driver`` is the
    bound kernel driver; ``unit_count`` and ``memory_bytes`` are of the whole GPU;
    ``device_file`` is the file that a process must open, None where it is not there or not known.
    ``partitions`` is empty for a GPU that is scheduled whole.
    """

    vendor: str
    pci: str | None = None
    device_id: int | None = None
    name: str | None = None
    uuid: str | None = None
    arch: str | None = None
    unit_count: int | None = None
    memory_bytes: int | None = None
    numa_node: int | None = None
    driver: str | None = None
    device_file: str | None = None
    partitions: tuple[Partition, ...] = ()


def unreadable_files(root: Tree | Path | str = "/") -> str:
    """Why the kernel's files below ``root`` show no GPU that may be there; "" where they would."""
    tree = as_tree(root)
    buses = tree.names("sys/bus")
    missing = []
    if not buses or ("pci" in buses and not tree.is_folder(PCI_DEVICES)):
        missing.append("/sys")
    if not tree.text("proc/meminfo"):
        missing.append("/proc")
    if not missing:
        return ""
    return f"{' and '.join(missing)} cannot be read: mount it in this container or chroot"


def gpus_on_machine(root: Tree | Path | str = "/") -> tuple[PciGpu, ...]:
    """Every GPU below ``root``, in the order of PCI addresses, those without an address last."""
    tree = as_tree(root)
    gpus = pci_gpus(tree)
    for address, nodes in kfd_groups(tree, gpus).items():
        vendor = PCI_VENDORS[nodes[0].vendor_id]
        gpus[address] = _merge_nodes(tree, gpus.get(address, PciGpu(vendor, address)), nodes)
    for address, named in proc_gpus(tree).items():
        gpus[address] = replace(
            gpus.get(address, named),
            name=named.name,
            uuid=named.uuid,
            device_file=named.device_file,
        )
    return (*(gpus[address] for address in sorted(gpus)), *_unlisted_gpus(tree, gpus))


def pci_of_uuid(uuid: str | None, root: Tree | Path | str = "/") -> str | None:
    """The PCI address of the GPU with that UUID; None if not exactly one has it."""
    found = [gpu.pci for gpu in gpus_on_machine(root) if uuid is not None and gpu.uuid == uuid]
    return found[0] if len(found) == 1 else None


def pci_gpus(tree: Tree) -> dict[str, PciGpu]:
    """The GPUs on the PCI bus by address, with their PCI data."""
    found: dict[str, PciGpu] = {}
    pattern = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
    for address in tree.names(PCI_DEVICES, pattern):
        folder = f"{PCI_DEVICES}/{address}"
        code, vendor_id = tree.integer(f"{folder}/class"), tree.integer(f"{folder}/vendor")
        # a virtual function that its own host still sees is a part of the physical one
        if code is None or code >> 8 not in GPU_CLASSES or tree.exists(f"{folder}/physfn"):
            continue
        vendor = PCI_VENDORS.get(-1 if vendor_id is None else vendor_id)
        if vendor is None:
            continue
        node = tree.integer(f"{folder}/numa_node")
        found[address.lower()] = PciGpu(
            vendor=vendor,
            pci=address.lower(),
            device_id=tree.integer(f"{folder}/device"),
            numa_node=node if node is not None and node >= 0 else None,
            driver=tree.link_name(f"{folder}/driver"),
        )
    return found


def kfd_groups(tree: Tree, known: Collection[str] = ()) -> dict[str, list[KfdNode]]:
    """KFD's nodes by the PCI address of their GPU. Several nodes of a GPU are its partitions.

    ``known`` are addresses of GPUs, which partitions may belong to.
    """
    groups: dict[str, list[KfdNode]] = {}
    owners: dict[int, str] = {}
    for node in read_kfd(tree):
        if node.vendor_id not in PCI_VENDORS:
            continue
        address = next((a for a in (node.pci, node.pci_function_0) if a in known), None)
        if address is None:
            address = owners.get(node.unique_id or 0, node.pci)
        if node.unique_id is not None:
            owners.setdefault(node.unique_id, address)
        groups.setdefault(address, []).append(node)
    return groups


def _merge_nodes(tree: Tree, gpu: PciGpu, nodes: list[KfdNode]) -> PciGpu:
    parts = tuple(Partition(n.memory_bytes, n.unit_count, render_file(tree, n)) for n in nodes)
    whole = len(parts) == 1
    return replace(
        gpu,
        device_id=gpu.device_id if gpu.device_id is not None else nodes[0].device_id,
        uuid=rocr_uuid(nodes[0].unique_id),
        arch=nodes[0].arch,
        unit_count=sum_if_known(p.unit_count for p in parts),
        memory_bytes=sum_if_known(p.memory_bytes for p in parts),
        device_file=parts[0].device_file if whole else None,
        partitions=() if whole else parts,
    )


def render_file(tree: Tree, node: KfdNode) -> str | None:
    """The file that a process opens for that node, if it exists."""
    path = f"dev/dri/renderD{node.render_minor}"
    return f"/{path}" if node.render_minor is not None and tree.exists(path) else None


def sum_if_known(values: Iterable[int | None]) -> int | None:
    """The sum of ``values``; None if one is unknown, or without values."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if known and len(known) == len(found) else None


def proc_gpus(tree: Tree) -> dict[str, PciGpu]:
    """The GPUs in drivers' listings by address, with product name and UUID."""
    found: dict[str, PciGpu] = {}
    for vendor in vendors().values():
        files = vendor.driver_files
        if files is not None and files.listing is not None:
            found |= _listed_gpus(tree, vendor.name, files, files.listing)
    return found


def _listed_gpus(tree: Tree, vendor: str, files: DriverFiles, folder: str) -> dict[str, PciGpu]:
    found: dict[str, PciGpu] = {}
    for name in tree.names(folder):
        lines = tree.fields(f"{folder}/{name}/information")
        address = _address(lines.get(files.address) or name)
        if address is None:
            continue
        uuid, minor = lines.get(files.uuid), to_int(lines.get(files.minor))
        path = f"dev/{files.device.format(minor=minor)}"
        found[address] = PciGpu(
            vendor,
            address,
            name=lines.get(files.product) or None,
            # the driver writes question marks until the GPU has been initialised once
            uuid=uuid if uuid and "?" not in uuid else None,
            device_file=f"/{path}" if minor is not None and tree.exists(path) else None,
        )
    return found


def _address(text: str) -> str | None:
    match = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", text.lower())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}"


def device_files(tree: Tree) -> list[tuple[str, list[str]]]:
    """(vendor, device files) for each vendor with one device file for each GPU."""
    return [
        (each.name, [f"/dev/{name}" for name in tree.names("dev", each.driver_files.devices)])
        for each in vendors().values()
        if each.driver_files is not None
    ]


def _unlisted_gpus(tree: Tree, gpus: dict[str, PciGpu]) -> Iterator[PciGpu]:
    """GPUs that only a device file shows, for example in a container without sysfs."""
    joined = {gpu.device_file for gpu in gpus.values()}
    for vendor, files in device_files(tree):
        loose = [file for file in files if file not in joined]
        # an address whose minor is unknown may own one of these files
        unmatched = sum(g.vendor == vendor and g.device_file is None for g in gpus.values())
        yield from (PciGpu(vendor, device_file=file) for file in loose[unmatched:])


NODES: Final = "sys/class/kfd/kfd/topology/nodes"

# HSA_MEM_HEAP_TYPE_FB_PUBLIC and _FB_PRIVATE in kfd_crat.h: memory of the device itself
_DEVICE_HEAPS: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class KfdNode:
    """A KFD node that computes; None is unknown (older kernels write fewer properties).

    ``unit_count`` counts compute units; ``location_id`` holds bus, device and function in its low
    16 bits, and on partitioned GPUs the partition's number in the function or in bits 28 to 31.
    ``hive_id`` is the same for GPUs that xGMI joins; ``name`` is the kernel's word for the chip
    ("vega10"). Old kernels have no ``gfx_target_version``, and no property of theirs states an
    architecture.
    """

    index: int
    vendor_id: int
    device_id: int | None
    arch: str | None
    unit_count: int | None
    memory_bytes: int | None
    domain: int
    location_id: int
    unique_id: int | None
    render_minor: int | None
    name: str | None = None
    warp_size: int | None = None
    simd_count: int | None = None
    xcc_count: int | None = None
    hive_id: int | None = None

    @property
    def pci(self) -> str:
        """The PCI address as ``location_id`` spells it."""
        return self._address(self.location_id & 7)

    @property
    def pci_function_0(self) -> str:
        """The address of the GPU itself where the function carries a partition's number."""
        return self._address(0)

    def _address(self, function: int) -> str:
        bus, device = self.location_id >> 8 & 0xFF, self.location_id >> 3 & 0x1F
        return f"{self.domain:04x}:{bus:02x}:{device:02x}.{function}"


def read_kfd(tree: Tree, nodes: str = NODES) -> tuple[KfdNode, ...]:
    """The nodes below ``nodes`` that have SIMDs, each location once."""
    found: dict[tuple[int, int, int | None], KfdNode] = {}
    for name in tree.names(nodes, r"\d{1,9}"):
        node = _read_node(tree, f"{nodes}/{name}", int(name))
        if node is not None:
            found.setdefault((node.domain, node.location_id, node.render_minor), node)
    return tuple(found.values())


def gfx_name(version: int | None) -> str | None:
    """The compiler's name of a ``gfx_target_version``.

    The number is major * 10000 + minor * 100 + stepping, the name has minor and stepping in
    hexadecimal: ``gfx_name(90010) == "gfx90a"``.
    """
    if not version or version < 0:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def rocr_uuid(unique_id: int | None) -> str | None:
    """The UUID as ROCr spells it (HSA_AMD_AGENT_INFO_UUID): "GPU-" and sixteen digits."""
    return f"GPU-{unique_id:016x}" if unique_id is not None else None


def kfd_properties(tree: Tree, folder: str) -> dict[str, int]:
    """The numbers in a folder's file ``properties``, empty where it cannot be read."""
    lines = tree.fields(f"{folder}/properties", separator=None)
    return {key: number for key, text in lines.items() if (number := to_int(text)) is not None}


def _read_node(tree: Tree, folder: str, index: int) -> KfdNode | None:
    values = kfd_properties(tree, folder)
    simds, vendor_id = values.get("simd_count", 0), values.get("vendor_id")
    if simds <= 0 or vendor_id is None or "location_id" not in values:
        return None
    simds_per_unit = values.get("simd_per_cu", 0)
    return KfdNode(
        index=index,
        vendor_id=vendor_id,
        device_id=values.get("device_id"),
        arch=gfx_name(values.get("gfx_target_version")),
        unit_count=simds // simds_per_unit if simds_per_unit > 0 else None,
        # old kernels state the size here too, later ones 0
        memory_bytes=_memory(tree, folder) or values.get("local_mem_size") or None,
        domain=values.get("domain", 0),
        location_id=values["location_id"],
        unique_id=values.get("unique_id") or None,
        render_minor=values.get("drm_render_minor"),
        name=tree.text(f"{folder}/name") or None,
        warp_size=values.get("wave_front_size") or None,
        simd_count=simds,
        xcc_count=values.get("num_xcc") or None,
        hive_id=values.get("hive_id") or None,
    )


def _memory(tree: Tree, folder: str) -> int | None:
    total = 0
    for bank in tree.names(f"{folder}/mem_banks", r"\d+"):
        values = kfd_properties(tree, f"{folder}/mem_banks/{bank}")
        if values.get("heap_type") in _DEVICE_HEAPS:
            total += values.get("size_in_bytes", 0)
    return total or None


def visibility_variables() -> tuple[str, ...]:
    """The variables that hide or disguise devices, of all declared vendors."""
    names: dict[str, None] = {}
    for each in vendors().values():
        masks = each.masks.variables if each.masks is not None else ()
        names.update(dict.fromkeys((*each.visibility, *masks, *each.disguises)))
    return tuple(names)


def visibility(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The set variables that hide or disguise devices, with their values, also empty ones."""
    values = os.environ if environment is None else environment
    return {name: values[name] for name in visibility_variables() if name in values}
