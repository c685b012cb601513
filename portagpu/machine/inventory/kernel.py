"""GPUs in the kernel's files: one Findings each from a driver's list, KFD, DRM and PCI.

Files: Linux ``Documentation/ABI/testing/sysfs-bus-pci`` and ``Documentation/gpu/amdgpu``, and the
drivers' own lists in /proc. Only files are opened, and none of them needs privileges.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats.pci import hexadecimal
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
from portagpu.facts.readings.model import Findings, GpuPart, GpuState, Node, Pcie, Reading
from portagpu.facts.vendors import vendor_named
from portagpu.machine.inventory.kfd_links import INDIRECT, kfd_links
from portagpu.machine.inventory.pci_tree import read_pci

if TYPE_CHECKING:
    from collections.abc import Iterable

    from portagpu.facts.host.gpus import KfdNode
    from portagpu.facts.host.tree import Tree

_DRM: Final = "sys/class/drm"
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


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
    if _ADDRESS.fullmatch(linked):
        return linked
    stated = tree.fields(f"{folder}/uevent", "=").get("PCI_SLOT_NAME", "").lower()
    return stated if _ADDRESS.fullmatch(stated) else None


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
