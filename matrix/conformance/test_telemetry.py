"""Telemetry: readings that are in the unit that their name states."""

from __future__ import annotations

import math

from portagpu.suite import NotClaimed, case


def _readings(gpu):
    found = gpu.plugin.telemetry(gpu.index)
    if not found:
        raise NotClaimed("this machine shows no reading")
    return found


@case(
    "telemetry/readings-have-units",
    spec="Readings are finite numbers whose names end in their unit; none is shown as absent.",
    covers=("Plugin.telemetry",),
    traps=("T01", "T02"),
)
def test_telemetry_has_units(gpu):
    readings = _readings(gpu)
    for name, value in readings.items():
        unit = name.rpartition("_")[2]
        assert unit in {"mhz", "c", "w", "count"}, f"the reading {name} names no known unit"
        assert math.isfinite(value), f"{name} is {value}"


@case(
    "telemetry/readings-are-plausible",
    spec="A clock is at least 1 MHz, a temperature between -40 and 150 degrees Celsius.",
    covers=("Plugin.telemetry",),
    traps=("T03",),
)
def test_telemetry_is_plausible(gpu):
    readings = _readings(gpu)
    for name in ("clock_mhz", "memory_clock_mhz"):
        assert readings.get(name, 1.0) >= 1.0, f"{name} is {readings[name]}: not shown is absent"
    assert -40 <= readings.get("temperature_c", 20) <= 150, f"{readings['temperature_c']} degrees"
