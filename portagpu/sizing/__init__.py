"""Launch planning: block and grid that suit a device, from its facts alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launch:
    """A one-dimensional launch whose threads stride over at most ``work_per_thread`` elements."""

    n: int
    block: int
    grid: int
    work_per_thread: int

    @property
    def threads(self) -> int:
        """Threads in the whole launch."""
        return self.block * self.grid


@dataclass(frozen=True, slots=True)
class Sizing:
    """The limits of one device that a launch has to fit."""

    warp_size: int
    unit_count: int
    """Streaming multiprocessors, compute units or usable CPU cores."""
    max_threads_per_block: int
    max_threads_per_unit: int
    max_blocks_per_unit: int

    def launch(self, n: int) -> Launch:
        """Block and grid for ``n`` independent elements.

        The block is the smallest multiple of the warp size with which ``max_blocks_per_unit``
        blocks fill a unit, and at least four warps, so that a scheduler has something to switch
        to; the grid fills the device once and strides over the rest. ``n = 0`` is a launch of
        nothing. Raises ValueError for a negative ``n``.
        """
        if n < 0:
            raise ValueError(f"a launch over {n} elements does not exist; n must be at least 0")
        if n == 0:
            return Launch(n=0, block=self.warp_size, grid=0, work_per_thread=0)
        filling = -(-self.max_threads_per_unit // self.max_blocks_per_unit)
        block = max(_round_up(filling, self.warp_size), 4 * self.warp_size)
        limit = self.max_threads_per_block // self.warp_size * self.warp_size
        block = min(block, limit, _round_up(n, self.warp_size))
        per_unit = min(self.max_threads_per_unit // block, self.max_blocks_per_unit)
        resident = self.unit_count * max(1, per_unit)
        grid = min(-(-n // block), resident)
        return Launch(n=n, block=block, grid=grid, work_per_thread=-(-n // (block * grid)))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
