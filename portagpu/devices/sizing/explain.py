"""Occupancies and plans as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portagpu.devices.sizing.calculator import Occupancy
    from portagpu.devices.sizing.kernel import Kernel
    from portagpu.devices.sizing.launch import Launch
    from portagpu.devices.sizing.matmul import Matmul
    from portagpu.devices.sizing.reduce import Reduction
    from portagpu.devices.sizing.residency import Limit
    from portagpu.devices.sizing.steps import Step
    from portagpu.facts.targets import Target


def count(number: int, noun: str) -> str:
    """ "1 warp", "1,024 threads"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def wave_name(target: Target) -> str:
    """ "warp" or "wavefront"; "wave" where no fact names it."""
    return str(target.value("exec.wave_name") or "wave")


def unit_name(target: Target) -> str:
    """ "streaming multiprocessor", "compute unit"; "unit" where no fact names it."""
    return str(target.value("exec.unit_name") or "unit")


def occupancy_lines(found: Occupancy) -> tuple[str, ...]:
    """The lines of :meth:`portagpu.devices.sizing.Occupancy.explain`."""
    return (*head_lines(found), *map(limit_line, found.limits), *step_lines(found))


def step_lines(found: Occupancy) -> tuple[str, ...]:
    """A line for each of the next steps."""
    wave = wave_name(found.target)
    return tuple(step_line(step, wave, found.max_waves) for step in found.next_steps())


def head_lines(found: Occupancy) -> tuple[str, ...]:
    """The kernel and its occupancy, without the limits."""
    target, kernel = found.target, found.kernel
    wave = wave_name(target)
    lines = [
        f"{target.arch}: {_kernel_text(kernel, wave)}",
        (
            f"{count(found.blocks, 'block')} a {unit_name(target)}: "
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
            f"{kernel.threads} threads are no whole {wave}s of {kernel.wave_size}: "
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


def launch_lines(plan: Launch) -> tuple[str, ...]:
    """The lines of :meth:`portagpu.devices.sizing.Launch.explain`."""
    if not plan.grid:
        return ("no element: no launch",)
    lines = [
        f"{count(plan.n, 'element')}: {_blocks(plan.grid, plan.block, plan.num_warps)}",
        (
            f"a thread handles up to {count(plan.work_per_thread, 'element')}, "
            f"{plan.vector_width} at once"
        ),
    ]
    if plan.shared_memory:
        lines.append(f"{plan.shared_memory:,} B of shared memory a block")
    if plan.occupancy is not None:
        lines += head_lines(plan.occupancy)[1:3]
    return tuple(lines)


def reduction_lines(plan: Reduction) -> tuple[str, ...]:
    """The lines of :meth:`portagpu.devices.sizing.Reduction.explain`."""
    lines = [
        *launch_lines(plan.partials),
        (
            f"in a block: {count(plan.shuffle_steps, 'shuffle')} in a warp, then "
            f"{plan.partials.num_warps} x {plan.accumulator_bytes} B of shared memory"
        ),
    ]
    if plan.final is not None:
        lines.append(
            f"then {_blocks(plan.final.grid, plan.final.block, plan.final.num_warps)} over "
            f"{count(plan.partials.grid, 'partial result')}"
        )
    return tuple(lines)


def matmul_lines(plan: Matmul) -> tuple[str, ...]:
    """The lines of :meth:`portagpu.devices.sizing.Matmul.explain`."""
    tiles, products, _ = plan.grid
    unit = "the vector unit"
    if plan.instruction is not None:
        unit = f"matrix instructions of {'x'.join(str(side) for side in plan.instruction)}"
    return (
        f"{plan.m:,} x {plan.k:,} by {plan.k:,} x {plan.n:,} in {plan.dtype}, by {unit}",
        (
            f"grid {tiles:,} x {products:,}: one block for each tile of "
            f"{plan.tile[0]} x {plan.tile[1]}, k in steps of {plan.step}"
        ),
        (
            f"blocks of {count(plan.block, 'thread')} ({plan.num_warps} of {plan.warp_size}); "
            f"num_warps={plan.num_warps}, num_stages={plan.stages} in Triton"
        ),
        f"{plan.shared_memory:,} B of shared memory a block for {count(plan.stages, 'stage')}",
        (
            f"a thread keeps {count(plan.accumulators, 'accumulator')} and loads "
            f"{count(plan.vector_width, 'element')} at once"
        ),
        *head_lines(plan.occupancy)[1:3],
    )


def _blocks(grid: int, block: int, warps: int) -> str:
    return f"{count(grid, 'block')} of {count(block, 'thread')} (num_warps={warps})"
