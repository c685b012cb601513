"""Occupancy: how much of a unit a kernel fills, what limits it, what the next step needs, in words.

>>> from portagpu.devices.sizing import occupancy
>>> found = occupancy("sm_90", 256, 64, 16384)
>>> found.blocks, found.waves, found.limited_by
(4, 32, ('registers',))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from portagpu.base.errors import Unsupported
from portagpu.devices.sizing.rules import (
    RULES,
    Kernel,
    check_kernel,
    int_fact,
    largest_registers,
    to_int,
)
from portagpu.facts.arch import Arch
from portagpu.facts.targets import Target, load_architecture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from portagpu.devices.sizing.rules import Limit, Residency, WavesPerSimd


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """The result of :func:`occupancy` for one unit: a multiprocessor, compute unit or WGP.

    A kernel cannot be launched where a unit holds no block of it.
    """

    target: Target
    kernel: Kernel
    residency: Residency

    @property
    def blocks(self) -> int:
        """Whole blocks that a unit holds at once."""
        return min(limit.blocks for limit in self.residency.limits)

    @property
    def waves(self) -> int:
        """Warps or wavefronts of those blocks."""
        return self.blocks * self.kernel.waves

    @property
    def max_waves(self) -> int:
        """The most warps or wavefronts that a unit holds."""
        return self.residency.max_waves

    @property
    def fraction(self) -> float:
        """``waves`` as a share of ``max_waves``: 0 to 1."""
        return self.waves / self.max_waves

    @property
    def limits(self) -> tuple[Limit, ...]:
        """How many blocks each resource has room for."""
        return self.residency.limits

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources with room for the fewest blocks."""
        blocks = self.blocks
        return tuple(str(limit.resource) for limit in self.limits if limit.blocks == blocks)

    @property
    def per_simd(self) -> WavesPerSimd | None:
        """Waves a SIMD by the compiler's and the hardware's rule; None without such a rule."""
        return self.residency.per_simd

    def next_steps(self) -> tuple[Step, ...]:
        """The smallest changes that each fit more waves in a unit; empty where it is full."""
        return find_steps(self)

    def explain(self) -> tuple[str, ...]:
        """The kernel, its occupancy and the next steps as lines of text."""
        return occupancy_lines(self)


def occupancy(
    arch: str | Arch | Target,
    threads: int,
    registers: int,
    shared_memory: int = 0,
    *,
    accumulators: int = 0,
    scalar_registers: int = 0,
    barriers: int = 1,
    opt_in: bool = True,
    carveout: int | None = None,
    wave_size: int | None = None,
    cu_mode: bool = False,
) -> Occupancy:
    """How many blocks of a kernel a unit of ``arch`` holds at once, from facts alone.

    The result equals cuda_occupancy.h of the CUDA toolkit (``blocks``, every limit), or LLVM's
    "Occupancy" (``per_simd.compiler``), by the rule that the architecture's facts name.

    :param arch: an architecture or its name ("sm_90"), or a target.
    :param threads: threads a block.
    :param registers: 32-bit registers a thread, without ``accumulators``.
    :param shared_memory: bytes a block, static and dynamic.
    :param accumulators: accumulation registers a thread.
    :param scalar_registers: scalar registers a wave; 0 where they are not counted.
    :param barriers: named barriers a block.
    :param opt_in: whether the kernel asked for more shared memory than the default.
    :param carveout: shared memory in percent of the unit's maximum; None for what the device gives.
    :param wave_size: threads a wave; None for the architecture's default.
    :param cu_mode: whether a block keeps to one compute unit of a WGP.
    :returns: blocks and waves a unit, and what limits them.
    :raises TargetNotFound: for an architecture without facts.
    :raises Unsupported: for an architecture that has no occupancy, such as a CPU.
    :raises LimitExceeded: for more than a block or thread can have there.
    :raises ValueError: for numbers that contradict the architecture.
    """
    target = _as_target(arch)
    if target.value("exec.occupancy_rule") not in RULES:
        raise Unsupported(f"{target.arch} has no occupancy: no fact exec.occupancy_rule says how")
    kernel = Kernel(
        threads=to_int("threads", threads, 1),
        registers=to_int("registers", registers, 1),
        shared_memory=to_int("shared_memory", shared_memory, 0),
        accumulators=to_int("accumulators", accumulators, 0),
        scalar_registers=to_int("scalar_registers", scalar_registers, 0),
        barriers=to_int("barriers", barriers, 0),
        opt_in=opt_in,
        carveout=None if carveout is None else to_int("carveout", carveout, 0),
        wave_size=target.arch.warp_size if wave_size is None else to_int("wave_size", wave_size, 1),
        cu_mode=cu_mode,
    )
    check_kernel(target, kernel)
    return _calculate(target, kernel)


def occupancy_of_code(
    target: Target,
    threads: int,
    *,
    registers: int,
    accumulators: int,
    scalar_registers: int | None,
    shared_memory: int,
    wave_size: int,
) -> Occupancy:
    """:func:`occupancy` of numbers as compilers state them.

    :param target: the target or architecture that the code is for.
    :param threads: threads a block.
    :param registers: 32-bit registers that a thread is given: with accumulation registers where one
        file holds both.
    :param accumulators: accumulation registers a thread.
    :param scalar_registers: scalar registers a wave; None where a vendor has none.
    :param shared_memory: bytes a block, static and dynamic.
    :param wave_size: threads a wave.
    :returns: blocks and waves a unit, and what limits them.
    :raises LimitExceeded: for more than a block or thread can have there.
    :raises Unsupported: for an architecture that has no occupancy.
    """
    if target.value("register.accumulator_file") == "unified":
        registers -= accumulators
    return occupancy(
        target,
        threads,
        max(registers, 1),
        shared_memory,
        accumulators=accumulators,
        scalar_registers=scalar_registers or 0,
        wave_size=wave_size,
    )


def with_changes(found: Occupancy, **changes: Any) -> Occupancy:
    """The occupancy of the same kernel with other numbers; not checked against limits."""
    return _calculate(found.target, replace(found.kernel, **changes))


def _calculate(target: Target, kernel: Kernel) -> Occupancy:
    rule = RULES[target.value("exec.occupancy_rule")]
    return Occupancy(target, kernel, rule(target, kernel))


def _as_target(arch: str | Arch | Target) -> Target:
    if isinstance(arch, Target):
        return arch
    return load_architecture(arch.name if isinstance(arch, Arch) else arch)


@dataclass(frozen=True, slots=True)
class Step:
    """One change that helps. ``threads`` is another block size; the others are upper bounds.

    ``registers`` a thread and ``shared_memory`` in bytes a block are the most with which a unit
    holds ``waves`` waves in ``blocks`` blocks; None is unchanged.
    """

    blocks: int
    waves: int
    registers: int | None = None
    shared_memory: int | None = None
    threads: int | None = None


def find_steps(found: Occupancy) -> tuple[Step, ...]:
    """One step for fewer registers, one for less shared memory, one for another block size.

    Where neither registers nor shared memory help alone, the first step is both together. A block
    of another size keeps its registers a thread and its shared memory.
    """
    steps = [
        *_smaller_value_step(found, "registers", 1),
        *_smaller_value_step(found, "shared_memory", 0),
    ]
    return (*(steps or _less_of_both(found)), *_other_size(found))


def _smaller_value_step(found: Occupancy, field: str, least: int) -> Iterator[Step]:
    most = _greatest_that_helps(
        lambda value: with_changes(found, **{field: value}).waves > found.waves,
        least,
        getattr(found.kernel, field) - 1,
    )
    if most is not None:
        better = with_changes(found, **{field: most})
        yield Step(better.blocks, better.waves, **{field: most})


def _less_of_both(found: Occupancy) -> Iterator[Step]:
    empty = with_changes(found, shared_memory=0)
    for step in _smaller_value_step(empty, "registers", 1) if empty.waves == found.waves else ():
        assert step.registers is not None  # noqa: S101 - the field that was searched
        for both in _smaller_value_step(
            with_changes(found, registers=step.registers), "shared_memory", 0
        ):
            yield Step(both.blocks, both.waves, step.registers, both.shared_memory)


def _other_size(found: Occupancy) -> Iterator[Step]:
    """The nearest block size, in whole waves, with which a unit holds more waves."""
    wave, threads = found.kernel.wave_size, found.kernel.threads
    limit = int_fact(found.target, "exec.max_threads_per_block")
    sizes = sorted(range(wave, limit + 1, wave), key=lambda size: (abs(size - threads), size))
    for size in sizes:
        better = with_changes(found, threads=size)
        if better.waves > found.waves:
            yield Step(better.blocks, better.waves, threads=size)
            return


def _greatest_that_helps(helps: Callable[[int], bool], least: int, most: int) -> int | None:
    """The greatest of ``least`` to ``most`` that ``helps``. Where one helps, all smaller ones do.

    Holding more waves with fewer registers or less memory never becomes fewer again.
    """
    if most < least or not helps(least):
        return None
    low, high = least, most
    while low < high:
        middle = (low + high + 1) // 2
        if helps(middle):
            low = middle
        else:
            high = middle - 1
    return low


def curve(found: Occupancy, over: str) -> tuple[tuple[int, int], ...]:
    """(registers or bytes, waves a unit) where the waves change, both ends of every level.

    ``over`` is "registers" or "shared_memory"; the rest of the kernel stays. From 1 register, or 0
    bytes, to the most that a thread or block can have.
    """
    points: list[tuple[int, int]] = []
    for at in _sample_points(found, over):
        waves = with_changes(found, **{over: at}).waves
        if len(points) > 1 and points[-1][1] == points[-2][1] == waves:
            points.pop()
        points.append((at, waves))
    return tuple(points)


def _sample_points(found: Occupancy, over: str) -> range:
    if over == "registers":
        return range(1, largest_registers(found.target) + 1)
    limit = "per_block_optin" if found.kernel.opt_in else "per_block_default"
    most = int_fact(found.target, f"shared_memory.{limit}")
    return range(0, most + 1, int_fact(found.target, "shared_memory.alloc_granularity"))


def occupancy_lines(found: Occupancy) -> tuple[str, ...]:
    """The lines of :meth:`portagpu.devices.sizing.Occupancy.explain`."""
    return (*head_lines(found), *map(limit_line, found.limits), *step_lines(found))


def head_lines(found: Occupancy) -> tuple[str, ...]:
    """The kernel and its occupancy, without the limits."""
    target, kernel = found.target, found.kernel
    wave = wave_name(target)
    lines = [
        f"{target.arch}: {_kernel_text(kernel, wave)}",
        (
            f"{count(found.blocks, 'block')} a {unit_name(found)}: "
            f"{found.waves} of {count(found.max_waves, wave)}, {found.fraction:.0%}"
        ),
        f"limited by {' and '.join(found.limited_by)}",
    ]
    if found.blocks == 0:
        lines.append("not one block fits: this kernel cannot be launched")
    if found.per_simd is not None:
        lines.append(
            f"waves a SIMD: {found.per_simd.compiler} of {found.per_simd.most} as the compiler "
            f"counts, {found.per_simd.hardware} with shared memory as it is allocated"
        )
    if kernel.idle_lanes:
        lines.append(
            f"{kernel.threads} threads are not a multiple of the {wave} size {kernel.wave_size}: "
            f"{kernel.idle_lanes} lanes of the last are idle"
        )
    return tuple(lines)


def _kernel_text(kernel: Kernel, wave: str) -> str:
    parts = [
        f"blocks of {count(kernel.threads, 'thread')} ({count(kernel.waves, wave)})",
        f"{count(kernel.registers, 'register')} a thread",
    ]
    if kernel.accumulators:
        parts.append(f"{count(kernel.accumulators, 'accumulation register')} a thread")
    if kernel.scalar_registers:
        parts.append(f"{count(kernel.scalar_registers, 'scalar register')} a {wave}")
    parts.append(f"{kernel.shared_memory:,} B of shared memory a block")
    return ", ".join(parts)


def limit_line(limit: Limit) -> str:
    """ "registers: room for 4 blocks; a block takes 16,384 of 65,536 registers"."""
    of = "" if limit.has is None else f" of {limit.has:,}"
    return (
        f"{limit.resource}: room for {count(limit.blocks, 'block')}; "
        f"{limit.of} takes {limit.takes:,}{of} {limit.unit}"
    )


def step_lines(found: Occupancy) -> tuple[str, ...]:
    """A line for each of the next steps."""
    wave = wave_name(found.target)
    return tuple(step_line(step, wave, found.max_waves) for step in found.next_steps())


def step_line(step: Step, wave: str, most: int) -> str:
    """ "with at most 56 registers a thread: 5 blocks, 40 of 64 warps"."""
    needs = []
    if step.threads is not None:
        needs.append(f"blocks of {count(step.threads, 'thread')}")
    if step.registers is not None:
        needs.append(f"at most {count(step.registers, 'register')} a thread")
    if step.shared_memory is not None:
        needs.append(f"at most {step.shared_memory:,} B of shared memory a block")
    held = f"{count(step.blocks, 'block')}, {step.waves} of {count(most, wave)}"
    return f"with {' and '.join(needs)}: {held}"


def count(number: int, noun: str) -> str:
    """ "1 warp", "1,024 threads"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def wave_name(target: Target) -> str:
    """ "warp" or "wavefront"; "wave" where no fact names it."""
    return str(target.value("exec.wave_name") or "wave")


def unit_name(found: Occupancy) -> str:
    """ "streaming multiprocessor", "compute unit"; "unit" where no fact names it.

    In CU mode it is one compute unit of several that a unit has.
    """
    if found.kernel.cu_mode:
        return "compute unit"
    return str(found.target.value("exec.unit_name") or "unit")
