"""GPUs in a KFD topology tree, as the amdgpu kernel driver publishes it.

Files: Linux ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``. A node is one schedulable device: a
whole GPU, or one of its compute partitions, which share the GPU's ``unique_id``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from portagpu.facts.host.tree import Tree, to_int

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
