"""Facts of the machine from kernel files below a replaceable root. No device is opened.

``read_host()`` reads everything once. ``read_clocks``, ``read_temperatures`` and
``read_throttling`` read changing values. ``gpus_on_machine()`` finds GPUs without vendor libraries.
Unknown is None.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from portagpu.host.cgroup import CgroupLimits
from portagpu.host.cpu import Cache, Cpu, NumaNode, read_cpu, read_machine
from portagpu.host.gpus import Partition, PciGpu, gpus_on_machine, pci_of_uuid, unreadable_files
from portagpu.host.limits import UNLIMITED, Limits, Ulimits, read_limits
from portagpu.host.memory import Memory, read_memory
from portagpu.host.power import Energy, read_energy, read_power
from portagpu.host.sensors import (
    Clocks,
    Sensors,
    Temperature,
    Throttling,
    read_clocks,
    read_cpu_temperatures,
    read_sensors,
    read_temperatures,
    read_throttling,
)
from portagpu.host.tree import Tree, as_tree
from portagpu.vendors import vendors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "UNLIMITED",
    "Cache",
    "CgroupLimits",
    "Clocks",
    "Cpu",
    "Energy",
    "Host",
    "Kernel",
    "Limits",
    "Memory",
    "NumaNode",
    "Partition",
    "PciGpu",
    "Sensors",
    "Temperature",
    "Throttling",
    "Tree",
    "Ulimits",
    "gpus_on_machine",
    "pci_of_uuid",
    "read_clocks",
    "read_cpu",
    "read_cpu_temperatures",
    "read_energy",
    "read_host",
    "read_limits",
    "read_memory",
    "read_power",
    "read_sensors",
    "read_temperatures",
    "read_throttling",
    "unreadable_files",
    "visibility",
    "visibility_variables",
]


def visibility_variables() -> tuple[str, ...]:
    """The variables that hide or disguise devices, of all declared vendors."""
    names: dict[str, None] = {}
    for each in vendors().values():
        masks = each.masks.variables if each.masks is not None else ()
        names.update(dict.fromkeys((*each.visibility, *masks, *each.disguises)))
    return tuple(names)


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel's release ("6.8.0-45-generic") and machine ("x86_64")."""

    release: str | None
    machine: str | None


@dataclass(frozen=True, slots=True)
class Host:
    """The machine, its limits and its state at one moment."""

    cpu: Cpu
    memory: Memory
    kernel: Kernel
    limits: Limits
    sensors: Sensors

    @property
    def usable_cpus(self) -> int | None:
        """CPUs that this process can keep busy: its affinity, limited by control groups.

        A quota is rounded down, because further threads would be stopped part of the time. At
        least 1.
        """
        counts = [self.cpu.affinity_cpus or self.cpu.logical_cpus]
        if self.limits.cgroup.cpu_quota_cpus is not None:
            counts.append(int(self.limits.cgroup.cpu_quota_cpus))
        if self.limits.cgroup.cpuset_cpus is not None:
            counts.append(len(self.limits.cgroup.cpuset_cpus))
        known = [count for count in counts if count is not None]
        return max(1, min(known)) if known else None

    @property
    def busy(self) -> str:
        """A clause that says that other work runs here; empty with a free or unknown CPU."""
        load, cpus = self.sensors.load_average, self.usable_cpus
        if load is None or not cpus or load[0] <= cpus:
            return ""
        return f"load {load[0]:.1f} on {cpus} CPUs: numbers are not comparable"

    @property
    def usable_memory_bytes(self) -> int | None:
        """The most memory that this process may use: the machine's or its control group's."""
        bounds = (self.memory.total_bytes, self.limits.cgroup.memory_max_bytes)
        return min((bound for bound in bounds if bound is not None), default=None)


def read_host(root: Tree | Path | str = "/") -> Host:
    """Read the machine below ``root``; never raises for what is missing or damaged there."""
    tree = as_tree(root)
    return Host(
        cpu=read_cpu(tree),
        memory=read_memory(tree),
        kernel=_read_kernel(tree),
        limits=read_limits(tree),
        sensors=read_sensors(tree),
    )


def visibility(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The set variables that hide or disguise devices, with their values, also empty ones."""
    values = os.environ if environment is None else environment
    return {name: values[name] for name in visibility_variables() if name in values}


def _read_kernel(tree: Tree) -> Kernel:
    release = tree.text("proc/sys/kernel/osrelease")
    if release is None and tree.is_live:
        release = os.uname().release
    return Kernel(release=release, machine=read_machine(tree))
