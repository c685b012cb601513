"""Occupancy as a curve: the waves of a unit over registers a thread or shared memory a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.sizing.calculator import with_changes
from portagpu.sizing.kernel import int_fact, largest_registers

if TYPE_CHECKING:
    from portagpu.sizing.calculator import Occupancy

OVER: Final = ("registers", "shared_memory")


def curve(found: Occupancy, over: str) -> tuple[tuple[int, int], ...]:
    """(registers or bytes, waves a unit) where the waves change, both ends of every level.

    ``over`` is one of ``OVER``; the rest of the kernel stays. From 1 register, or 0 bytes, to the
    most that a thread or block can have.
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
