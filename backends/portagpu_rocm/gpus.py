"""All GPUs that AMD SMI shows, by amdsmi or else pyrsmi; in a child process, without torch.

Units and meanings: amdsmi's and pyrsmi's Python documentation. Missing keys and "N/A" are None.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.distributions import install
from portagpu.formats import pci_address
from portagpu.pcie import GENERATION
from portagpu.readings import Findings, GpuState, Memory, Pcie, Reading
from portagpu.readings.document import to_document
from portagpu.readings.library import Library, integer, number, open_library, text
from portagpu.readings.model import without_none
from portagpu.text import error_line

if TYPE_CHECKING:
    from collections.abc import Callable

_kept_library: Final = cache(open_library)
# names of the tool amd-smi, by sensor and metric in amdsmi's enumerations
_SENSORS: Final = {"edge": "EDGE", "hotspot": "JUNCTION", "mem": "VRAM"}
_LIMITS: Final = {
    "slowdown": ("JUNCTION", "CRITICAL"),
    "shutdown": ("JUNCTION", "EMERGENCY"),
    "memory-slowdown": ("VRAM", "CRITICAL"),
}


def probe(only: str | None = None) -> dict[str, Any]:
    """The findings as JSON, of the GPU at the PCI address ``only`` or of all.

    A module, library, driver or GPU that does not answer is a problem.
    """
    return to_document(_findings(open_library, only))


def sample() -> dict[str, Any]:
    """The values of all GPUs that change, as JSON; the library stays open for the next call."""
    return to_document(_findings(_kept_library))


def _findings(
    opened: Callable[[str, str, str], tuple[Any, str]], only: str | None = None
) -> Findings:
    amdsmi, first = opened("amdsmi", "amdsmi_init", "install the one of your ROCm")
    if not first:
        return _amdsmi(amdsmi, only)
    # pyrsmi tries amdsmi again and survives only its absence, not its failure
    sys.modules["amdsmi"] = None  # type: ignore[assignment]
    pyrsmi, second = opened("pyrsmi.rocml", "smi_initialize", install("rocm"))
    if second:
        problem = f"AMD SMI does not answer: amdsmi {first}; pyrsmi {second}"
        return Findings(kind="amdsmi", problems=(problem,))
    found = _pyrsmi(Library(pyrsmi), only)
    return replace(found, problems=(f"pyrsmi answers alone: amdsmi {first}",))


def _amdsmi(module: Any, only: str | None) -> Findings:
    smi, versions = Library(module), dict[str, Any]()
    readings, problems = [], []
    for index, handle in enumerate(smi("amdsmi_get_processor_handles") or ()):
        try:
            pci = pci_address(str(module.amdsmi_get_gpu_device_bdf(handle)))
        except Exception as error:  # noqa: BLE001 - a GPU that fell off the bus
            problems.append(f"AMD SMI cannot read its GPU {index}: {error_line(error)}")
            continue
        if only in (None, pci):
            readings.append(_reading(smi, handle, index, pci))
            driver = smi.mapping("amdsmi_get_gpu_driver_info", handle)
            versions.setdefault("driver", text(driver.get("driver_version")))
    rocm = smi("amdsmi_get_rocm_version")
    if isinstance(rocm, tuple) and len(rocm) == 2 and rocm[0] is True:
        versions["rocm"] = text(rocm[1])
    library = smi.mapping("amdsmi_get_lib_version")
    numbers = [integer(library.get(key)) for key in ("major", "minor", "release")]
    if None not in numbers:
        versions["amdsmi"] = ".".join(map(str, numbers))
    return Findings(
        kind="amdsmi",
        readings=tuple(readings),
        versions=without_none(versions),
        problems=tuple(problems),
    )


def _reading(smi: Library, handle: Any, index: int, pci: str | None) -> Reading:
    asic = smi.mapping("amdsmi_get_gpu_asic_info", handle)
    board = smi.mapping("amdsmi_get_gpu_board_info", handle)
    order = smi.mapping("amdsmi_get_gpu_enumeration_info", handle)
    bios = smi.mapping("amdsmi_get_gpu_vbios_info", handle)
    hive = integer(smi.mapping("amdsmi_get_xgmi_info", handle).get("xgmi_hive_id"))
    render, uuid = integer(order.get("drm_render")), text(order.get("hip_uuid")) or ""
    return Reading(
        source="amdsmi",
        vendor="amd",
        index=index,
        pci=pci,
        # AMD SMI's own UUID is another number than the runtime's, which may be all zeros
        uuid=uuid if uuid.startswith("GPU-") and uuid.strip("GPU-0") else None,
        unique_id=integer(asic.get("asic_serial")) or None,
        name=text(asic.get("market_name")) or text(board.get("product_name")),
        arch=text(asic.get("target_graphics_version")),
        device_id=integer(asic.get("device_id")),
        revision_id=integer(asic.get("rev_id")),
        subsystem_id=integer(asic.get("subsystem_id")),
        memory_bytes=_memory_bytes(smi, "total", handle),
        unit_count=integer(asic.get("num_compute_units")),
        device_file=f"/dev/dri/renderD{render}" if render else None,
        firmware=without_none(
            {"vbios": text(bios.get("version")) or text(bios.get("part_number"))}
        ),
        compute_partition=smi.text("amdsmi_get_gpu_compute_partition", handle),
        memory_partition=smi.text("amdsmi_get_gpu_memory_partition", handle),
        hive=f"{hive:#x}" if hive else None,
        pcie=_pcie(smi.mapping("amdsmi_get_pcie_info", handle)),
        memory=_memory(smi, handle),
        state=_state(smi, handle),
    )


def _memory_bytes(smi: Library, which: str, handle: Any) -> int | None:
    vram = smi.member("AmdSmiMemoryType", "VRAM")
    return smi.integer(f"amdsmi_get_gpu_memory_{which}", handle, vram)


def _pcie(info: dict[str, Any]) -> Pcie:
    static, metric = info.get("pcie_static") or {}, info.get("pcie_metric") or {}

    def generation(mega_transfers: Any) -> int | None:
        speed = number(mega_transfers)
        return GENERATION.get(speed / 1000) if speed is not None else None

    return Pcie(
        generation=generation(metric.get("pcie_speed")),
        width=integer(metric.get("pcie_width")),
        device_generation=generation(static.get("max_pcie_speed")),
        device_width=integer(static.get("max_pcie_width")),
        replays=integer(metric.get("pcie_replay_count")),
    )


def _memory(smi: Library, handle: Any) -> Memory:
    errors = smi.mapping("amdsmi_get_gpu_total_ecc_count", handle)
    blocks = smi.integer("amdsmi_get_gpu_ecc_enabled", handle)
    pages = smi("amdsmi_get_gpu_bad_page_info", handle)
    return Memory(
        ecc_enabled=bool(blocks) if blocks is not None else None,
        corrected=integer(errors.get("correctable_count")),
        uncorrected=integer(errors.get("uncorrectable_count")),
        retired_pages={"bad": len(pages)} if isinstance(pages, list) else {},
    )


def _state(smi: Library, handle: Any) -> GpuState:
    def temperature(sensor: str, metric: str = "CURRENT") -> Any:
        kind = smi.member("AmdSmiTemperatureType", sensor)
        which = smi.member("AmdSmiTemperatureMetric", metric)
        return smi.number("amdsmi_get_temp_metric", handle, kind, which)

    core, memory = (
        smi.mapping("amdsmi_get_clock_info", handle, smi.member("AmdSmiClkType", kind))
        for kind in ("GFX", "MEM")
    )
    power = smi.mapping("amdsmi_get_power_info", handle)
    # of the two, a GPU has the one that its generation reports
    draws = [number(power.get(f"{kind}_socket_power")) for kind in ("current", "average")]
    cap = number(smi.mapping("amdsmi_get_power_cap_info", handle).get("power_cap"))
    processes = smi("amdsmi_get_gpu_process_list", handle)
    return GpuState(
        temperatures_c=without_none({name: temperature(kind) for name, kind in _SENSORS.items()}),
        limits_c=without_none({name: temperature(*kind) for name, kind in _LIMITS.items()}),
        power_w=next((draw for draw in draws if draw), None),
        power_limit_w=cap / 1e6 if cap is not None else None,  # stated in microwatts
        clock_mhz=number(core.get("clk", core.get("cur_clk"))),  # renamed in ROCm 6.2
        max_clock_mhz=number(core.get("max_clk")),
        memory_clock_mhz=number(memory.get("clk", memory.get("cur_clk"))),
        max_memory_clock_mhz=number(memory.get("max_clk")),
        utilization_percent=number(
            smi.mapping("amdsmi_get_gpu_activity", handle).get("gfx_activity")
        ),
        memory_used_bytes=_memory_bytes(smi, "usage", handle),
        processes=len(processes) if isinstance(processes, list) else None,
    )


def _pyrsmi(rsmi: Library, only: str | None) -> Findings:
    """Names, memory and power. pyrsmi's unique id repeats the address, and its UUID may too."""
    readings = []
    for index in range(rsmi.integer("smi_get_device_count") or 0):
        pci = _address(rsmi.integer("smi_get_device_pci_id", index))
        if only not in (None, pci):
            continue
        power = rsmi.number("smi_get_device_average_power", index)
        readings.append(
            Reading(
                source="pyrsmi",
                vendor="amd",
                index=index,
                pci=pci,
                name=rsmi.text("smi_get_device_name", index),
                memory_bytes=rsmi.integer("smi_get_device_memory_total", index),
                state=GpuState(power_w=power),
            )
        )
    return Findings(kind="pyrsmi", readings=tuple(readings))


def _address(place: int | None) -> str | None:
    """The address in pyrsmi's 64 bits, whose domain is in the upper half or, raw, above bit 16."""
    if place is None or place < 0:
        return None
    domain = place >> 32 or place >> 16 & 0xFFFF
    return f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
