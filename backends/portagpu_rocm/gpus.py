"""All GPUs of AMD, by the Python package amdsmi or else pyrsmi, completed by the driver's files; in
a child process.

Units and meanings: amdsmi.h and amdsmi_interface.py (ROCm/amdsmi @0ceca28f and, for links,
ROCm/rocm-systems, projects/amdsmi). Missing keys and "N/A" are None.

The errors of xGMI are those of the GPU's block XGMI_WAFL. ``amdsmi_gpu_xgmi_error_status`` is not
called: the driver clears what it reads there (amdgpu_xgmi.c).

Imports no torch. Readings of a library come first; the driver's files fill in what it does not
state. pyrsmi's functions and units: pyrsmi/rocml.py 1.1.0 (ROCm/pyrsmi @ce502b48). It has no
temperatures, no clocks and no errors of memory. Its unique id repeats the address, and its UUID may
too.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.plugins import install
from portagpu.base.text import error_line
from portagpu.facts.formats import pci_address
from portagpu.facts.host import Tree
from portagpu.facts.pcie import GENERATION
from portagpu.facts.readings import (
    End,
    Findings,
    GpuState,
    Link,
    Memory,
    Node,
    Pcie,
    Process,
    Reading,
)
from portagpu.facts.readings.library import (
    Library,
    Rarely,
    integer,
    number,
    open_library,
    table,
    text,
)
from portagpu.facts.readings.model import first_known, to_document, without_none
from portagpu_rocm.kernel_gpus import kernel_findings

if TYPE_CHECKING:
    from collections.abc import Callable


# names of the tool amd-smi, by sensor and metric in amdsmi's enumerations
_SENSORS: Final = {"edge": "EDGE", "hotspot": "JUNCTION", "mem": "VRAM"}
_LIMITS: Final = {
    "slowdown": ("JUNCTION", "CRITICAL"),
    "shutdown": ("JUNCTION", "EMERGENCY"),
    "memory-slowdown": ("VRAM", "CRITICAL"),
}
# AmdSmiGpuBlock, without those that are not a block of the GPU
_BLOCKS: Final = (
    *("UMC", "SDMA", "GFX", "MMHUB", "ATHUB", "PCIE_BIF", "HDP", "XGMI_WAFL", "DF", "SMN"),
    *("SEM", "MP0", "MP1", "FUSE", "MCA", "VCN", "JPEG", "IH", "MPIO"),
)
_RETIRED, _PENDING, _UNRESERVABLE = 0, 1, 2  # AMDSMI_MEM_PAGE_STATUS_*
_LINK_STATES: Final = {"U": True, "D": False}
_HIGHEST_FAN: Final = 255  # AMDSMI_MAX_FAN_SPEED
_PCIE_ERRORS: Final = {
    "l0_to_recovery": "pcie_l0_to_recovery_count",
    "replay_roll_over": "pcie_replay_roll_over_count",
    "nak_sent": "pcie_nak_sent_count",
    "nak_received": "pcie_nak_received_count",
}
# names of the tool amd-smi
_VIOLATIONS: Final = {
    "prochot": "prochot_thrm",
    "ppt": "ppt_pwr",
    "socket_thermal": "socket_thrm",
    "vr_thermal": "vr_thrm",
    "hbm_thermal": "hbm_thrm",
}
_rarely: Final = Rarely(10.0)
"""The library looks through /proc for processes and opens a file for each block and link."""
_seldom: Final = Rarely(60.0)
"""What names a GPU, for samples."""


def amdsmi_findings(module: Any, only: str | None = None, *, changing: bool = False) -> Findings:
    """Of the GPU at the PCI address ``only`` or of all; with ``changing`` without what stays."""
    smi, versions = Library(module), dict[str, Any]()
    readings, problems = list[Reading](), list[str]()
    links: list[Link] = []
    handles = smi("amdsmi_get_processor_handles")
    if handles is None:
        problems.append("AMD SMI does not say which GPUs there are")
    for index, handle in enumerate(handles or ()):
        try:
            pci = pci_address(str(module.amdsmi_get_gpu_device_bdf(handle)))
        except Exception as error:  # noqa: BLE001 - a GPU that fell off the bus
            problems.append(f"AMD SMI cannot read its GPU {index}: {error_line(error)}")
            continue
        if only not in (None, pci):
            continue
        reading = _changing_values(smi, handle, index, pci)
        reading = reading if changing else _whole(reading, smi, handle)
        if only is None and not changing:
            throttling = _throttling(smi, handle)
            reading = replace(reading, state=replace(reading.state, throttling=throttling))
        readings.append(reading)
        if changing:  # the graph of links is the tools', which know a link's other end
            links += _links(smi, handle, index, pci)
        else:
            driver = smi.mapping("amdsmi_get_gpu_driver_info", handle)
            versions.setdefault("driver", text(driver.get("driver_version")))
    return Findings(
        kind="amdsmi",
        readings=tuple(readings),
        links=tuple(links),
        versions={} if changing else without_none(versions | _versions(smi)),
        problems=tuple(problems),
        complete=None if only is not None else handles is not None,
    )


def _versions(smi: Library) -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    rocm = smi("amdsmi_get_rocm_version")
    if isinstance(rocm, tuple) and len(rocm) == 2 and rocm[0] is True:
        versions["rocm"] = text(rocm[1])
    library = smi.mapping("amdsmi_get_lib_version")
    numbers = [integer(library.get(key)) for key in ("major", "minor", "release")]
    if None not in numbers:
        versions["amdsmi"] = ".".join(map(str, numbers))
    return versions


def _changing_values(smi: Library, handle: Any, index: int, pci: str | None) -> Reading:
    """What names the GPU, and the values that change while the machine runs."""
    named = _seldom((pci, index), lambda: _names(smi, handle))
    return replace(
        named,
        index=index,
        pci=pci,
        pcie=_pcie(smi.mapping("amdsmi_get_pcie_info", handle)),
        memory=_memory_errors(smi, handle, (pci, index)),
        state=_state(smi, handle, (pci, index)),
    )


def _names(smi: Library, handle: Any) -> Reading:
    asic = smi.mapping("amdsmi_get_gpu_asic_info", handle)
    board = smi.mapping("amdsmi_get_gpu_board_info", handle)
    order = smi.mapping("amdsmi_get_gpu_enumeration_info", handle)
    uuid = text(order.get("hip_uuid")) or ""
    return Reading(
        source="amdsmi",
        vendor="amd",
        # AMD SMI's own UUID is another number than the runtime's, which may be all zeros
        uuid=uuid if uuid.startswith("GPU-") and uuid.strip("GPU-0") else None,
        unique_id=integer(asic.get("asic_serial")) or None,
        name=text(asic.get("market_name")) or text(board.get("product_name")),
        memory_bytes=_memory_bytes(smi, "total", handle),
    )


def _whole(reading: Reading, smi: Library, handle: Any) -> Reading:
    """The reading with what stays as it is."""
    asic = smi.mapping("amdsmi_get_gpu_asic_info", handle)
    order = smi.mapping("amdsmi_get_gpu_enumeration_info", handle)
    bios = smi.mapping("amdsmi_get_gpu_vbios_info", handle)
    static = table(smi.mapping("amdsmi_get_pcie_info", handle).get("pcie_static"))
    hive = integer(smi.mapping("amdsmi_get_xgmi_info", handle).get("xgmi_hive_id"))
    render = integer(order.get("drm_render"))
    blocks = smi.integer("amdsmi_get_gpu_ecc_enabled", handle)
    clocks = {kind: _clock(smi, handle, kind) for kind in ("GFX", "MEM")}
    limits = {name: _degrees(smi, handle, *kind) for name, kind in _LIMITS.items()}
    return replace(
        reading,
        arch=text(asic.get("target_graphics_version")),
        device_id=integer(asic.get("device_id")),
        revision_id=integer(asic.get("rev_id")),
        subsystem_id=integer(asic.get("subsystem_id")),
        unit_count=integer(asic.get("num_compute_units")),
        device_file=f"/dev/dri/renderD{render}" if render else None,
        firmware=without_none(
            {"vbios": text(bios.get("version")) or text(bios.get("part_number"))}
        ),
        compute_partition=smi.text("amdsmi_get_gpu_compute_partition", handle),
        memory_partition=smi.text("amdsmi_get_gpu_memory_partition", handle),
        hive=f"{hive:#x}" if hive else None,
        pcie=replace(
            reading.pcie,
            device_generation=_generation(static.get("max_pcie_speed")),
            device_width=integer(static.get("max_pcie_width")),
        ),
        memory=_with_pages(reading.memory, smi, handle, blocks),
        state=replace(
            reading.state,
            limits_c=without_none(limits),
            max_clock_mhz=number(clocks["GFX"].get("max_clk")),
            max_memory_clock_mhz=number(clocks["MEM"].get("max_clk")),
        ),
    )


def _memory_bytes(smi: Library, which: str, handle: Any) -> int | None:
    vram = smi.member("AmdSmiMemoryType", "VRAM")
    return smi.integer(f"amdsmi_get_gpu_memory_{which}", handle, vram)


def _generation(mega_transfers: Any) -> int | None:
    speed = number(mega_transfers)
    return GENERATION.get(speed / 1000) if speed is not None else None


def _pcie(info: dict[str, Any]) -> Pcie:
    metric = table(info.get("pcie_metric"))
    errors = {name: integer(metric.get(key)) for name, key in _PCIE_ERRORS.items()}
    return Pcie(
        generation=_generation(metric.get("pcie_speed")),
        width=integer(metric.get("pcie_width")),
        replays=integer(metric.get("pcie_replay_count")),
        errors=without_none(errors),
    )


def _memory_errors(smi: Library, handle: Any, key: Any) -> Memory:
    errors = smi.mapping("amdsmi_get_gpu_total_ecc_count", handle)
    return Memory(
        corrected=integer(errors.get("correctable_count")),
        uncorrected=integer(errors.get("uncorrectable_count")),
        by_block=_rarely(("blocks", key), lambda: _by_block(smi, handle)),
    )


def _by_block(smi: Library, handle: Any) -> dict[str, tuple[int | None, int | None]]:
    found: dict[str, tuple[int | None, int | None]] = {}
    for name in _BLOCKS:
        if (block := smi.member("AmdSmiGpuBlock", name)) is not None:
            errors = smi.mapping("amdsmi_get_gpu_ecc_count", handle, block)
            pair = [
                integer(errors.get(f"{kind}_count")) for kind in ("correctable", "uncorrectable")
            ]
            if pair != [None, None]:
                found[name] = (pair[0], pair[1])
    return found


def _with_pages(errors: Memory, smi: Library, handle: Any, blocks: int | None) -> Memory:
    pages = smi("amdsmi_get_gpu_bad_page_info", handle)
    if not isinstance(pages, list):
        return replace(errors, ecc_enabled=bool(blocks) if blocks is not None else None)
    states = [integer(each.get("status")) for each in pages if isinstance(each, dict)]
    return replace(
        errors,
        ecc_enabled=bool(blocks) if blocks is not None else None,
        retired_pages={
            "retired": states.count(_RETIRED),
            "unreservable": states.count(_UNRESERVABLE),
        },
        pending=_PENDING in states,
    )


def _degrees(smi: Library, handle: Any, sensor: str, metric: str = "CURRENT") -> Any:
    kind = smi.member("AmdSmiTemperatureType", sensor)
    which = smi.member("AmdSmiTemperatureMetric", metric)
    return smi.number("amdsmi_get_temp_metric", handle, kind, which)


def _clock(smi: Library, handle: Any, kind: str) -> dict[str, Any]:
    return smi.mapping("amdsmi_get_clock_info", handle, smi.member("AmdSmiClkType", kind))


def _state(smi: Library, handle: Any, key: Any) -> GpuState:
    core, memory = (_clock(smi, handle, kind) for kind in ("GFX", "MEM"))
    power = smi.mapping("amdsmi_get_power_info", handle)
    # of the two, a GPU has the one that its generation reports
    draws = [number(power.get(f"{kind}_socket_power")) for kind in ("current", "average")]
    cap = number(smi.mapping("amdsmi_get_power_cap_info", handle).get("power_cap"))
    activity = smi.mapping("amdsmi_get_gpu_activity", handle)
    processes = _rarely(("processes", key), lambda: _processes(smi, handle))
    fan = smi.number("amdsmi_get_gpu_fan_speed", handle, 0)
    return GpuState(
        temperatures_c=without_none(
            {name: _degrees(smi, handle, kind) for name, kind in _SENSORS.items()}
        ),
        power_w=next((draw for draw in draws if draw), None),
        power_limit_w=cap / 1e6 if cap is not None else None,  # stated in microwatts
        energy_j=_energy_j(smi.mapping("amdsmi_get_energy_count", handle)),
        clock_mhz=number(core.get("clk", core.get("cur_clk"))),  # renamed in ROCm 6.2
        memory_clock_mhz=number(memory.get("clk", memory.get("cur_clk"))),
        utilization_percent=number(activity.get("gfx_activity")),
        memory_utilization_percent=number(activity.get("umc_activity")),
        memory_used_bytes=_memory_bytes(smi, "usage", handle),
        fan_percent=fan / _HIGHEST_FAN * 100 if fan is not None else None,
        fan_rpm=smi.number("amdsmi_get_gpu_fan_rpms", handle, 0),
        processes=len(processes) if processes is not None else None,
        process_list=processes,
    )


def _throttling(smi: Library, handle: Any) -> tuple[str, ...] | None:
    """What slows the clocks now. The library waits 100 ms for it, so that no sample has it."""
    status = smi.mapping("amdsmi_get_violation_status", handle)
    active = {name: status.get(f"active_{key}") for name, key in _VIOLATIONS.items()}
    known = {name: value for name, value in active.items() if value in (True, False)}
    return tuple(name for name, value in known.items() if value) if known else None


def _energy_j(counted: dict[str, Any]) -> float | None:
    """The counter times its resolution in microjoules; its key was another before ROCm 6.4."""
    count = integer(counted.get("energy_accumulator", counted.get("power")))
    unit_uj = number(counted.get("counter_resolution"))
    return count * unit_uj / 1e6 if count and unit_uj else None


def _processes(smi: Library, handle: Any) -> tuple[Process, ...] | None:
    found = smi("amdsmi_get_gpu_process_list", handle)
    if not isinstance(found, list):
        return None
    listed = []
    for each in found:
        pid = integer(table(each).get("pid"))
        if pid is not None:
            memory = integer(table(each.get("memory_usage")).get("vram_mem"))
            listed.append(Process(pid=pid, memory_bytes=memory))
    return tuple(listed)


def _links(smi: Library, handle: Any, index: int, pci: str | None) -> tuple[Link, ...]:
    """xGMI links and whether they are up; the library does not say to which GPU each one leads."""

    def read() -> tuple[Link, ...]:
        states = smi.mapping("amdsmi_get_gpu_xgmi_link_status", handle).get("status")
        return tuple(
            Link(
                source="amdsmi",
                a=End(Node.GPU, f"GPU{index}", pci, index),
                b=End(Node.UNKNOWN, "not stated"),
                kind="xgmi",
                count=1,
                up=_LINK_STATES[state],
                extra={"link": str(number)},
            )
            for number, state in enumerate(states if isinstance(states, list) else ())
            if state in _LINK_STATES
        )

    return _rarely(("links", pci, index), read)


def pyrsmi_findings(module: Any, only: str | None = None) -> Findings:
    """Of the GPU at the PCI address ``only`` or of all. -1 is the package's word for an error."""
    rsmi, readings = Library(module), []
    for index in range(rsmi.count("smi_get_device_count")):
        pci = _address(rsmi.integer("smi_get_device_pci_id", index))
        if only not in (None, pci):
            continue
        readings.append(
            Reading(
                source="pyrsmi",
                vendor="amd",
                index=index,
                pci=pci,
                name=rsmi.text("smi_get_device_name", index),
                memory_bytes=_count(rsmi("smi_get_device_memory_total", index)),
                pcie=_rsmi_pcie(rsmi, index),
                state=_rsmi_state(rsmi, index),
            )
        )
    return Findings(kind="pyrsmi", readings=tuple(readings))


def _rsmi_state(rsmi: Library, index: int) -> GpuState:
    fan = _count(rsmi("smi_get_device_fan_speed", index))
    return GpuState(
        power_w=rsmi.number("smi_get_device_average_power", index),
        utilization_percent=_count(rsmi("smi_get_device_utilization", index)),
        memory_utilization_percent=_count(rsmi("smi_get_device_memory_busy", index)),
        memory_used_bytes=_count(rsmi("smi_get_device_memory_used", index)),
        fan_percent=fan / _HIGHEST_FAN * 100 if fan is not None else None,
        fan_rpm=_count(rsmi("smi_get_device_fan_rpms", index)),
    )


def _rsmi_pcie(rsmi: Library, index: int) -> Pcie:
    """The link, whose speed the package states in MT/s."""
    info = rsmi("smi_get_device_pcie_bandwidth", index)
    static, metric = getattr(info, "pcie_static", None), getattr(info, "pcie_metric", None)
    return Pcie(
        generation=_generation(getattr(metric, "pcie_speed", None)),
        width=integer(getattr(metric, "pcie_width", None)),
        device_generation=_generation(getattr(static, "max_pcie_speed", None)),
        device_width=integer(getattr(static, "max_pcie_width", None)),
        replays=_count(rsmi("smi_get_device_pci_replay_counter", index)),
    )


def _count(value: Any) -> int | None:
    found = integer(value)
    return found if found is not None and found >= 0 else None


def _address(place: int | None) -> str | None:
    """The address in pyrsmi's 64 bits, whose domain is in the upper half or, raw, above bit 16."""
    if place is None or place < 0:
        return None
    domain = place >> 32 or place >> 16 & 0xFFFF
    return f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


_kept_library: Final = cache(open_library)


def probe(only: str | None = None) -> dict[str, Any]:
    """The findings as JSON, of the GPU at the PCI address ``only`` or of all.

    A module, library, driver or GPU that does not answer is a problem.
    """
    return to_document(_findings(open_library, only))


def sample() -> dict[str, Any]:
    """The values of all GPUs that change, as JSON; the library stays open for the next call."""
    return to_document(_findings(_kept_library, changing=True))


def _findings(
    opened: Callable[[str, str, str], tuple[Any, str]],
    only: str | None = None,
    *,
    changing: bool = False,
) -> Findings:
    by_kernel = kernel_findings(Tree(), only, changing=changing)
    amdsmi, first = opened("amdsmi", "amdsmi_init", "install the one of your ROCm")
    if not first:
        return _completed(amdsmi_findings(amdsmi, only, changing=changing), by_kernel)
    # pyrsmi tries amdsmi again and survives only its absence, not its failure
    sys.modules["amdsmi"] = None  # type: ignore[assignment]
    pyrsmi, second = opened("pyrsmi.rocml", "smi_initialize", install("rocm"))
    if not second:
        found = _completed(pyrsmi_findings(pyrsmi, only), by_kernel)
        return replace(found, problems=(f"pyrsmi answers alone: amdsmi {first}",))
    problem = f"AMD SMI does not answer: amdsmi {first}; pyrsmi {second}"
    return replace(by_kernel, problems=(problem,))


def _completed(found: Findings, by_kernel: Findings) -> Findings:
    """The library's findings, with values of the driver's files where it has none."""
    others = {reading.pci: reading for reading in by_kernel.readings}
    linked = {link.a.pci for link in found.links}
    return replace(
        found,
        readings=tuple(
            first_known([reading, others[reading.pci]]) if reading.pci in others else reading
            for reading in found.readings
        ),
        links=(*found.links, *(link for link in by_kernel.links if link.a.pci not in linked)),
    )
