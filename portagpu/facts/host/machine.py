"""The machine, its memory, its limits and its state at one moment, and the settings of kernel and
PCI Express that affect bandwidth.

Files of the settings: Linux ``Documentation/admin-guide/kernel-parameters.txt``,
``Documentation/ABI/testing/sysfs-kernel-iommu_groups`` and ``sysfs-class-iommu``,
``Documentation/admin-guide/sysctl/kernel.rst`` and ``Documentation/admin-guide/mm/transhuge.rst``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.facts.host.cpu import Cpu, read_cpu, read_machine
from portagpu.facts.host.gpus import PCI_DEVICES
from portagpu.facts.host.limits import Limits, read_limits
from portagpu.facts.host.sensors import Sensors, read_sensors
from portagpu.facts.host.tree import Tree, as_tree, size_bytes, to_int

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


# PCI Express Base Specification: extended capabilities begin after the 256 bytes that PCI has;
# id and next offset are in the first word, ACS is 0x000D with its control word at 6, whose bits 2,
# 3 and 5 send requests and completions between peers to the root complex or block them.
_EXTENDED: Final = 0x100
_ACS: Final = 0x000D
_ACS_CONTROL: Final = 6
_REDIRECTS: Final = 1 << 2 | 1 << 3 | 1 << 5
# how many extended capabilities fit into configuration space: a loop among them ends there
_MAX_CAPABILITIES: Final = (4096 - 256) // 8

_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PARAMETERS: Final = re.compile(
    r"(?:amd_|intel_)?iommu(?:\.\w+)?|pci|pcie_acs_override|numa_balancing|transparent_hugepage"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """None is unknown.

    ``iommu`` is "off", "passthrough" (devices use physical addresses) or "translated", of the GPUs
    where each has a group of its own. ``parameters`` are those of the kernel's command line that
    concern the IOMMU, PCI, NUMA and huge pages. ``acs_redirects`` are the bridges above GPUs that
    send traffic between peers to the CPU; it is None where one may not be read, as by other users
    than root. ``huge_pages`` is the mode of transparent ones.
    """

    iommu: str | None = None
    numa_balancing: bool | None = None
    huge_pages: str | None = None
    acs_redirects: tuple[str, ...] | None = None
    parameters: tuple[str, ...] = ()


def read_settings(tree: Tree, gpus: Iterable[str] = ()) -> Settings:
    """The settings below ``tree``; ``gpus`` are the PCI addresses of the GPUs."""
    addresses = tuple(gpus)
    words = (tree.text("proc/cmdline") or "").split()
    balancing = tree.integer("proc/sys/kernel/numa_balancing")
    modes = re.search(r"\[(\w+)\]", tree.text("sys/kernel/mm/transparent_hugepage/enabled") or "")
    return Settings(
        iommu=_iommu(tree, addresses, words),
        numa_balancing=balancing > 0 if balancing is not None else None,
        huge_pages=modes.group(1) if modes else None,
        acs_redirects=_acs(tree, addresses),
        parameters=tuple(word for word in words if is_parameter(word)),
    )


def is_parameter(word: str) -> bool:
    """Whether a word of the kernel's command line is one of these settings."""
    return _PARAMETERS.fullmatch(word.split("=")[0]) is not None


def _iommu(tree: Tree, gpus: tuple[str, ...], words: list[str]) -> str | None:
    kinds = {
        tree.text(f"{PCI_DEVICES}/{address}/iommu_group/type")
        for address in gpus
        if tree.exists(f"{PCI_DEVICES}/{address}/iommu_group")
    }
    if kinds and None not in kinds:
        return "passthrough" if kinds == {"identity"} else "translated"
    if tree.names("sys/class/iommu"):
        return "passthrough" if {"iommu=pt", "iommu.passthrough=1"} & set(words) else None
    return "off" if tree.exists("sys/class/iommu") else None


def _acs(tree: Tree, gpus: tuple[str, ...]) -> tuple[str, ...] | None:
    """Bridges above the GPUs that redirect; None without bridges, or if one cannot be read."""
    bridges = sorted({bridge for address in gpus for bridge in _bridges(tree, address)})
    controls = {
        bridge: _acs_control(tree.data(f"{PCI_DEVICES}/{bridge}/config")) for bridge in bridges
    }
    if not bridges or None in controls.values():
        return None
    return tuple(bridge for bridge, control in controls.items() if control and control & _REDIRECTS)


def _bridges(tree: Tree, address: str) -> list[str]:
    """The addresses between the root and the device, from the link in sysfs."""
    parts = tree.link_parts(f"{PCI_DEVICES}/{address}")
    return [part for part in parts[:-1] if _ADDRESS.fullmatch(part)]


def _acs_control(config: bytes | None) -> int | None:
    """The control word of ACS; 0 for a device without it, None if it cannot be read."""
    if config is None or len(config) <= _EXTENDED:
        return None
    offset = _EXTENDED
    for _ in range(_MAX_CAPABILITIES):
        if offset + 8 > len(config):
            return None
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS:
            start = offset + _ACS_CONTROL
            return int.from_bytes(config[start : start + 2], "little")
        offset = header >> 20
        if offset < _EXTENDED:
            return 0
    return None


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
