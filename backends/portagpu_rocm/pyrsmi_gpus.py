"""Readings of all GPUs that the Python package pyrsmi shows.

Functions and units: pyrsmi/rocml.py 1.1.0 (ROCm/pyrsmi @ce502b48). It has no temperatures, no
clocks and no errors of memory. Its unique id repeats the address, and its UUID may too.
"""

from __future__ import annotations

from typing import Any, Final

from portagpu.facts.pcie import GENERATION
from portagpu.facts.readings import Findings, GpuState, Pcie, Reading
from portagpu.facts.readings.library import Library, integer, number

_HIGHEST_FAN: Final = 255  # AMDSMI_MAX_FAN_SPEED


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
                pcie=_pcie(rsmi, index),
                state=_state(rsmi, index),
            )
        )
    return Findings(kind="pyrsmi", readings=tuple(readings))


def _state(rsmi: Library, index: int) -> GpuState:
    fan = _count(rsmi("smi_get_device_fan_speed", index))
    return GpuState(
        power_w=rsmi.number("smi_get_device_average_power", index),
        utilization_percent=_count(rsmi("smi_get_device_utilization", index)),
        memory_utilization_percent=_count(rsmi("smi_get_device_memory_busy", index)),
        memory_used_bytes=_count(rsmi("smi_get_device_memory_used", index)),
        fan_percent=fan / _HIGHEST_FAN * 100 if fan is not None else None,
        fan_rpm=_count(rsmi("smi_get_device_fan_rpms", index)),
    )


def _pcie(rsmi: Library, index: int) -> Pcie:
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


def _generation(mega_transfers: Any) -> int | None:
    speed = number(mega_transfers)
    return GENERATION.get(speed / 1000) if speed is not None else None


def _count(value: Any) -> int | None:
    found = integer(value)
    return found if found is not None and found >= 0 else None


def _address(place: int | None) -> str | None:
    """The address in pyrsmi's 64 bits, whose domain is in the upper half or, raw, above bit 16."""
    if place is None or place < 0:
        return None
    domain = place >> 32 or place >> 16 & 0xFFFF
    return f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
