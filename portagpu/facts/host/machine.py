"""The machine, its memory, its limits and its state at one moment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from portagpu.facts.host.cpu import Cpu, read_cpu, read_machine
from portagpu.facts.host.limits import Limits, read_limits
from portagpu.facts.host.sensors import Sensors, read_sensors
from portagpu.facts.host.tree import Tree, as_tree, size_bytes, to_int

if TYPE_CHECKING:
    from pathlib import Path


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


def _read_kernel(tree: Tree) -> Kernel:
    release = tree.text("proc/sys/kernel/osrelease")
    if release is None and tree.is_live:
        release = os.uname().release
    return Kernel(release=release, machine=read_machine(tree))


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the machine (a container's limit is in Limits); None is unknown."""

    total_bytes: int | None
    available_bytes: int | None
    swap_total_bytes: int | None
    swap_free_bytes: int | None
    huge_pages_total: int | None
    huge_pages_free: int | None
    huge_page_size_bytes: int | None


def read_memory(tree: Tree) -> Memory:
    """Read ``/proc/meminfo``; a missing line is None."""
    lines = tree.fields("proc/meminfo")
    return Memory(
        total_bytes=size_bytes(lines.get("MemTotal")),
        available_bytes=size_bytes(lines.get("MemAvailable")),
        swap_total_bytes=size_bytes(lines.get("SwapTotal")),
        swap_free_bytes=size_bytes(lines.get("SwapFree")),
        huge_pages_total=to_int(lines.get("HugePages_Total")),
        huge_pages_free=to_int(lines.get("HugePages_Free")),
        huge_page_size_bytes=size_bytes(lines.get("Hugepagesize")),
    )
