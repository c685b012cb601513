"""All GPUs that NVML shows; runs in a child process, without torch.

Units and meanings: nvml.h. Values that the driver, the GPU or the module lacks are None.
"""

from __future__ import annotations

import re
from typing import Any, Final

from portagpu.distributions import install
from portagpu.formats import pci_address
from portagpu.readings import Findings, GpuPart, GpuState, Memory, Pcie, Reading
from portagpu.readings.document import to_document
from portagpu.readings.library import Library, integer, number, open_library, text
from portagpu.readings.model import without_none
from portagpu.text import error_line

_CORRECTED, _UNCORRECTED = 0, 1  # NVML_MEMORY_ERROR_TYPE_*
_VOLATILE, _AGGREGATE = 0, 1  # NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC
_GPU_SENSOR: Final = 0  # NVML_TEMPERATURE_GPU
_MEMORY_TEMPERATURE: Final = 82  # NVML_FI_DEV_MEMORY_TEMP
_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
# NVML_TEMPERATURE_THRESHOLD_*
_THRESHOLDS: Final = {"shutdown": 0, "slowdown": 1, "memory-max-operating": 2, "max-operating": 3}
_CAUSES: Final = {"single-bit": 0, "double-bit": 1}  # NVML_PAGE_RETIREMENT_CAUSE_*
# nvmlClocksEventReasons that slow the clocks: neither idle nor a setting that somebody chose
_SLOWING: Final = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}


def mig_profile(name: str) -> str | None:
    """The profile of a MIG slice ("3g.40gb") from its product name; None for a whole GPU."""
    match = re.search(r" MIG (\S+)$", name)
    return match.group(1) if match else None


def probe(only: str | None = None) -> dict[str, Any]:
    """The findings as JSON, of the GPU at the PCI address ``only`` or of all.

    A module, library, driver or GPU that does not answer is a problem.
    """
    module, problem = open_library("pynvml", "nvmlInit", install("cuda"))
    if problem:
        problems = (f"NVML does not answer: its Python module pynvml {problem}",)
        return to_document(Findings(kind="nvml", problems=problems))
    nvml, readings, failed = Library(module), [], []
    for index in range(nvml.integer("nvmlDeviceGetCount") or 0):
        try:
            handle = module.nvmlDeviceGetHandleByIndex(index)
            place = module.nvmlDeviceGetPciInfo(handle)
        except Exception as error:  # noqa: BLE001 - a GPU that fell off the bus
            failed.append(f"NVML cannot read its GPU {index}: {error_line(error)}")
            continue
        pci = pci_address(text(place.busId))
        if only in (None, pci):
            readings.append(_reading(nvml, handle, index, pci, place))
    return to_document(
        Findings(
            kind="nvml",
            readings=tuple(readings),
            versions=_versions(nvml),
            problems=tuple(failed),
        )
    )


def _versions(nvml: Library) -> dict[str, str]:
    cuda = nvml.integer("nvmlSystemGetCudaDriverVersion")
    return without_none(
        {
            "driver": nvml.text("nvmlSystemGetDriverVersion"),
            "nvml": nvml.text("nvmlSystemGetNVMLVersion"),
            # CUDA_VERSION in cuda.h: thousands are the major version, tens the minor
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        }
    )


def _reading(nvml: Library, handle: Any, index: int, pci: str | None, place: Any) -> Reading:
    capability = nvml("nvmlDeviceGetCudaComputeCapability", handle)
    memory = nvml("nvmlDeviceGetMemoryInfo", handle)
    mig = nvml("nvmlDeviceGetMigMode", handle)
    ids, subsystem = integer(place.pciDeviceId), integer(getattr(place, "pciSubSystemId", None))
    bios = nvml.text("nvmlDeviceGetVbiosVersion", handle)
    return Reading(
        source="nvml",
        vendor="nvidia",
        index=index,
        pci=pci,
        uuid=nvml.text("nvmlDeviceGetUUID", handle),
        name=nvml.text("nvmlDeviceGetName", handle),
        arch=f"sm_{capability[0]}{capability[1]}" if capability else None,
        # the vendor's id is in the lower half
        device_id=ids >> 16 if ids else None,
        subsystem_id=subsystem >> 16 if subsystem else None,
        memory_bytes=integer(getattr(memory, "total", None)),
        firmware=without_none({"vbios": bios}),
        mig_enabled=bool(mig[0]) if mig else None,
        parts=_slices(nvml, handle) if mig and mig[0] else (),
        pcie=Pcie(
            generation=nvml.integer("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            width=nvml.integer("nvmlDeviceGetCurrPcieLinkWidth", handle),
            max_generation=nvml.integer("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            # of GPUs in narrow slots it is the GPU's, whatever its documentation says
            device_width=nvml.integer("nvmlDeviceGetMaxPcieLinkWidth", handle),
            device_generation=nvml.integer("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
            replays=nvml.integer("nvmlDeviceGetPcieReplayCounter", handle),
        ),
        memory=_memory(nvml, handle),
        state=_state(nvml, handle, integer(getattr(memory, "used", None))),
    )


def _slices(nvml: Library, handle: Any) -> tuple[GpuPart, ...]:
    parts = []
    for index in range(nvml.integer("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        part = nvml("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if part is None:
            continue
        attributes = nvml("nvmlDeviceGetAttributes", part)
        memory = nvml("nvmlDeviceGetMemoryInfo", part)
        parts.append(
            GpuPart(
                index=index,
                uuid=nvml.text("nvmlDeviceGetUUID", part),
                profile=mig_profile(nvml.text("nvmlDeviceGetName", part) or ""),
                memory_bytes=integer(getattr(memory, "total", None)),
                unit_count=integer(getattr(attributes, "multiprocessorCount", None)),
            )
        )
    return tuple(parts)


def _memory(nvml: Library, handle: Any) -> Memory:
    def errors(kind: int, counter: int) -> int | None:
        return nvml.integer("nvmlDeviceGetTotalEccErrors", handle, kind, counter)

    mode = nvml("nvmlDeviceGetEccMode", handle)
    pages = {name: nvml("nvmlDeviceGetRetiredPages", handle, n) for name, n in _CAUSES.items()}
    rows = nvml("nvmlDeviceGetRemappedRows", handle)
    pending = without_none(
        {
            "page": nvml.number("nvmlDeviceGetRetiredPagesPendingStatus", handle),
            "row": rows[2] if rows else None,
        }
    )
    return Memory(
        ecc_enabled=bool(mode[0]) if mode else None,
        corrected=errors(_CORRECTED, _VOLATILE),
        uncorrected=errors(_UNCORRECTED, _VOLATILE),
        corrected_total=errors(_CORRECTED, _AGGREGATE),
        uncorrected_total=errors(_UNCORRECTED, _AGGREGATE),
        retired_pages={name: len(found) for name, found in without_none(pages).items()},
        remapped_rows={"correctable": rows[0], "uncorrectable": rows[1]} if rows else {},
        pending=any(pending.values()) if pending else None,
        remap_failed=bool(rows[3]) if rows else None,
    )


def _state(nvml: Library, handle: Any, used: int | None) -> GpuState:
    power = nvml.number("nvmlDeviceGetPowerUsage", handle)
    limit = nvml.number("nvmlDeviceGetEnforcedPowerLimit", handle)
    sensor = nvml.number("nvmlDeviceGetTemperatureV", handle, _GPU_SENSOR)
    if sensor is None:  # the versioned call is newer, the other one is being withdrawn
        sensor = nvml.number("nvmlDeviceGetTemperature", handle, _GPU_SENSOR)
    processes = nvml("nvmlDeviceGetComputeRunningProcesses", handle)
    reasons = nvml.integer("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:  # its name up to driver 535
        reasons = nvml.integer("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    limits = {
        name: nvml.number("nvmlDeviceGetTemperatureThreshold", handle, kind)
        for name, kind in _THRESHOLDS.items()
    }
    return GpuState(
        temperatures_c=without_none({"gpu": sensor, "memory": _memory_temperature(nvml, handle)}),
        limits_c=without_none(limits),
        power_w=power / 1000 if power is not None else None,
        power_limit_w=limit / 1000 if limit is not None else None,
        clock_mhz=nvml.number("nvmlDeviceGetClockInfo", handle, _SM_CLOCK),
        max_clock_mhz=nvml.number("nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK),
        memory_clock_mhz=nvml.number("nvmlDeviceGetClockInfo", handle, _MEMORY_CLOCK),
        max_memory_clock_mhz=nvml.number("nvmlDeviceGetMaxClockInfo", handle, _MEMORY_CLOCK),
        utilization_percent=number(
            getattr(nvml("nvmlDeviceGetUtilizationRates", handle), "gpu", None)
        ),
        memory_used_bytes=used,
        throttling=None
        if reasons is None
        else tuple(name for name, bit in _SLOWING.items() if reasons & bit),
        processes=len(processes) if processes is not None else None,
    )


def _memory_temperature(nvml: Library, handle: Any) -> Any:
    fields = nvml("nvmlDeviceGetFieldValues", handle, [_MEMORY_TEMPERATURE])
    if not fields or getattr(fields[0], "nvmlReturn", 1) != 0:
        return None
    # GPUs without such a sensor answer 0
    return number(getattr(getattr(fields[0], "value", None), "uiVal", None)) or None
