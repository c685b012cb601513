"""Reads ``amdgpu_top --json`` and its ``--dump`` in JSON.

A device holds "Info" (in a dump its keys stand in the device itself), "Sensors", "VRAM",
"gpu_metrics" and more; "suspended_devices" are listed and not woken up, so only their identity is
known. Keys of version 0.11 (``crates/amdgpu_top_json``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from portagpu.facts.formats import pci_address, within_device_limit
from portagpu.facts.formats.json_xml import json_documents, json_start
from portagpu.facts.readings import Findings, FormatError, GpuState, Pcie, Reading
from portagpu.facts.readings.model import without_none
from portagpu_rocm.formats._amd import (
    VENDOR,
    count,
    first_stated,
    gfx_arch,
    measure,
    product_name,
    scalar_text,
)

KIND: Final = "amdgpu_top --json"

_HEAD: Final = 65536
_MARKS: Final = ('"amdgpu_top_version"', '"DevicePath"', '"suspended_devices"')

Section = Mapping[str, object]


def matches(text: str) -> bool:
    """Whether ``text`` is JSON that has one of this tool's keys near its beginning."""
    head = text[:_HEAD]
    return json_start(head) is not None and any(mark in head for mark in _MARKS)


def parse(text: str) -> Findings:
    """What the devices say; raises FormatError where there is none."""
    documents, broken = json_documents(text)
    root = documents[0]
    top: Section = root if isinstance(root, Mapping) else {}
    devices = within_device_limit(_devices(top.get("devices") if top else root), KIND)
    readings = [_reading(index, device) for index, device in enumerate(devices)]
    suspended = within_device_limit(_devices(top.get("suspended_devices")), KIND)
    readings += [_suspended_reading(device) for device in suspended]
    if not readings:
        raise FormatError("this JSON has no device")
    return Findings(
        kind=KIND,
        readings=tuple(readings),
        versions=_versions([top, *(_section(device, "info") for device in devices)]),
        taken=scalar_text(top.get("timestamp")),
        problems=(
            *(("the JSON breaks off; what comes before is read",) if broken else ()),
            *(
                (f"devices that are suspended, of which only the name is known: {len(suspended)}",)
                if suspended
                else ()
            ),
        ),
        breaks_off=broken,
    )


def _devices(value: object) -> Iterator[Section]:
    for device in value if isinstance(value, list) else ():
        if isinstance(device, Mapping) and not {"info", "devicename"}.isdisjoint(device):
            yield device


def _section(device: Section, name: str) -> Section:
    """A section of a device; a dump has the keys of "info" in the device itself."""
    section = device.get(name, device if name == "info" else None)
    return section if isinstance(section, Mapping) else {}


def _versions(sections: list[Section]) -> dict[str, str]:
    found: dict[str, str] = {}
    for section in sections:
        rocm = first_stated(
            scalar_text(section.get("rocm version")), scalar_text(section.get("rocm"))
        )
        if rocm is not None:
            found.setdefault("rocm", rocm)
        for key, name, last in (
            ("amdgpu_top_version", "amdgpu_top", "patch"),
            ("drm_version", "drm", "patchlevel"),
        ):
            parts = section.get(key)
            if isinstance(parts, Mapping):
                numbers = [scalar_text(parts.get(part)) for part in ("major", "minor", last)]
                found.setdefault(name, ".".join(part for part in numbers if part is not None))
    return found


def _suspended_reading(device: Section) -> Reading:
    return Reading(
        source=KIND,
        vendor=VENDOR,
        pci=pci_address(scalar_text(device.get("pci"))),
        name=product_name(scalar_text(device.get("devicename"))),
        device_id=count(device.get("deviceid")),
        device_file=scalar_text(device.get("render")),
        extra={"runtime_status": "suspended"},
    )


def _reading(index: int, device: Section) -> Reading:
    info, path = _section(device, "info"), _section(_section(device, "info"), "devicepath")
    kind = scalar_text(info.get("gpu type"))
    return Reading(
        source=KIND,
        vendor=VENDOR,
        index=index,
        pci=pci_address(scalar_text(info.get("pci")) or scalar_text(path.get("pci"))),
        name=product_name(scalar_text(info.get("devicename"))),
        arch=gfx_arch(scalar_text(info.get("gfx_target_version"))),
        device_id=count(info.get("deviceid")),
        memory_bytes=count(info.get("vram size")) or None,
        unit_count=count(info.get("total compute unit")),
        device_file=scalar_text(path.get("render")),
        firmware=_firmware(info),
        pcie=_pcie(info),
        state=_state(device, info),
        extra={"gpu type": kind} if kind is not None else {},
    )


def _firmware(info: Section) -> dict[str, str]:
    found: dict[str, str] = {}
    listed = info.get("firmware info")
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, Mapping):
            name, version = scalar_text(entry.get("fw_type")), scalar_text(entry.get("version"))
            if name is not None and version is not None:
                found.setdefault(name, version)
    vbios = scalar_text(_section(info, "vbios").get("ver_str"))
    return found | ({"VBIOS": vbios} if vbios is not None else {})


def _pcie(info: Section) -> Pcie:
    """The most that the GPU's PCIe link and its slot can do."""
    link = _section(info, "pcie link")
    gpu, system = _section(link, "max_gpu_link"), _section(link, "max_system_link")
    return Pcie(
        max_generation=count(system.get("gen")),
        max_width=count(system.get("width")),
        device_generation=count(gpu.get("gen")),
        device_width=count(gpu.get("width")),
    )


def _state(device: Section, info: Section) -> GpuState:
    sensors, activity = _section(device, "sensors"), _section(device, "gpu_activity")
    clock, memory_clock = _section(info, "gpu clock"), _section(info, "memory clock")
    throttling = _section(device, "gpu_metrics").get("throttle status")
    processes = device.get("fdinfo")
    limits = {
        f"{prefix}{word}": measure(sensors.get(f"{name} {what} temperature"))
        for name, prefix in (("edge", "edge-"), ("junction", ""), ("memory", "memory-"))
        for what, word in (("critical", "critical"), ("emergency", "shutdown"))
    }
    return GpuState(
        temperatures_c=without_none(
            {
                name: measure(sensors.get(f"{name} temperature"))
                for name in ("edge", "junction", "memory")
            }
        ),
        limits_c=without_none(limits),
        power_w=first_stated(
            measure(sensors.get("gfx power")),
            measure(sensors.get("average power")),
            measure(sensors.get("input power")),
        ),
        power_limit_w=measure(_section(info, "power cap").get("current")),
        clock_mhz=measure(sensors.get("gfx_sclk")),
        max_clock_mhz=measure(clock.get("max")),
        memory_clock_mhz=measure(sensors.get("gfx_mclk")),
        max_memory_clock_mhz=measure(memory_clock.get("max")),
        utilization_percent=measure(activity.get("gfx")),
        memory_used_bytes=count(info.get("vram usage size")),
        throttling=tuple(text for word in throttling if (text := scalar_text(word)) is not None)
        if isinstance(throttling, list)
        else None,
        processes=len(processes) if isinstance(processes, Mapping) else None,
    )
