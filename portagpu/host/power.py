"""The energy that the CPU's packages have used, from the kernel's powercap files (RAPL).

Files: Linux ``Documentation/power/powercap/powercap.rst``. Since Linux 5.10 only root may read the
counters, because of CVE-2020-8694.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from portagpu.host.tree import Tree

_BASE: Final = "sys/class/powercap"
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
