"""The energy that the CPU's packages have used (RAPL), or their power where a chip measures it.

Files: Linux ``Documentation/power/powercap/powercap.rst``,
``Documentation/hwmon/sysfs-interface.rst`` and ``fam15h_power.rst``. Since Linux 5.10
only root may read the counters, because of CVE-2020-8694.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from portagpu.facts.host.tree import Tree

_BASE: Final = "sys/class/powercap"
_CHIPS: Final = frozenset({"fam15h_power"})
"""Names of the hwmon drivers that measure a CPU's package, and nothing beside it."""
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
