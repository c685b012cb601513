"""All GPUs of AMD, by amdsmi or else pyrsmi, completed by the driver's files; in a child process.

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
from portagpu.facts.host import Tree
from portagpu.facts.pcie import GENERATION
from portagpu.facts.readings import Findings, GpuState, Pcie, Reading
from portagpu.facts.readings.document import to_document
from portagpu.facts.readings.library import Library, integer, number, open_library
from portagpu.facts.readings.model import first_known
from portagpu_rocm.amdsmi_gpus import amdsmi_findings
from portagpu_rocm.kernel_gpus import kernel_findings

if TYPE_CHECKING:
    from collections.abc import Callable


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
