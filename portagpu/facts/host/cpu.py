"""The CPU: identity, cores, caches, units and NUMA nodes, from procfs and sysfs.

Names of flags: Linux ``arch/x86/include/asm/cpufeatures.h`` and
``Documentation/arch/arm64/elf_hwcaps.rst``. x86-64 levels: x86-64 psABI, section 3.1.1, in the
spelling of ``/proc/cpuinfo`` (``pni`` is SSE3, ``abm`` is LZCNT, ``xsave`` stands for OSXSAVE).
Register widths belong to the instruction sets themselves; the kernel states SVE's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from portagpu.base.text import one_line
from portagpu.facts.host.tree import MAX_CPUS, Tree, cpu_list, parse_fields, size_bytes, to_int

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
    texts = (tree.text("proc/cpuinfo") or "").split("\n\n", MAX_CPUS)
    blocks = [parse_fields(text) for text in texts[:MAX_CPUS]]
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
        x86_64_level=x86_64_level(flags) if arch == "x86-64" else None,
        vector_units=vector_units(flags),
        vector_bits=vector_bits(flags, scalable * 8 if scalable else None),
        matrix_units=matrix_units(flags),
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


# flag -> name, register width in bits (None where the hardware chooses it)
_VECTOR: Final[dict[str, tuple[str, int | None]]] = {
    "sse4_2": ("SSE4.2", 128),
    "avx": ("AVX", 256),
    "f16c": ("F16C", 256),
    "fma": ("FMA", 256),
    "avx2": ("AVX2", 256),
    "avx_vnni": ("AVX-VNNI", 256),
    "avx_vnni_int8": ("AVX-VNNI-INT8", 256),
    "avx_ne_convert": ("AVX-NE-CONVERT", 256),
    "avx512f": ("AVX-512F", 512),
    "avx512bw": ("AVX-512BW", 512),
    "avx512cd": ("AVX-512CD", 512),
    "avx512dq": ("AVX-512DQ", 512),
    "avx512vl": ("AVX-512VL", 512),
    "avx512ifma": ("AVX-512IFMA", 512),
    "avx512vbmi": ("AVX-512VBMI", 512),
    "avx512_vbmi2": ("AVX-512VBMI2", 512),
    "avx512_vnni": ("AVX-512VNNI", 512),
    "avx512_bf16": ("AVX-512BF16", 512),
    "avx512_fp16": ("AVX-512FP16", 512),
    "asimd": ("NEON", 128),
    "asimdhp": ("NEON-FP16", 128),
    "asimddp": ("NEON-DOTPROD", 128),
    "bf16": ("BF16", 128),
    "i8mm": ("I8MM", 128),
    "sve": ("SVE", None),
    "sve2": ("SVE2", None),
    "svebf16": ("SVE-BF16", None),
    "svei8mm": ("SVE-I8MM", None),
}
_MATRIX: Final[dict[str, str]] = {
    "amx_tile": "AMX-TILE",
    "amx_int8": "AMX-INT8",
    "amx_bf16": "AMX-BF16",
    "amx_fp16": "AMX-FP16",
    "amx_complex": "AMX-COMPLEX",
    "sme": "SME",
    "sme2": "SME2",
    "smei8i32": "SME-I8I32",
    "smeb16f32": "SME-B16F32",
    "smef16f32": "SME-F16F32",
    "smef32f32": "SME-F32F32",
    "smef64f64": "SME-F64F64",
}
_X86_64_LEVELS: Final[tuple[tuple[int, str], ...]] = (
    (1, "cmov cx8 fpu fxsr lm mmx sse sse2 syscall"),
    (2, "cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3"),
    (3, "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"),
    (4, "avx512bw avx512cd avx512dq avx512f avx512vl"),
)


def vector_units(flags: frozenset[str]) -> tuple[str, ...]:
    """Names of the vector instruction sets among ``flags``."""
    return tuple(name for flag, (name, _) in _VECTOR.items() if flag in flags)


def matrix_units(flags: frozenset[str]) -> tuple[str, ...]:
    """Names of the matrix instruction sets among ``flags``."""
    return tuple(name for flag, name in _MATRIX.items() if flag in flags)


def vector_bits(flags: frozenset[str], scalable_bits: int | None) -> int | None:
    """The widest vector register in bits; ``scalable_bits`` is the kernel's figure for SVE."""
    if "sve" in flags:
        return scalable_bits
    return max(
        (bits for flag, (_, bits) in _VECTOR.items() if flag in flags and bits), default=None
    )


def x86_64_level(flags: frozenset[str]) -> int | None:
    """The x86-64 microarchitecture level (1 to 4); None where even the baseline is not shown."""
    level = None
    for number, needed in _X86_64_LEVELS:
        if not flags.issuperset(needed.split()):
            break
        level = number
    return level
