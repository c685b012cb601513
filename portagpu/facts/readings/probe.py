"""Probe a vendor's library in a child process, and drop implausible values from its answer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses import call
from portagpu.facts.readings import Findings, FormatError
from portagpu.facts.readings.document import from_document

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from portagpu.facts.readings import GpuState, Pcie, Reading

# A value beyond these is a driver's way to say that there is none, is in another unit, or was read
# with the structures of another version of the library (a powered device draws something; the
# kernel's own unit for temperatures is 0.001 degree).
_PLAUSIBLE: Final = {
    "clock_mhz": (1.0, 1e5),
    "memory_clock_mhz": (1.0, 1e5),
    "max_clock_mhz": (1.0, 1e5),
    "max_memory_clock_mhz": (1.0, 1e5),
    "power_w": (0.001, 1e4),
    "power_limit_w": (1.0, 1e4),
    "utilization_percent": (0.0, 100.0),
    "memory_utilization_percent": (0.0, 100.0),
    "energy_j": (0.0, 1e15),
    "fan_percent": (0.0, 200.0),
    "fan_rpm": (0.0, 1e5),
    "memory_used_bytes": (0.0, float(1 << 44)),
}
_MEMORY_BYTES: Final = (float(1 << 20), float(1 << 44))
_CELSIUS: Final = (-40.0, 150.0)
# of the die, the hottest place first
_TEMPERATURES: Final = ("hotspot", "gpu", "edge")


def probe(
    module: str, library: str, addresses: Collection[str] = (), only: str | None = None
) -> Findings:
    """The findings that ``module.probe(only)`` returns in a child process.

    ``library`` is its name for people. ``addresses`` are the GPUs that PCI shows, empty where that
    is not known. ``only`` is the address of the one GPU to read. A child that hangs or dies, and an
    answer that is not possible, are problems.
    """
    document, problem = call(module, "probe", (only,), limit_s=LIMITS.library_s)
    if not problem:
        try:
            return plausible_findings(from_document(document), library, addresses)
        except FormatError as error:
            problem = str(error)
    return Findings(kind=library, problems=(f"{library} does not answer: {problem}",))


def telemetry_of(
    readings: Collection[Reading], pci: str | None, uuid: str | None
) -> Mapping[str, float]:
    """Telemetry of the GPU at that address, else of the GPU or part with that UUID.

    Names are those of :meth:`portagpu.devices.contract.Plugin.telemetry`; what is not known is
    absent."""
    for reading in readings:
        if reading.pci == pci if pci is not None else uuid in _uuids(reading):
            state = reading.state
            degrees = [state.temperatures_c.get(name) for name in _TEMPERATURES]
            found = {
                "clock_mhz": state.clock_mhz,
                "memory_clock_mhz": state.memory_clock_mhz,
                "temperature_c": next((value for value in degrees if value is not None), None),
                "power_w": state.power_w,
            }
            return {name: float(value) for name, value in found.items() if value is not None}
    return {}


def _uuids(reading: Reading) -> set[str]:
    return {uuid for uuid in (reading.uuid, *(p.uuid for p in reading.parts)) if uuid is not None}


def plausible_findings(
    findings: Findings, library: str, addresses: Collection[str] = ()
) -> Findings:
    """``findings`` without values that no device has, and without GPUs that PCI does not show."""
    strange = [r for r in findings.readings if addresses and r.pci not in (None, *addresses)]
    problems = list(findings.problems)
    if strange:
        problems.append(
            f"{library} shows {len(strange)} GPU(s) where PCI shows none (at {strange[0].pci}): "
            "its Python package is of another version than its library; install the one that your "
            "driver or ROCm brings"
        )
    readings = tuple(
        _plausible_reading(reading) for reading in findings.readings if reading not in strange
    )
    return replace(findings, readings=readings, problems=tuple(problems))


def _is_within(value: Any, bounds: tuple[float, float]) -> bool:
    return value is not None and math.isfinite(value) and bounds[0] <= value <= bounds[1]


def _plausible_reading(reading: Reading) -> Reading:
    """``reading`` without values that no such device has."""
    memory = reading.memory_bytes
    return replace(
        reading,
        memory_bytes=memory if _is_within(memory, _MEMORY_BYTES) else None,
        pcie=_plausible_pcie(reading.pcie),
        state=_plausible_state(reading.state),
    )


def _plausible_state(state: GpuState) -> GpuState:
    values: dict[str, Any] = {
        name: value if _is_within(value := getattr(state, name), bounds) else None
        for name, bounds in _PLAUSIBLE.items()
    }
    return replace(
        state,
        temperatures_c=_plausible_degrees(state.temperatures_c),
        limits_c=_plausible_degrees(state.limits_c),
        **values,
    )


def _plausible_degrees(found: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in found.items() if _is_within(value, _CELSIUS)}


def _plausible_pcie(link: Pcie) -> Pcie:
    values: dict[str, Any] = {}
    for name in ("", "max_", "device_"):
        generation, width = getattr(link, f"{name}generation"), getattr(link, f"{name}width")
        values[f"{name}generation"] = generation if generation in range(1, 8) else None
        values[f"{name}width"] = width if width in (1, 2, 4, 8, 12, 16, 32) else None
    return replace(link, **values)
