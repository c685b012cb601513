"""How many blocks of a kernel a unit holds: the two rules by which vendors count it.

Which one an architecture follows is its fact ``exec.occupancy_rule``; every number in them is a
fact too.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from portagpu.sizing.kernel import number, round_up
from portagpu.sizing.residency import Limit, Residency, Resource, WavesPerSimd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from portagpu.sizing.kernel import Kernel
    from portagpu.target import Target


def blocks_per_unit(target: Target, kernel: Kernel) -> Residency:
    """Blocks a multiprocessor, as cudaOccMaxActiveBlocksPerMultiprocessor counts them.

    Source: cuda_occupancy.h (N-OCC). Registers are allocated to warps inside one of the unit's
    sub-partitions, and a block's are checked as if its warps filled all of them.
    """
    slots = number(target, "exec.max_waves_per_unit")
    partitions = number(target, "exec.simds_per_unit")
    file = number(target, "register.file_per_unit")
    per_wave = round_up(
        kernel.registers * kernel.wave_size, number(target, "register.alloc_granularity")
    )
    checked = per_wave * round_up(kernel.waves, partitions)
    fits = checked <= number(target, "register.max_per_block")
    waves = file // partitions // per_wave * partitions
    memory = round_up(
        kernel.shared_memory + number(target, "shared_memory.reserved_per_block"),
        number(target, "shared_memory.alloc_granularity"),
    )
    have = _carved_out(target, kernel, memory)
    limits = [
        Limit(
            Resource.WAVES,
            slots // kernel.waves,
            kernel.waves,
            slots,
            "waves",
            "a block",
            "exec.max_waves_per_unit",
        ),
        Limit(
            Resource.REGISTERS,
            waves // kernel.waves if fits else 0,
            per_wave * kernel.waves,
            file,
            "registers",
            "a block",
            "register.file_per_unit",
        ),
        *_memory_limit(memory, have),
        _block_limit(number(target, "exec.max_blocks_per_unit")),
    ]
    barriers = target.value("exec.max_barriers_per_unit")
    if barriers is not None and kernel.barriers:
        limits.append(
            Limit(
                Resource.BARRIERS,
                barriers // kernel.barriers,
                kernel.barriers,
                barriers,
                "barriers",
                "a block",
                "exec.max_barriers_per_unit",
            )
        )
    return Residency(tuple(limits), slots, per_wave * kernel.waves, memory)


def _carved_out(target: Target, kernel: Kernel, allocated: int) -> int:
    """Bytes of shared memory that a unit sets aside: of its carve-outs the least that is enough."""
    have = number(target, "shared_memory.per_unit")
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
    halves = number(target, "exec.compute_units_per_unit") if kernel.cu_mode else 1
    simds = number(target, "exec.simds_per_unit") // halves
    most = number(target, "exec.max_waves_per_simd")
    slots = most * simds
    narrow = number(target, "exec.wave_size_default")
    entries = number(target, "register.entries_per_simd") * narrow // kernel.wave_size
    granularity = number(target, "register.alloc_granularity") * narrow // kernel.wave_size
    taken = round_up(_vector_registers(target, kernel), granularity)
    by_registers = min(most, entries // taken)
    by_scalars = _by_scalar_registers(target, kernel, most)
    # a block of one wave needs no barrier, and barriers are what there is one of for each block
    several = number(target, "exec.max_blocks_per_unit") // halves
    rooms = slots if kernel.waves == 1 else several
    memory = round_up(kernel.shared_memory, number(target, "shared_memory.alloc_granularity"))
    have = number(target, "shared_memory.per_unit") // halves

    def waves(bytes_a_block: int) -> int:
        blocks = min(slots // kernel.waves, rooms)
        if bytes_a_block:
            blocks = min(blocks, max(1, have // bytes_a_block))
        held = min(most, -(-blocks * kernel.waves // simds))
        return min(by_registers, by_scalars, held)

    limits = [
        Limit(
            Resource.WAVES,
            slots // kernel.waves,
            kernel.waves,
            slots,
            "waves",
            "a block",
            "exec.max_waves_per_simd",
        ),
        Limit(
            Resource.REGISTERS,
            by_registers * simds // kernel.waves,
            taken,
            entries,
            "VGPRs of a SIMD",
            "a wave",
            "register.entries_per_simd",
        ),
        *_memory_limit(memory, have),
        _block_limit(rooms),
    ]
    if target.fact("register.scalar_steps") is not None and kernel.scalar_registers:
        limits.insert(
            2,
            Limit(
                Resource.SCALAR_REGISTERS,
                by_scalars * simds // kernel.waves,
                kernel.scalar_registers,
                None,
                "SGPRs",
                "a wave",
                "register.scalar_steps",
            ),
        )
    per_simd = WavesPerSimd(waves(kernel.shared_memory), waves(memory), most)
    return Residency(tuple(limits), slots, taken, memory, per_simd)


def _vector_registers(target: Target, kernel: Kernel) -> int:
    """VGPRs that a wave takes of its SIMD's file."""
    if not kernel.accumulators:
        return kernel.registers
    if target.value("register.accumulator_file") == "separate":
        return max(kernel.registers, kernel.accumulators)
    aligned = round_up(kernel.registers, number(target, "register.accumulator_alignment"))
    return aligned + kernel.accumulators


def _by_scalar_registers(target: Target, kernel: Kernel, most: int) -> int:
    steps = target.value("register.scalar_steps")
    if steps is None:
        return most
    kept = sum(1 for step in steps if kernel.scalar_registers <= step)
    return number(target, "register.scalar_least_waves") + kept


def _memory_limit(allocated: int, have: int) -> tuple[Limit, ...]:
    """The limit by shared memory; none where a block takes nothing."""
    if not allocated:
        return ()
    return (
        Limit(
            Resource.SHARED_MEMORY,
            have // allocated,
            allocated,
            have,
            "B",
            "a block",
            "shared_memory.per_unit",
        ),
    )


def _block_limit(rooms: int) -> Limit:
    return Limit(Resource.BLOCKS, rooms, 1, rooms, "blocks", "a block", "exec.max_blocks_per_unit")


RULES: Final[Mapping[str, Callable[[Target, Kernel], Residency]]] = MappingProxyType(
    {"blocks-per-unit": blocks_per_unit, "waves-per-simd": waves_per_simd}
)
"""The rules by their name in ``exec.occupancy_rule``."""
