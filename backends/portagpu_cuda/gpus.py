"""All GPUs that NVML shows, and their NVLinks; runs in a child process, without torch.

Units and meanings: nvml.h, with ``NVML_FI_DEV_*`` and ``NVML_NVLINK_ERROR_*``. Counters of links
have the names that ``nvidia-smi nvlink -e`` prints, in lower case. Values that the driver, the GPU
or the module lacks are None.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.plugins import install
from portagpu.base.text import error_line
from portagpu.facts.formats import pci_address
from portagpu.facts.readings import (
    End,
    Findings,
    GpuPart,
    GpuState,
    Link,
    Memory,
    Node,
    Pcie,
    Process,
    Reading,
)
from portagpu.facts.readings.library import Library, Rarely, integer, number, open_library, text
from portagpu.facts.readings.model import to_document, without_none

if TYPE_CHECKING:
    from collections.abc import Iterable


_MAX_LINKS: Final = 36  # NVML_NVLINK_MAX_LINKS of driver 590; NVML refuses what a GPU lacks
# NVML_NVLINK_ERROR_DL_*: those of NVLink 1 to 4
_COUNTERS: Final = {
    "replay errors": 0,
    "recovery errors": 1,
    "crc errors": 2,
}
# NVML_FI_DEV_NVLINK_COUNT_*, with the link as the scope: those of NVLink 5
_FIELDS: Final = {
    "malformed packet errors": 206,
    "buffer overrun errors": 207,
    "rx errors": 208,
    "rx remote errors": 209,
    "rx general errors": 210,
    "local link integrity errors": 211,
    "tx discards": 212,
    "link recovery successful events": 213,
    "link recovery failed events": 214,
}
# NVML_NVLINK_DEVICE_TYPE_*
_REMOTE: Final = {0: Node.GPU, 1: Node.CPU, 2: Node.SWITCH}
# nvmlValueType_t, and the member of the union that holds it
_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_rarely: Final = Rarely(10.0)
"""A GPU has up to 18 links with up to nine counters each: they are read every ten seconds."""


def field_values(
    nvml: Library, handle: Any, fields: Iterable[int | tuple[int, int]]
) -> dict[Any, Any]:
    """Field, or (field, scope) -> its value, of those that this GPU and driver have."""
    asked = list(fields)
    found: dict[Any, Any] = {}
    answer = nvml("nvmlDeviceGetFieldValues", handle, asked)
    # an array of ctypes has a length, and is not an Iterable to collections.abc
    values = list(answer) if hasattr(answer, "__len__") else []
    for key, each in zip(asked, values, strict=False):
        if getattr(each, "nvmlReturn", 1) != 0:
            continue
        kind = integer(getattr(each, "valueType", None))
        member = _MEMBERS[kind] if kind is not None and kind < len(_MEMBERS) else "uiVal"
        value = number(getattr(getattr(each, "value", None), member, None))
        if value is not None:
            found[key] = value
    return found


def nvlinks(nvml: Library, handle: Any, index: int, pci: str | None) -> tuple[Link, ...]:
    """The NVLinks of a GPU, read again after some seconds; empty without any."""

    def read() -> tuple[Link, ...]:
        found = (_link(nvml, handle, number, index, pci) for number in range(_MAX_LINKS))
        return tuple(link for link in found if link is not None)

    return _rarely((pci, index), read)


def _link(nvml: Library, handle: Any, link: int, index: int, pci: str | None) -> Link | None:
    up = nvml.integer("nvmlDeviceGetNvLinkState", handle, link)
    if up is None:
        return None
    errors = {
        name: nvml.integer("nvmlDeviceGetNvLinkErrorCounter", handle, link, counter)
        for name, counter in _COUNTERS.items()
    }
    newer = field_values(nvml, handle, [(field, link) for field in _FIELDS.values()])
    counted = {name: count for name, count in errors.items() if count is not None}
    counted |= {name: newer[(n, link)] for name, n in _FIELDS.items() if (n, link) in newer}
    remote = getattr(nvml("nvmlDeviceGetNvLinkRemotePciInfo", handle, link), "busId", None)
    where = pci_address(text(remote) or "")
    kind = nvml.integer("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    node = _REMOTE.get(kind, Node.UNKNOWN) if kind is not None and where else Node.UNKNOWN
    return Link(
        source="nvml",
        a=End(Node.GPU, f"GPU{index}", pci, index),
        b=End(node, where or "not stated", where),
        kind="nvlink",
        count=1,
        up=bool(up),
        errors=counted,
        extra={"link": str(link)},
    )


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
# NVML_FI_DEV_CLOCKS_EVENT_REASON_*, in nanoseconds; the first two of every driver, the others of
# those since 570
_SLOWED_NS: Final = {
    "sw_power_cap": 74,
    "sync_boost": 76,
    "sw_thermal_slowdown": 269,
    "hw_thermal_slowdown": 270,
    "hw_power_brake_slowdown": 271,
}
_LIBRARY: Final = ("pynvml", "nvmlInit", install("cuda"))
_kept_library: Final = cache(open_library)


def mig_profile(name: str) -> str | None:
    """The profile of a MIG slice ("3g.40gb") from its product name; None for a whole GPU."""
    match = re.search(r" MIG (\S+)$", name)
    return match.group(1) if match else None


def probe(only: str | None = None) -> dict[str, Any]:
    """The findings as JSON, of the GPU at the PCI address ``only`` or of all.

    A module, library, driver or GPU that does not answer is a problem.
    """
    module, problem = open_library(*_LIBRARY)
    return to_document(_findings(module, only) if not problem else _no_answer(problem))


def sample() -> dict[str, Any]:
    """The values of all GPUs that change, as JSON; NVML stays open for the next call."""
    module, problem = _kept_library(*_LIBRARY)
    return to_document(_findings(module, changing=True) if not problem else _no_answer(problem))


def _no_answer(problem: str) -> Findings:
    problems = (f"NVML does not answer: its Python module pynvml {problem}",)
    return Findings(kind="nvml", problems=problems)


def _findings(module: Any, only: str | None = None, *, changing: bool = False) -> Findings:
    nvml, failed = Library(module), []
    readings: list[Reading] = []
    links: list[Link] = []
    if (count := nvml.integer("nvmlDeviceGetCount")) is None:
        failed.append("NVML does not say how many GPUs there are")
    for index in range(nvml.count("nvmlDeviceGetCount")):
        try:
            handle = module.nvmlDeviceGetHandleByIndex(index)
            place = module.nvmlDeviceGetPciInfo(handle)
        except Exception as error:  # noqa: BLE001 - a GPU that fell off the bus
            failed.append(f"NVML cannot read its GPU {index}: {error_line(error)}")
            continue
        pci = pci_address(text(place.busId))
        if only not in (None, pci):
            continue
        reading = _changing_values(nvml, handle, index, pci)
        readings.append(reading if changing else _whole(reading, nvml, handle, place))
        if changing:  # the graph of links is the tools', which say more of a link's other end
            links += nvlinks(nvml, handle, index, pci)
    return Findings(
        kind="nvml",
        readings=tuple(readings),
        links=tuple(links),
        versions={} if changing else _versions(nvml),
        problems=tuple(failed),
        complete=None if only is not None else count is not None,
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


def _changing_values(nvml: Library, handle: Any, index: int, pci: str | None) -> Reading:
    """What names the GPU, and the values that change while the machine runs."""
    memory = nvml("nvmlDeviceGetMemoryInfo", handle)
    return Reading(
        source="nvml",
        vendor="nvidia",
        index=index,
        pci=pci,
        uuid=nvml.text("nvmlDeviceGetUUID", handle),
        name=nvml.text("nvmlDeviceGetName", handle),
        memory_bytes=integer(getattr(memory, "total", None)),
        pcie=Pcie(
            generation=nvml.integer("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            width=nvml.integer("nvmlDeviceGetCurrPcieLinkWidth", handle),
            replays=nvml.integer("nvmlDeviceGetPcieReplayCounter", handle),
        ),
        memory=_memory_errors(nvml, handle),
        state=_state(nvml, handle, integer(getattr(memory, "used", None))),
    )


def _whole(reading: Reading, nvml: Library, handle: Any, place: Any) -> Reading:
    """The reading with what stays as it is."""
    capability = nvml.integers("nvmlDeviceGetCudaComputeCapability", 2, handle)
    mig = nvml.integers("nvmlDeviceGetMigMode", 2, handle)
    ids, subsystem = integer(place.pciDeviceId), integer(getattr(place, "pciSubSystemId", None))
    bios = nvml.text("nvmlDeviceGetVbiosVersion", handle)
    limits = {
        name: nvml.number("nvmlDeviceGetTemperatureThreshold", handle, kind)
        for name, kind in _THRESHOLDS.items()
    }
    return replace(
        reading,
        arch=f"sm_{capability[0]}{capability[1]}" if capability else None,
        # the vendor's id is in the lower half
        device_id=ids >> 16 if ids else None,
        subsystem_id=subsystem >> 16 if subsystem else None,
        firmware=without_none({"vbios": bios}),
        mig_enabled=bool(mig[0]) if mig else None,
        parts=_slices(nvml, handle) if mig and mig[0] else (),
        pcie=replace(
            reading.pcie,
            max_generation=nvml.integer("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            # of GPUs in narrow slots it is the GPU's, whatever its documentation says
            device_width=nvml.integer("nvmlDeviceGetMaxPcieLinkWidth", handle),
            device_generation=nvml.integer("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
        ),
        memory=_whole_memory(reading.memory, nvml, handle),
        state=replace(
            reading.state,
            limits_c=without_none(limits),
            max_clock_mhz=nvml.number("nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK),
            max_memory_clock_mhz=nvml.number("nvmlDeviceGetMaxClockInfo", handle, _MEMORY_CLOCK),
        ),
    )


def _slices(nvml: Library, handle: Any) -> tuple[GpuPart, ...]:
    parts = []
    for index in range(nvml.count("nvmlDeviceGetMaxMigDeviceCount", handle)):
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


def _memory_errors(nvml: Library, handle: Any) -> Memory:
    """Counts of errors and of rows that were replaced."""

    def errors(kind: int, counter: int) -> int | None:
        return nvml.integer("nvmlDeviceGetTotalEccErrors", handle, kind, counter)

    rows = nvml.integers("nvmlDeviceGetRemappedRows", 4, handle)
    return Memory(
        corrected=errors(_CORRECTED, _VOLATILE),
        uncorrected=errors(_UNCORRECTED, _VOLATILE),
        corrected_total=errors(_CORRECTED, _AGGREGATE),
        uncorrected_total=errors(_UNCORRECTED, _AGGREGATE),
        remapped_rows={"correctable": rows[0], "uncorrectable": rows[1]} if rows else {},
        pending=bool(rows[2]) if rows else None,
        remap_failed=bool(rows[3]) if rows else None,
    )


def _whole_memory(errors: Memory, nvml: Library, handle: Any) -> Memory:
    mode = nvml.integers("nvmlDeviceGetEccMode", 2, handle)
    pages = {name: nvml("nvmlDeviceGetRetiredPages", handle, n) for name, n in _CAUSES.items()}
    page = nvml.number("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    pending = [bool(each) for each in (page, errors.pending) if each is not None]
    return replace(
        errors,
        ecc_enabled=bool(mode[0]) if mode else None,
        retired_pages={
            name: len(found) for name, found in pages.items() if isinstance(found, list)
        },
        pending=any(pending) if pending else None,
    )


def _state(nvml: Library, handle: Any, used: int | None) -> GpuState:
    power = nvml.number("nvmlDeviceGetPowerUsage", handle)
    limit = nvml.number("nvmlDeviceGetEnforcedPowerLimit", handle)
    energy = nvml.number("nvmlDeviceGetTotalEnergyConsumption", handle)
    sensor = nvml.number("nvmlDeviceGetTemperatureV", handle, _GPU_SENSOR)
    if sensor is None:  # the versioned call is newer, the other one is being withdrawn
        sensor = nvml.number("nvmlDeviceGetTemperature", handle, _GPU_SENSOR)
    reasons = nvml.integer("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:  # its name up to driver 535
        reasons = nvml.integer("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    busy = nvml("nvmlDeviceGetUtilizationRates", handle)
    fields = field_values(nvml, handle, (_MEMORY_TEMPERATURE, *_SLOWED_NS.values()))
    slowed = {name: fields.get(number) for name, number in _SLOWED_NS.items()}
    processes = _processes(nvml, handle)
    return GpuState(
        temperatures_c=without_none(
            # GPUs without a sensor of the memory answer 0
            {"gpu": sensor, "memory": fields.get(_MEMORY_TEMPERATURE) or None}
        ),
        power_w=power / 1000 if power is not None else None,
        power_limit_w=limit / 1000 if limit is not None else None,
        energy_j=energy / 1000 if energy is not None else None,
        clock_mhz=nvml.number("nvmlDeviceGetClockInfo", handle, _SM_CLOCK),
        memory_clock_mhz=nvml.number("nvmlDeviceGetClockInfo", handle, _MEMORY_CLOCK),
        utilization_percent=number(getattr(busy, "gpu", None)),
        memory_utilization_percent=number(getattr(busy, "memory", None)),
        memory_used_bytes=used,
        fan_percent=_fan_percent(nvml, handle),
        fan_rpm=nvml.number("nvmlDeviceGetFanSpeedRPM", handle),
        throttling=None
        if reasons is None
        else tuple(name for name, bit in _SLOWING.items() if reasons & bit),
        throttled_s={name: ns / 1e9 for name, ns in without_none(slowed).items()},
        processes=len(processes) if processes is not None else None,
        process_list=processes,
    )


def _fan_percent(nvml: Library, handle: Any) -> Any:
    """The fastest fan's speed; None for a GPU that the machine's fans cool."""
    fans = range(nvml.count("nvmlDeviceGetNumFans", handle))
    speeds = [nvml.number("nvmlDeviceGetFanSpeed_v2", handle, fan) for fan in fans]
    return max((speed for speed in speeds if speed is not None), default=None)


def _processes(nvml: Library, handle: Any) -> tuple[Process, ...] | None:
    found = nvml("nvmlDeviceGetComputeRunningProcesses", handle)
    if not isinstance(found, list):
        return None
    return tuple(
        Process(pid=pid, memory_bytes=integer(getattr(each, "usedGpuMemory", None)))
        for each in found
        if (pid := integer(getattr(each, "pid", None))) is not None
    )
