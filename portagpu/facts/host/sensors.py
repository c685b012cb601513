"""Clocks, temperatures, throttle counters, load, energy and memory errors of the host.

All are cheap enough to sample. Files: Linux ``Documentation/admin-guide/pm/cpufreq.rst``,
``Documentation/hwmon/sysfs-interface.rst`` and ``fam15h_power.rst``,
``Documentation/ABI/testing/sysfs-class-thermal``, ``sysfs-devices-system-cpu`` and
``sysfs-devices-edac``, ``Documentation/power/powercap/powercap.rst``. Since Linux 5.10 only root
may read the energy counters (RAPL), because of CVE-2020-8694. A kernel without a driver for the
memory controller, and most virtual machines, have no error counters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.facts.host.tree import MAX_CPUS, Tree, to_float

if TYPE_CHECKING:
    from collections.abc import Collection

    from portagpu.facts.host.tree import Tree


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
        by_cpu = tuple(value for value in map(to_float, lines[:MAX_CPUS]) if value)
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


_BASE: Final = "sys/class/powercap"
_CHIPS: Final = frozenset({"fam15h_power"})
"""Names of the hwmon drivers that measure a CPU's package, and nothing else."""
_PACKAGE: Final = re.compile(r"package-\d+(?:-die-\d+)?")


@dataclass(frozen=True, slots=True)
class Energy:
    """A package's counter in microjoules, which begins again at 0 after ``largest_uj``."""

    zone: str
    energy_uj: int
    largest_uj: int | None


def read_energy(tree: Tree) -> tuple[tuple[Energy, ...], str]:
    """(the counter of each package, ""), else ((), why there is none)."""
    found: list[Energy] = []
    # "intel-rapl:0" is a package, "intel-rapl:0:1" a part of it; the name is also other makers'
    zones = [
        zone
        for zone in tree.names(_BASE, r"[a-z-]+:\d+")
        if _PACKAGE.fullmatch(tree.text(f"{_BASE}/{zone}/name") or "")
    ]
    # a processor that has both interfaces has the same packages in each
    drivers = sorted({zone.partition(":")[0] for zone in zones}, key=len)
    for zone in zones:
        if zone.partition(":")[0] != drivers[0]:
            continue
        value = tree.integer(f"{_BASE}/{zone}/energy_uj")
        if value is None:
            return (), f"/{_BASE}/{zone}/energy_uj cannot be read: only root may, by default"
        found.append(Energy(zone, value, tree.integer(f"{_BASE}/{zone}/max_energy_range_uj")))
    return tuple(found), "" if found else f"the kernel has no energy counter in /{_BASE}"


def read_power(tree: Tree) -> float | None:
    """The power of all packages in W, where hwmon chips of CPUs measure it."""
    base = "sys/class/hwmon"
    found = [
        value / 1e6
        for chip in tree.names(base, r"hwmon\d+")
        if tree.text(f"{base}/{chip}/name") in _CHIPS
        and (value := tree.integer(f"{base}/{chip}/power1_input")) is not None
    ]
    return sum(found) if found else None


_CONTROLLERS: Final = "sys/devices/system/edac/mc"


@dataclass(frozen=True, slots=True)
class Dimm:
    """A memory module; ``label`` is the board's name of its slot where the kernel knows it."""

    label: str
    corrected: int | None
    uncorrected: int | None


@dataclass(frozen=True, slots=True)
class MemoryController:
    """Errors since the counters began, when the driver was loaded; None is unknown.

    The counts include errors of unknown modules.
    """

    name: str
    corrected: int | None
    uncorrected: int | None
    dimms: tuple[Dimm, ...]


def read_memory_controllers(tree: Tree) -> tuple[MemoryController, ...]:
    """Every memory controller that counts its errors."""
    return tuple(
        MemoryController(
            name=name,
            corrected=tree.integer(f"{_CONTROLLERS}/{name}/ce_count"),
            uncorrected=tree.integer(f"{_CONTROLLERS}/{name}/ue_count"),
            dimms=_dimms(tree, f"{_CONTROLLERS}/{name}"),
        )
        for name in tree.names(_CONTROLLERS, r"mc\d+")
    )


def _dimms(tree: Tree, controller: str) -> tuple[Dimm, ...]:
    return tuple(
        Dimm(
            label=tree.text(f"{controller}/{name}/dimm_label")
            or tree.text(f"{controller}/{name}/dimm_location")
            or name,
            corrected=tree.integer(f"{controller}/{name}/dimm_ce_count"),
            uncorrected=tree.integer(f"{controller}/{name}/dimm_ue_count"),
        )
        for name in tree.names(controller, r"(?:dimm|rank)\d+")
    )
