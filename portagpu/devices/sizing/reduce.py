"""Reductions: one partial result a block, and a second launch over the partial results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.devices.sizing.kernel import round_up, to_int

if TYPE_CHECKING:
    from portagpu.devices.sizing.launch import Launch, Sizing

_LEAST_ACCUMULATOR: Final = 4
"""Bytes: 8- and 16-bit elements are summed in 32 bits, as torch does."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction of ``n`` elements.

    Each block of ``partials`` leaves one result. ``final`` reduces these in one block (None: there
    is only one). Lanes of a warp exchange values ``shuffle_steps`` times. Then a block keeps one
    accumulator for each warp, ``shared_memory`` bytes.
    """

    n: int
    partials: Launch
    final: Launch | None
    shuffle_steps: int
    accumulator_bytes: int

    @property
    def shared_memory(self) -> int:
        """Bytes a block: an accumulator for each of its warps, whose size is the device's."""
        return self.partials.num_warps * self.accumulator_bytes

    def explain(self) -> tuple[str, ...]:
        """The plan as lines of text."""
        from portagpu.devices.sizing.explain import reduction_lines

        return reduction_lines(self)


def plan_reduction(sizing: Sizing, n: int, item_bytes: int) -> Reduction:
    """The reduction of ``n`` elements of ``item_bytes`` bytes on the device of ``sizing``."""
    size = max(to_int("item_bytes", item_bytes, 1), _LEAST_ACCUMULATOR)
    partials = sizing.launch(n, item_bytes=item_bytes)
    final = None
    largest = partials.num_warps
    if partials.grid > 1:
        most = sizing.max_num_warps * sizing.warp_size
        block = min(most, round_up(partials.grid, sizing.warp_size))
        final = sizing.launch(
            partials.grid, block=block, work_per_thread=-(-partials.grid // block)
        )
        largest = max(largest, final.num_warps)
    sizing.check(1, 1, shared_memory=largest * size)
    return Reduction(partials.n, partials, final, sizing.warp_size.bit_length() - 1, size)
