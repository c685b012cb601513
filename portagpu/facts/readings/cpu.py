"""The CPU as a device: a reading of all its packages, from the kernel's files and psutil.

psutil is optional: without it, the utilisation is missing. Runs in a child process of a stream, as
vendors' libraries do.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any, Final

from portagpu.base.plugins import install
from portagpu.facts.host import (
    Tree,
    read_clocks,
    read_cpu,
    read_cpu_temperatures,
    read_energy,
    read_memory,
    read_power,
)
from portagpu.facts.readings.library import Rarely
from portagpu.facts.readings.model import (
    NO_VENDOR,
    Findings,
    GpuState,
    Reading,
    Source,
    to_document,
    without_none,
)

KIND: Final = "host"
SOURCE: Final = Source(name="the CPU's files", module=__name__)
_SLOW_S: Final = 1.0
"""Clocks and temperatures have a file for each core: they are read at most this often."""
_TWO: Final = "is known from the second reading on"


def sample() -> dict[str, Any]:
    """The findings as JSON: one reading, whose vendor is empty."""
    return to_document(Findings(kind=KIND, readings=(_live_reader().read(),)))


@cache
def _live_reader() -> CpuReader:
    return CpuReader(Tree())


class CpuReader:
    """Reads the CPU of ``tree`` again and again. Power and utilisation need two readings."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._cpu = read_cpu(tree)
        self._utilization, self._no_utilization = _utilization_call(tree)
        self._counted: dict[str, int] = {}
        self._energy_uj = 0
        self._energy_s: float | None = None
        self._rarely = Rarely(_SLOW_S)

    def read(self, now_s: float | None = None) -> Reading:
        """A reading at ``now_s`` of the monotonic clock, by default now."""
        now = time.monotonic() if now_s is None else now_s
        missing: dict[str, str] = {}
        memory = read_memory(self._tree)
        total, free = memory.total_bytes, memory.available_bytes
        used = total - free if total is not None and free is not None else None
        utilization = self._utilization() if self._utilization is not None else None
        if utilization is None:
            missing["utilization_percent"] = self._no_utilization
        power, energy, missing_power = self._power(now)
        missing |= missing_power
        slow = self._rarely("", self._slow_values)
        return Reading(
            source=KIND,
            vendor=NO_VENDOR,
            name=self._cpu.model_name,
            unit_count=self._cpu.physical_cores,
            memory_bytes=total,
            missing=missing,
            state=GpuState(
                temperatures_c=slow.temperatures_c,
                limits_c=slow.limits_c,
                power_w=power,
                energy_j=energy,
                clock_mhz=slow.clock_mhz,
                max_clock_mhz=slow.max_clock_mhz,
                utilization_percent=utilization,
                memory_used_bytes=used,
            ),
        )

    def _power(self, now: float) -> tuple[float | None, float | None, dict[str, str]]:
        """(W since the last reading, J since the first one, what is missing and why)."""
        counters, reason = read_energy(self._tree)
        if not counters:
            self._energy_s = None
            power = read_power(self._tree)
            known = {} if power is not None else {"power_w": reason}
            return power, None, {**known, "energy_j": reason}
        spent = 0
        for each in counters:
            step = each.energy_uj - self._counted.get(each.zone, each.energy_uj)
            # it began again at 0
            spent += step if step >= 0 else max(0, step + (each.largest_uj or 0) + 1)
            self._counted[each.zone] = each.energy_uj
        self._energy_uj += spent
        before, self._energy_s = self._energy_s, now
        if before is None or now <= before:
            return None, self._energy_uj / 1e6, {"power_w": _TWO}
        return spent / 1e6 / (now - before), self._energy_uj / 1e6, {}

    def _slow_values(self) -> GpuState:
        clocks = read_clocks(self._tree)
        sensors = read_cpu_temperatures(self._tree)
        degrees: dict[str, float] = {}
        for each in sensors:
            name = (each.label or each.sensor).lower()
            # of several packages, the hottest
            degrees[name] = max(each.celsius, degrees.get(name, each.celsius))
        limits = [each.critical_celsius for each in sensors if each.critical_celsius is not None]
        by_cpu = clocks.by_cpu_mhz
        return GpuState(
            temperatures_c=degrees,
            limits_c=without_none({"critical": min(limits, default=None)}),
            clock_mhz=sum(by_cpu) / len(by_cpu) if by_cpu else None,
            max_clock_mhz=clocks.maximum_mhz,
        )


def _utilization_call(tree: Tree) -> tuple[Any, str]:
    """(a function that returns the percentage since its last call, why it may return None)."""
    if not tree.is_live:
        return None, "is not in a recording"
    try:
        import psutil
    except ImportError:
        return None, f"psutil is not installed: {install('monitor')}"
    psutil.cpu_percent(None)
    begun = time.monotonic()

    def percent() -> float | None:
        # two readings within a tick of the kernel's clock say 0 or 100
        return psutil.cpu_percent(None) if time.monotonic() - begun > 0.05 else None

    return percent, _TWO
