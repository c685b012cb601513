"""Occupancy of a changed kernel: the smallest change that helps, and a curve over one resource."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from portagpu.devices.sizing.calculator import with_changes
from portagpu.devices.sizing.kernel import int_fact, largest_registers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from portagpu.devices.sizing.calculator import Occupancy


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
