"""Clocks, temperatures, throttle counters and load of the CPU, cheap enough to sample.

Files: Linux ``Documentation/admin-guide/pm/cpufreq.rst``,
``Documentation/hwmon/sysfs-interface.rst``, ``Documentation/ABI/testing/sysfs-class-thermal`` and
``sysfs-devices-system-cpu``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.facts.host.tree import MOST_CPUS, Tree, to_float

if TYPE_CHECKING:
    from collections.abc import Collection

_CPUS: Final = "sys/devices/system/cpu"
_CPU_CHIPS: Final = frozenset({"coretemp", "k8temp", "k10temp", "zenpower", "via_cputemp"})
"""Names of the hwmon drivers for CPUs (Linux ``drivers/hwmon``; zenpower is not the kernel's)."""
_CPU_ZONES: Final = frozenset({"x86_pkg_temp", "cpu-thermal", "cpu_thermal"})
"""Types of thermal zones of CPUs (Linux ``drivers/thermal``, and device trees)."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks of the CPUs in MHz, and their source; empty without any.

    ``source`` is "cpufreq" (measured or requested, as the driver has it), "cpuinfo" or None.
    """

    source: str | None
    by_cpu_mhz: tuple[float, ...]
    maximum_mhz: float | None
    governor: str | None


@dataclass(frozen=True, slots=True)
class Temperature:
    """One sensor; ``critical_celsius`` is the limit that the sensor itself states."""

    sensor: str
    label: str | None
    celsius: float
    critical_celsius: float | None


@dataclass(frozen=True, slots=True)
class Throttling:
    """Counts of thermal throttling since boot, summed over cores and over packages."""

    core_count: int | None
    package_count: int | None


@dataclass(frozen=True, slots=True)
class Sensors:
    """The state of the machine now; ``load_average`` is over 1, 5 and 15 minutes."""

    clocks: Clocks
    temperatures: tuple[Temperature, ...]
    throttling: Throttling
    load_average: tuple[float, float, float] | None


def read_sensors(tree: Tree) -> Sensors:
    """Read every sensor once."""
    return Sensors(read_clocks(tree), read_temperatures(tree), read_throttling(tree), _load(tree))


def read_clocks(tree: Tree) -> Clocks:
    """The clock of every CPU, from cpufreq or else from ``/proc/cpuinfo``."""
    folders = [f"{_CPUS}/{cpu}/cpufreq" for cpu in tree.names(_CPUS, r"cpu\d+")]
    khz = [tree.integer(f"{folder}/scaling_cur_freq") for folder in folders]
    by_cpu = tuple(value / 1000 for value in khz if value)
    source = "cpufreq" if by_cpu else None
    if not by_cpu:
        lines = re.findall(r"(?m)^cpu MHz\s*:\s*(\S+)\s*$", tree.text("proc/cpuinfo") or "")
        by_cpu = tuple(value for value in map(to_float, lines[:MOST_CPUS]) if value)
        source = "cpuinfo" if by_cpu else None
    limits = [value for folder in folders if (value := tree.integer(f"{folder}/cpuinfo_max_freq"))]
    governor = tree.text(f"{folders[0]}/scaling_governor") if folders else None
    return Clocks(source, by_cpu, max(limits) / 1000 if limits else None, governor or None)


def read_temperatures(tree: Tree) -> tuple[Temperature, ...]:
    """Every temperature of thermal zones and hwmon chips; a sensor without a value is left out."""
    return (*_zones(tree), *_chips(tree))


def read_cpu_temperatures(tree: Tree) -> tuple[Temperature, ...]:
    """The temperatures of the CPU's packages and dies, without those of single cores."""
    found = [each for each in _chips(tree, _CPU_CHIPS) if not _is_core(each)]
    return tuple(found) or tuple(each for each in _zones(tree) if each.label in _CPU_ZONES)


def _is_core(sensor: Temperature) -> bool:
    return re.search(r"\bCore \d+$", sensor.label or "") is not None


def read_throttling(tree: Tree) -> Throttling:
    """Thermal throttle counters; None where the kernel has none for this CPU."""
    cores: dict[str, int] = {}
    packages: dict[str, int] = {}
    for cpu in tree.names(_CPUS, r"cpu\d+"):
        folder = f"{_CPUS}/{cpu}"
        core = tree.integer(f"{folder}/thermal_throttle/core_throttle_count")
        package = tree.integer(f"{folder}/thermal_throttle/package_throttle_count")
        # every thread repeats its core's count, every core its package's
        if core is not None:
            siblings = tree.text(f"{folder}/topology/thread_siblings_list") or cpu
            cores[siblings] = max(core, cores.get(siblings, 0))
        if package is not None:
            socket = tree.text(f"{folder}/topology/physical_package_id") or "0"
            packages[socket] = max(package, packages.get(socket, 0))
    return Throttling(
        sum(cores.values()) if cores else None, sum(packages.values()) if packages else None
    )


def _zones(tree: Tree) -> list[Temperature]:
    found: list[Temperature] = []
    base = "sys/class/thermal"
    for zone in tree.names(base, r"thermal_zone\d+"):
        value = tree.integer(f"{base}/{zone}/temp")
        if value is None:
            continue
        critical = None
        for trip in tree.names(f"{base}/{zone}", r"trip_point_\d+_type"):
            if tree.text(f"{base}/{zone}/{trip}") == "critical":
                critical = tree.integer(f"{base}/{zone}/{trip.removesuffix('type')}temp")
        label = tree.text(f"{base}/{zone}/type")
        found.append(Temperature(zone, label, value / 1000, _celsius(critical)))
    return found


def _chips(tree: Tree, names: Collection[str] = ()) -> list[Temperature]:
    """The sensors of the chips of those names, empty for all."""
    found: list[Temperature] = []
    base = "sys/class/hwmon"
    for chip in tree.names(base, r"hwmon\d+"):
        name = tree.text(f"{base}/{chip}/name")
        if names and name not in names:
            continue
        for file in tree.names(f"{base}/{chip}", r"temp\d+_input"):
            sensor = file.removesuffix("_input")
            value = tree.integer(f"{base}/{chip}/{file}")
            if value is None:
                continue
            label = tree.text(f"{base}/{chip}/{sensor}_label")
            critical = tree.integer(f"{base}/{chip}/{sensor}_crit")
            text = " ".join(part for part in (name, label) if part) or None
            found.append(Temperature(f"{chip}/{sensor}", text, value / 1000, _celsius(critical)))
    return found


def _celsius(millidegrees: int | None) -> float | None:
    # thermal zones and chips without a limit write 0 or a negative number
    return millidegrees / 1000 if millidegrees is not None and millidegrees > 0 else None


def _load(tree: Tree) -> tuple[float, float, float] | None:
    values = [to_float(word) for word in (tree.text("proc/loadavg") or "").split()[:3]]
    match values:
        case [float(one), float(five), float(fifteen)]:
            return one, five, fifteen
    return None
