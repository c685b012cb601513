"""What a kernel asks of a unit, and how many of its blocks the unit holds: the two rules by which
vendors count them.

Which rule an architecture follows is its fact ``exec.occupancy_rule``; every number in them is a
fact too.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import LimitExceeded, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from portagpu.facts.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One block of a kernel: what it takes of a unit, and how the device is set up.

    ``registers`` are 32-bit registers a thread (architectural VGPRs where there are accumulation
    VGPRs, which are ``accumulators``). ``scalar_registers`` are those of a wave with VCC,
    FLAT_SCRATCH and XNACK; 0 where they are not known or not counted. ``shared_memory`` is static
    and dynamic, in bytes a block, without what a driver reserves.
    """

    threads: int
    registers: int
    shared_memory: int = 0
    accumulators: int = 0
    scalar_registers: int = 0
    barriers: int = 1
    opt_in: bool = True
    """Whether the kernel asked for more shared memory than a block has by default."""
    carveout: int | None = None
    """Shared memory in percent of the unit's maximum; None: as much as the device gives."""
    wave_size: int
    cu_mode: bool = False
    """Whether a block keeps to one compute unit where a unit has several."""

    @property
    def waves(self) -> int:
        """Warps or wavefronts of a block; the last may be partly idle."""
        return -(-self.threads // self.wave_size)

    @property
    def idle_lanes(self) -> int:
        """Lanes of the last wave that no thread runs on."""
        return self.waves * self.wave_size - self.threads


def int_fact(target: Target, key: str) -> int:
    """The fact of that key, an integer. Raises Unsupported where this architecture has none."""
    value = target.value(key)
    if not isinstance(value, int):
        raise Unsupported(f"{target.arch} has no fact {key}, without which this is not known")
    return value


def round_up(value: int, multiple: int) -> int:
    """The least multiple that is at least ``value``."""
    return -(-value // multiple) * multiple


def check_at_most(target: Target, key: str, asked: int, what: str) -> None:
    """Raise LimitExceeded where ``asked`` of ``what`` is more than the fact of that key.

    Nothing is checked where the fact is not known.
    """
    fact = target.fact(key)
    if fact is None or not isinstance(fact.value, int) or asked <= fact.value:
        return
    source = ", ".join(fact.source) or str(fact.confidence)
    raise LimitExceeded(
        f"{asked} {what} are more than the {fact.value} that {target.arch} has "
        f"({key}, source {source})",
        limit=key,
        most=fact.value,
        source=fact.source,
    )


def to_int(name: str, value: object, least: int) -> int:
    """``value`` as an int of at least ``least``; TypeError or ValueError names it otherwise."""
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not bool")
    if found < least:
        raise ValueError(f"{name} is {found}; it must be at least {least}")
    return found


def check_kernel(target: Target, kernel: Kernel) -> None:
    """Raise LimitExceeded or ValueError for more than one block or thread can have."""
    check_at_most(target, "exec.max_threads_per_block", kernel.threads, "threads a block")
    _check_registers(target, kernel)
    memory = "per_block_optin" if kernel.opt_in else "per_block_default"
    check_at_most(
        target, f"shared_memory.{memory}", kernel.shared_memory, "bytes of shared memory a block"
    )
    check_at_most(target, "exec.max_barriers_per_unit", kernel.barriers, "barriers a block")
    _check_modes(target, kernel)


def largest_registers(target: Target) -> int:
    """The most registers of a thread: without accumulation registers where they share a file."""
    most = int_fact(target, "register.max_per_thread")
    if target.value("register.accumulator_file") == "unified":
        most -= int_fact(target, "register.max_accumulators_per_thread")
    return most


def _check_registers(target: Target, kernel: Kernel) -> None:
    check_at_most(target, "register.max_per_thread", kernel.registers, "registers a thread")
    check_at_most(
        target, "register.max_scalar_per_thread", kernel.scalar_registers, "scalar registers a wave"
    )
    accumulators = "register.max_accumulators_per_thread"
    if kernel.accumulators and target.fact(accumulators) is None:
        raise ValueError(f"{target.arch} has no accumulation registers")
    check_at_most(target, accumulators, kernel.accumulators, "accumulation registers a thread")
    own = largest_registers(target)
    if kernel.registers > own:
        fact = target.facts["register.max_per_thread"]
        raise LimitExceeded(
            f"{kernel.registers} architectural registers a thread are more than the {own} that "
            f"{target.arch} has next to its accumulation registers "
            f"({fact.key}, source {', '.join(fact.source)})",
            limit=fact.key,
            most=own,
            source=fact.source,
        )
    if kernel.scalar_registers and target.fact("register.max_scalar_per_thread") is None:
        raise ValueError(f"{target.arch} does not count scalar registers")


def _check_modes(target: Target, kernel: Kernel) -> None:
    sizes = target.value("exec.wave_sizes_supported") or (target.arch.warp_size,)
    if kernel.wave_size not in sizes:
        had = " or ".join(str(size) for size in sizes)
        raise ValueError(f"{target.arch} has no waves of {kernel.wave_size} threads; it has {had}")
    if kernel.carveout is not None:
        if target.fact("shared_memory.carveouts") is None:
            raise ValueError(f"{target.arch} has no carve-out: its shared memory is its own")
        if not 0 <= kernel.carveout <= 100:
            raise ValueError(f"carveout is {kernel.carveout}; it must be 0 to 100 percent")
    if kernel.cu_mode and target.fact("exec.compute_units_per_unit") is None:
        raise ValueError(f"{target.arch} has no CU mode: its unit is one compute unit")


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
