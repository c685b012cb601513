"""The CPU backend: torch on the CPU and Gloo, the reference that runs everywhere.

This module imports neither torch nor anything else of weight.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from portagpu.devices.contract import Plugin, Status
from portagpu.devices.plugin_parts import Variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.devices.contract import Backend
    from portagpu.facts.readings.model import Source


class CpuPlugin(Plugin):
    """One device, shared by all ranks of the machine, wherever torch is installed."""

    name = "cpu"
    contract = (1, 6)
    shared = True
    device_type = "cpu"
    c10d_name = "gloo"
    storage_module = "portagpu_cpu.storage"
    variables = Variables(caches={"TORCHINDUCTOR_CACHE_DIR": "inductor"})

    def status(self) -> Status:
        """Usable where torch is installed; never automatic, because any torch runs on a CPU."""
        from portagpu.base.plugins import install
        from portagpu.facts.torchbuild import torch_build

        build = torch_build()
        if build is None:
            return Status(
                False,
                f"torch is not installed: {install('torch')}, or your vendor's wheel",
            )
        return Status(True, f"torch {build.version} runs on the CPU")

    def count(self) -> int:
        """1, so that a loop over devices trains."""
        return 1

    def open(self, index: int) -> Backend:
        """The host's CPU."""
        from portagpu_cpu.backend import CpuBackend

        return CpuBackend(self, index)

    def prepare(self) -> None:
        """Import torch, and find this CPU's target."""
        from importlib import import_module

        from portagpu.facts.targets import identify

        import_module("portagpu_cpu.backend")
        identify("cpu", os.uname().machine, None)

    def telemetry(self, index: int) -> Mapping[str, float]:
        """Mean clock of the cores, hottest sensor and throttle events, as far as shown."""
        del index
        from portagpu.facts.host.sensors import read_sensors
        from portagpu_cpu.memory import ROOT

        sensors = read_sensors(ROOT)
        found: dict[str, float] = {}
        clocks = sensors.clocks.by_cpu_mhz
        if clocks:
            found["clock_mhz"] = sum(clocks) / len(clocks)
        if sensors.temperatures:
            found["temperature_c"] = max(entry.celsius for entry in sensors.temperatures)
        counts = (sensors.throttling.core_count, sensors.throttling.package_count)
        if any(count is not None for count in counts):
            found["throttle_count"] = float(sum(count or 0 for count in counts))
        return found

    def sampler(self) -> Source:
        """The host's files, and psutil where it is installed."""
        from portagpu.facts.readings.cpu import SOURCE

        return SOURCE


PLUGIN: Final = CpuPlugin()
