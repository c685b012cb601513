"""The CPU: identity, cores, caches, units and NUMA nodes, from procfs and sysfs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from portagpu.base.text import one_line
from portagpu.facts.host import features
from portagpu.facts.host.tree import MOST_CPUS, Tree, cpu_list, parse_fields, size_bytes, to_int

_CPUS: Final = "sys/devices/system/cpu"
_NODES: Final = "sys/devices/system/node"

# Linux arch/arm64/include/asm/cputype.h: implementer, and part by implementer
_ARM_VENDORS: Final = {
    0x41: "ARM",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x50: "APM",
    0x51: "Qualcomm",
    0x61: "Apple",
    0xC0: "Ampere",
}
_ARM_PARTS: Final = {
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD8E): "Neoverse-N3",
    (0x46, 0x001): "A64FX",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1A",
}
_ARCH_OF_MACHINE: Final = {
    "x86_64": "x86-64",
    "amd64": "x86-64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
}


@dataclass(frozen=True, slots=True)
class Cache:
    """Caches of one kind: ``instances`` of ``size_bytes`` each, shared by ``shared_by_cpus``."""

    level: int
    kind: str
    size_bytes: int
    instances: int
    shared_by_cpus: int


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node, its logical CPUs (none for memory-only nodes) and its memory."""

    index: int
    cpus: tuple[int, ...]
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Cpu:
    """The machine's CPUs; None is unknown.

    ``arch`` is "x86-64" or "aarch64" (another machine keeps the kernel's name); ``vendor`` is as
    the kernel prints it ("AuthenticAMD") or the ARM implementer's name; ``affinity_cpus`` counts
    the logical CPUs that this process may run on, before any quota.
    """

    arch: str | None
    vendor: str | None
    model_name: str | None
    sockets: int | None
    physical_cores: int | None
    logical_cpus: int | None
    affinity_cpus: int | None
    x86_64_level: int | None
    vector_units: tuple[str, ...]
    vector_bits: int | None
    matrix_units: tuple[str, ...]
    caches: tuple[Cache, ...]
    numa_nodes: tuple[NumaNode, ...]


def read_cpu(tree: Tree) -> Cpu:
    """Read the CPU's facts; anything that is missing or damaged is None or empty."""
    texts = (tree.text("proc/cpuinfo") or "").split("\n\n", MOST_CPUS)
    blocks = [parse_fields(text) for text in texts[:MOST_CPUS]]
    first = next((b for b in blocks if "processor" in b), {})
    flags = frozenset((first.get("flags") or first.get("Features") or "").split())
    scalable = tree.integer("proc/sys/abi/sve_default_vector_length")
    online = cpu_list(tree.text(f"{_CPUS}/online"))
    logical = len(online) if online else sum("processor" in b for b in blocks) or None
    cpus = online or tuple(range(logical or 0))
    arch = _arch(tree, first)
    return Cpu(
        arch=arch,
        vendor=_vendor(first),
        model_name=_model_name(tree, first),
        sockets=_sockets(tree, cpus, blocks),
        physical_cores=_physical_cores(tree, cpus, blocks),
        logical_cpus=logical,
        affinity_cpus=_affinity(tree),
        x86_64_level=features.x86_64_level(flags) if arch == "x86-64" else None,
        vector_units=features.vector_units(flags),
        vector_bits=features.vector_bits(flags, scalable * 8 if scalable else None),
        matrix_units=features.matrix_units(flags),
        caches=_caches(tree, cpus),
        numa_nodes=_numa_nodes(tree),
    )


def read_machine(tree: Tree) -> str | None:
    """The kernel's name of the machine ("x86_64"); None if the tree does not have it."""
    # /proc/sys/kernel/arch exists since Linux 6.1
    return tree.text("proc/sys/kernel/arch") or (os.uname().machine if tree.is_live else None)


def _arch(tree: Tree, first: dict[str, str]) -> str | None:
    machine = read_machine(tree)
    if machine is not None:
        return _ARCH_OF_MACHINE.get(machine, machine)
    if "lm" in first.get("flags", "").split():
        return "x86-64"
    return "aarch64" if first.get("CPU architecture") == "8" else None


def _vendor(first: dict[str, str]) -> str | None:
    implementer = to_int(first.get("CPU implementer"))
    return first.get("vendor_id") or _ARM_VENDORS.get(-1 if implementer is None else implementer)


def _model_name(tree: Tree, first: dict[str, str]) -> str | None:
    if first.get("model name"):
        return one_line(first["model name"])
    implementer, part = to_int(first.get("CPU implementer")), to_int(first.get("CPU part"))
    if implementer is None or part is None:
        return None
    return _ARM_PARTS.get((implementer, part))


def _affinity(tree: Tree) -> int | None:
    for path in ("proc/thread-self/status", "proc/self/status"):
        allowed = cpu_list(tree.fields(path).get("Cpus_allowed_list"))
        if allowed:
            return len(allowed)
    return len(os.sched_getaffinity(0)) if tree.is_live else None


def _sockets(tree: Tree, cpus: tuple[int, ...], blocks: list[dict[str, str]]) -> int | None:
    packages = {tree.integer(f"{_CPUS}/cpu{cpu}/topology/physical_package_id") for cpu in cpus}
    # -1 is the kernel's "firmware does not say"
    packages -= {None, -1}
    return len(packages) or len({b["physical id"] for b in blocks if "physical id" in b}) or None


def _physical_cores(tree: Tree, cpus: tuple[int, ...], blocks: list[dict[str, str]]) -> int | None:
    siblings = {tree.text(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus}
    siblings -= {None, ""}
    if siblings:
        return len(siblings)
    cores = {
        (b["physical id"], b["core id"]) for b in blocks if {"physical id", "core id"} <= b.keys()
    }
    return len(cores) or None


def _caches(tree: Tree, cpus: tuple[int, ...]) -> tuple[Cache, ...]:
    shared: dict[tuple[int, str, int], set[str]] = {}
    for cpu in cpus:
        folder = f"{_CPUS}/cpu{cpu}/cache"
        for index in tree.names(folder, r"index\d{1,9}"):
            level = tree.integer(f"{folder}/{index}/level")
            kind = tree.text(f"{folder}/{index}/type")
            size = size_bytes(tree.text(f"{folder}/{index}/size"))
            users = tree.text(f"{folder}/{index}/shared_cpu_list")
            if level is not None and kind and size and users:
                shared.setdefault((level, kind.lower(), size), set()).add(users)
    return tuple(
        Cache(level, kind, size, len(users), max(len(cpu_list(u) or ()) for u in users))
        for (level, kind, size), users in sorted(shared.items())
    )


def _numa_nodes(tree: Tree) -> tuple[NumaNode, ...]:
    nodes: list[NumaNode] = []
    for name in tree.names(_NODES, r"node\d{1,9}"):
        index = int(name.removeprefix("node"))
        memory = tree.fields(f"{_NODES}/{name}/meminfo").get(f"Node {index} MemTotal")
        cpus = cpu_list(tree.text(f"{_NODES}/{name}/cpulist")) or ()
        nodes.append(NumaNode(index, cpus, size_bytes(memory)))
    return tuple(nodes)
