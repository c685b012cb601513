"""File trees of machines with many GPUs, as the kernel and the vendors' drivers write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.host_trees import GIB, PCI, gfx942_node

if TYPE_CHECKING:
    from collections.abc import Mapping

_DRM = "sys/class/drm"
Links = dict[str, str]


def address(index: int) -> str:
    """The PCI address of the GPU of that number, of up to 512 in two domains."""
    return f"{index // 256:04x}:{index % 256:02x}:00.0"


def _pci(
    pci: str, vendor: str, device: str, node: int, driver: str
) -> tuple[dict[str, str], Links]:
    folder = f"{PCI}/{pci}"
    files = {
        "class": "0x120000" if vendor == "0x1002" else "0x030200",
        "vendor": vendor,
        "device": device,
        "revision": "0x00",
        "subsystem_device": device,
        "numa_node": str(node),
        "current_link_speed": "2.5 GT/s PCIe",
        "current_link_width": "16",
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16",
    }
    links = {f"{folder}/driver": f"../../../bus/pci/drivers/{driver}"}
    return {f"{folder}/{name}": text for name, text in files.items()}, links


def nvidia_gpu(
    index: int, *, device: str = "0x2335", name: str = "NVIDIA H200", pci: str | None = None
) -> tuple[dict[str, str], Links]:
    """One GPU with NVIDIA's driver; by default an H200."""
    place = pci or address(index)
    files, links = _pci(place, "0x10de", device, index % 2, "nvidia")
    files |= {
        f"proc/driver/nvidia/gpus/{place}/information": (
            f"Model: \t\t {name}\nIRQ:   \t\t {90 + index}\n"
            f"GPU UUID: \t GPU-11111111-2222-3333-4444-{index:012x}\n"
            f"Video BIOS: \t 96.00.5e.00.01\nBus Location: \t {place}\nDevice Minor: \t {index}"
        ),
        "sys/module/nvidia/version": "570.86.15",
        f"dev/nvidia{index}": "",
        "dev/nvidiactl": "",
    }
    return files, links


def amd_gpu(
    index: int,
    *,
    parts: int = 1,
    device: str = "0x74a1",
    name: str = "AMD Instinct MI300X OAM",
    pci: str | None = None,
    first_node: int | None = None,
) -> tuple[dict[str, str], Links]:
    """One GPU with the amdgpu driver, in as many partitions; by default an MI300X."""
    place = pci or address(index)
    files, links = _pci(place, "0x1002", device, index % 2, "amdgpu")
    unique_id = 0xE3AA140F00000000 + index
    folder = f"{PCI}/{place}"
    mode = {1: "SPX", 2: "DPX", 4: "QPX", 8: "CPX"}[parts]
    files |= {
        f"{folder}/product_name": name,
        f"{folder}/unique_id": f"{unique_id:016x}",
        f"{folder}/vbios_version": "113-M3000100-102",
        f"{folder}/mem_info_vram_total": str(192 * GIB),
        f"{folder}/mem_info_vram_used": str(300 << 20),
        f"{folder}/current_compute_partition": mode,
        f"{folder}/current_memory_partition": "NPS1",
        "sys/module/amdgpu/version": "6.10.5",
        "dev/kfd": "",
    }
    links |= {f"{_DRM}/card{index}/device": f"../../../bus/pci/devices/{place}"}
    domain, bus = int(place[:4], 16), int(place[5:7], 16)
    start = index * parts + 1 if first_node is None else first_node
    for part in range(parts):
        node = start + part
        files |= gfx942_node(
            node,
            bus << 8 | part << 28,
            domain=domain,
            device_id=int(device, 16),
            simd_count=1216 // parts,
            memory=192 * GIB // parts,
            unique_id=unique_id,
        )
        files[f"dev/dri/renderD{127 + node}"] = ""
    return files, links


def machine(*gpus: tuple[Mapping[str, str], Mapping[str, str]]) -> tuple[dict[str, str], Links]:
    """All of ``gpus`` in one tree."""
    files: dict[str, str] = {}
    links: Links = {}
    for its_files, its_links in gpus:
        files |= its_files
        links |= its_links
    return files, links
