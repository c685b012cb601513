"""How many blocks of a kernel a unit holds: the two rules by which vendors count it.

Which one an architecture follows is its fact ``exec.occupancy_rule``; every number in them is a
fact too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from portagpu.devices.sizing.kernel import int_fact, round_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from portagpu.devices.sizing.kernel import Kernel
    from portagpu.facts.targets import Target


class Resource(StrEnum):
    """A resource of a unit that can limit its blocks."""

    WAVES = "waves"
    REGISTERS = "registers"
    SCALAR_REGISTERS = "scalar registers"
    SHARED_MEMORY = "shared memory"
    BLOCKS = "block slots"
    BARRIERS = "barriers"


@dataclass(frozen=True, slots=True)
class Limit:
    """How many blocks of the kernel one resource has room for in a unit.

    ``takes`` is what ``of`` takes of it and ``has`` what there is (None: not one number), both in
    ``unit``; ``key`` is the fact that says what there is.
    """

    resource: Resource
    blocks: int
    takes: int
    has: int | None
    unit: str
    of: str
    key: str


@dataclass(frozen=True, slots=True)
class WavesPerSimd:
    """Waves of one SIMD by two rules; ``most`` is the most that it holds.

    ``compiler`` equals LLVM's "Occupancy", which rounds the waves of the busiest SIMD up and does
    not round shared memory; ``hardware`` is the same with shared memory rounded up to what is
    allocated.
    """

    compiler: int
    hardware: int
    most: int


@dataclass(frozen=True, slots=True)
class Residency:
    """Limits in the order in which they are shown, and what a block is allocated.

    ``allocated_registers`` are those of a block, or of a wave where registers are counted by wave.
    """

    limits: tuple[Limit, ...]
    max_waves: int
    allocated_registers: int
    allocated_shared_memory: int
    per_simd: WavesPerSimd | None = None


# unit of the numbers of a limit, what takes them, and the fact that says how many there are
_WAVES: Final = ("waves", "a block", "exec.max_waves_per_unit")
_REGISTERS: Final = ("registers", "a block", "register.file_per_unit")
_VECTOR: Final = ("VGPRs of a SIMD", "a wave", "register.entries_per_simd")
_SCALAR: Final = ("SGPRs", "a wave", "register.scalar_steps")
_MEMORY: Final = ("B", "a block", "shared_memory.per_unit")
_BLOCKS: Final = ("blocks", "a block", "exec.max_blocks_per_unit")
_BARRIERS: Final = ("barriers", "a block", "exec.max_barriers_per_unit")


def blocks_per_unit(target: Target, kernel: Kernel) -> Residency:
    """Blocks a multiprocessor, as cudaOccMaxActiveBlocksPerMultiprocessor counts them.

    Source: cuda_occupancy.h (N-OCC). Registers are allocated to warps inside one of the unit's
    sub-partitions, and a block's are checked as if its warps filled all of them.
    """
    slots = int_fact(target, "exec.max_waves_per_unit")
    partitions = int_fact(target, "exec.simds_per_unit")
    file = int_fact(target, "register.file_per_unit")
    granularity = int_fact(target, "register.alloc_granularity")
    per_wave = round_up(kernel.registers * kernel.wave_size, granularity)
    checked = per_wave * round_up(kernel.waves, partitions)
    fits = checked <= int_fact(target, "register.max_per_block")
    by_registers = file // partitions // per_wave * partitions // kernel.waves if fits else 0
    memory = round_up(
        kernel.shared_memory + int_fact(target, "shared_memory.reserved_per_block"),
        int_fact(target, "shared_memory.alloc_granularity"),
    )
    rooms = int_fact(target, "exec.max_blocks_per_unit")
    taken = per_wave * kernel.waves
    limits = [
        Limit(Resource.WAVES, slots // kernel.waves, kernel.waves, slots, *_WAVES),
        Limit(Resource.REGISTERS, by_registers, taken, file, *_REGISTERS),
        *_memory_limit(memory, _carved_out(target, kernel, memory)),
        Limit(Resource.BLOCKS, rooms, 1, rooms, *_BLOCKS),
    ]
    have = target.value("exec.max_barriers_per_unit")
    if have is not None and kernel.barriers:
        rooms = have // kernel.barriers
        limits.append(Limit(Resource.BARRIERS, rooms, kernel.barriers, have, *_BARRIERS))
    return Residency(tuple(limits), slots, taken, memory)


def _carved_out(target: Target, kernel: Kernel, allocated: int) -> int:
    """A unit's shared memory in bytes: the smallest carve-out that is enough, or all of it."""
    have = int_fact(target, "shared_memory.per_unit")
    if kernel.carveout is None:
        return have
    wanted = max(have * kernel.carveout // 100, allocated)
    offered: tuple[int, ...] = target.value("shared_memory.carveouts")
    return min(size * 1024 for size in offered if size * 1024 >= wanted)


def waves_per_simd(target: Target, kernel: Kernel) -> Residency:
    """Waves a SIMD as LLVM counts them, and whole blocks of a unit as the vendor's guide does.

    Sources: AMDGPUSubtarget.cpp and GCNSubtarget.cpp (L-ISA, L-LLVM22) for the waves; blocks are
    those that fit whole, floor(waves x SIMDs / waves of a block), and shared memory is rounded up
    to what is allocated (L-LDS). Entries and granularity of the register file are stated at the
    default wave size; a wave of twice as many threads has half of them.
    """
    halves = int_fact(target, "exec.compute_units_per_unit") if kernel.cu_mode else 1
    simds = int_fact(target, "exec.simds_per_unit") // halves
    most = int_fact(target, "exec.max_waves_per_simd")
    slots = most * simds
    taken, entries = _vector_registers(target, kernel)
    by_scalars = _waves_by_scalar_registers(target, kernel)
    # a block of one wave needs no barrier, and barriers are what there is one of for each block
    several = int_fact(target, "exec.max_blocks_per_unit") // halves
    rooms = slots if kernel.waves == 1 else several
    memory = round_up(kernel.shared_memory, int_fact(target, "shared_memory.alloc_granularity"))
    have = int_fact(target, "shared_memory.per_unit") // halves

    def waves(bytes_a_block: int) -> int:
        blocks = min(slots // kernel.waves, rooms)
        if bytes_a_block:
            blocks = min(blocks, max(1, have // bytes_a_block))
        held = -(-blocks * kernel.waves // simds)
        return min(most, entries // taken, by_scalars or most, held)

    by_registers = entries // taken * simds // kernel.waves
    limits = [
        Limit(Resource.WAVES, slots // kernel.waves, kernel.waves, slots, *_WAVES),
        Limit(Resource.REGISTERS, by_registers, taken, entries, *_VECTOR),
        *_memory_limit(memory, have),
        Limit(Resource.BLOCKS, rooms, 1, rooms, *_BLOCKS),
    ]
    if by_scalars is not None:
        blocks = by_scalars * simds // kernel.waves
        scalars = kernel.scalar_registers
        limits.append(Limit(Resource.SCALAR_REGISTERS, blocks, scalars, None, *_SCALAR))
    per_simd = WavesPerSimd(waves(kernel.shared_memory), waves(memory), most)
    return Residency(tuple(limits), slots, taken, memory, per_simd)


def _vector_registers(target: Target, kernel: Kernel) -> tuple[int, int]:
    """VGPRs that a wave is given of its SIMD's file, and how many the file has."""
    used = kernel.registers
    if kernel.accumulators and target.value("register.accumulator_file") == "separate":
        used = max(used, kernel.accumulators)
    elif kernel.accumulators:
        aligned = round_up(used, int_fact(target, "register.accumulator_alignment"))
        used = aligned + kernel.accumulators
    narrow = int_fact(target, "exec.wave_size_default")
    entries = int_fact(target, "register.entries_per_simd") * narrow // kernel.wave_size
    granularity = int_fact(target, "register.alloc_granularity") * narrow // kernel.wave_size
    return round_up(used, granularity), entries


def _waves_by_scalar_registers(target: Target, kernel: Kernel) -> int | None:
    """Waves of a SIMD by scalar registers; None where they do not limit it."""
    steps: tuple[int, ...] = target.value("register.scalar_steps") or ()
    exceeded = sum(1 for step in steps if kernel.scalar_registers > step)
    if not exceeded:
        return None
    return int_fact(target, "register.scalar_least_waves") + len(steps) - exceeded


def _memory_limit(allocated: int, have: int) -> tuple[Limit, ...]:
    """The limit by shared memory; empty if a block takes none."""
    if not allocated:
        return ()
    return (Limit(Resource.SHARED_MEMORY, have // allocated, allocated, have, *_MEMORY),)


RULES: Final[Mapping[str, Callable[[Target, Kernel], Residency]]] = MappingProxyType(
    {"blocks-per-unit": blocks_per_unit, "waves-per-simd": waves_per_simd}
)
"""The rules by their name in ``exec.occupancy_rule``."""
