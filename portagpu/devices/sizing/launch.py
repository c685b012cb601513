"""Launches and reductions on one device: blocks and grids that suit it and fit its limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import LimitExceeded
from portagpu.devices.sizing.calculator import count, head_lines, occupancy
from portagpu.devices.sizing.matmul import plan_matmul
from portagpu.devices.sizing.rules import check_at_most, round_up, to_int

if TYPE_CHECKING:
    from portagpu.devices.sizing.calculator import Occupancy
    from portagpu.devices.sizing.matmul import Matmul
    from portagpu.facts.targets import Target

_DIMENSIONS: Final = "xyz"


@dataclass(frozen=True, slots=True)
class Launch:
    """A one-dimensional launch whose threads stride over at most ``work_per_thread`` elements.

    A thread takes ``vector_width`` neighbouring elements at once; ``shared_memory`` is in bytes a
    block. ``occupancy`` is None without the kernel's resources, or without facts for them.
    """

    n: int
    block: int
    grid: int
    work_per_thread: int
    warp_size: int
    vector_width: int = 1
    shared_memory: int = 0
    occupancy: Occupancy | None = None

    @property
    def threads(self) -> int:
        """Threads in the whole launch."""
        return self.block * self.grid

    @property
    def num_warps(self) -> int:
        """Warps or wavefronts of a block: what Triton calls ``num_warps``."""
        return self.block // self.warp_size

    def explain(self) -> tuple[str, ...]:
        """The launch as lines of text."""
        return launch_lines(self)


@dataclass(frozen=True, slots=True)
class Sizing:
    """The limits of one device that a launch has to fit, each at least 1.

    A block holds a warp, and a unit a block: ``max_threads_per_unit >= max_threads_per_block >=
    warp_size``. A device that launches no blocks states 1 for all but ``unit_count``.
    """

    warp_size: int
    unit_count: int
    """Streaming multiprocessors, compute units or usable CPU cores; the properties'
    ``multi_processor_count``."""
    max_threads_per_block: int
    max_threads_per_unit: int
    max_blocks_per_unit: int
    target: Target | None = None
    """The device's own target, which has the further limits. Without it they are not checked."""

    @property
    def max_num_warps(self) -> int:
        """Warps of the largest block: 32 of 32 threads, but 16 of 64."""
        return self.max_threads_per_block // self.warp_size

    def launch(
        self,
        n: int,
        *,
        block: int | None = None,
        work_per_thread: int | None = None,
        item_bytes: int | None = None,
        registers: int | None = None,
        shared_memory: int = 0,
    ) -> Launch:
        """Block and grid for ``n`` independent elements.

        The block is the smallest multiple of the warp size with which ``max_blocks_per_unit``
        blocks fill a unit, and at least four warps, so that a scheduler has something to switch
        to. The grid fills the device once and strides over the rest.

        :param n: elements; 0 is a launch of nothing.
        :param block: threads a block, in place of the chosen number: a multiple of the warp size.
        :param work_per_thread: elements a thread, which then decide the grid.
        :param item_bytes: bytes an element. A thread then takes several elements at once, as long
            as the device stays full.
        :param registers: registers a thread; with ``shared_memory`` they limit how many blocks fill
            a unit, where facts state the limits.
        :param shared_memory: bytes a block.
        :returns: the launch, with the occupancy where resources and facts are known.
        :raises ValueError: for a negative ``n`` or a block that is not a multiple of the warp size.
        :raises TypeError: for a number that is not an integer.
        :raises LimitExceeded: for what the device cannot launch.
        """
        n = to_int("n", n, 0)
        block = None if block is None else to_int("block", block, 1)
        item_bytes = None if item_bytes is None else to_int("item_bytes", item_bytes, 1)
        registers = None if registers is None else to_int("registers", registers, 1)
        shared_memory = to_int("shared_memory", shared_memory, 0)
        self.check(1, block or 1, shared_memory=shared_memory)
        if block is not None and block % self.warp_size:
            raise ValueError(
                f"block must be a multiple of the warp size {self.warp_size}, not {block} threads"
            )
        if n == 0:
            return Launch(0, block or self.warp_size, 0, 0, self.warp_size)
        chosen = block or self._block(n)
        found = self._occupancy(chosen, registers, shared_memory)
        while block is None and found is not None and not found.blocks and chosen > self.warp_size:
            chosen -= self.warp_size
            found = self._occupancy(chosen, registers, shared_memory)
        if found is not None and not found.blocks:
            raise _nothing_fits(found)
        if work_per_thread is not None:
            each = to_int("work_per_thread", work_per_thread, 1)
            grid = -(-n // (chosen * each))
            self.check(grid, chosen, shared_memory=shared_memory)
            return Launch(n, chosen, grid, each, self.warp_size, 1, shared_memory, found)
        resident = self._resident(chosen, found)
        width = self._vector_width(n, item_bytes, resident * chosen)
        grid = min(-(-n // (chosen * width)), resident)
        each = -(-n // (chosen * grid * width)) * width
        return Launch(n, chosen, grid, each, self.warp_size, width, shared_memory, found)

    def reduce(self, n: int, *, item_bytes: int = 4) -> Reduction:
        """Two launches that reduce ``n`` elements: to one result a block, then to one result.

        :param n: how many elements.
        :param item_bytes: bytes of an element.
        :returns: both launches; the second is None where the first has one block.
        :raises LimitExceeded: where a block would need more shared memory than there is.
        """
        return plan_reduction(self, n, item_bytes)

    def matmul(self, m: int, n: int, k: int, dtype: object, *, batch: int = 1) -> Matmul:
        """Tiles, warps and shared memory of ``batch`` products of m x k and k x n elements.

        :param m: rows of the left matrix and of the result.
        :param n: columns of the right matrix and of the result.
        :param k: columns of the left matrix, and rows of the right one.
        :param dtype: a ``torch.dtype`` or its name in the facts ("bf16").
        :param batch: products in one launch.
        :returns: the plan; nothing is measured.
        :raises Unsupported: where no fact says how this device multiplies ``dtype``.
        :raises LimitExceeded: where the grid would not fit.
        """
        found = plan_matmul(self, m, n, k, dtype, batch)
        self.check(found.grid, found.block, shared_memory=found.shared_memory)
        return found

    def check(
        self,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        *,
        shared_memory: int = 0,
    ) -> None:
        """Raise LimitExceeded, with the limit's name and source, for what cannot be launched.

        Beyond the threads of a block, only limits that are facts are checked.

        :param grid: blocks, in up to three dimensions.
        :param block: threads a block, in up to three dimensions.
        :param shared_memory: bytes a block.
        :raises LimitExceeded: for more than the device has.
        """
        blocks, threads = _dimensions("grid", grid), _dimensions("block", block)
        size = math.prod(threads)
        if size > self.max_threads_per_block:
            raise self._too_large(size)
        if self.target is None:
            return
        for name, along, wide in zip(_DIMENSIONS, blocks, threads, strict=True):
            check_at_most(self.target, f"exec.max_grid_{name}", along, f"blocks along {name}")
            check_at_most(
                self.target,
                "exec.max_threads_per_dimension",
                along * wide,
                f"threads (grid x block) along {name}",
            )
        check_at_most(
            self.target,
            "shared_memory.per_block_optin",
            to_int("shared_memory", shared_memory, 0),
            "bytes of shared memory a block",
        )

    def _block(self, n: int) -> int:
        filling = -(-self.max_threads_per_unit // self.max_blocks_per_unit)
        block = max(round_up(filling, self.warp_size), 4 * self.warp_size)
        limit = self.max_threads_per_block // self.warp_size * self.warp_size
        return min(block, limit, round_up(n, self.warp_size))

    def _resident(self, block: int, found: Occupancy | None) -> int:
        """The blocks that the device holds at once, at least one for each unit."""
        per_unit = min(self.max_threads_per_unit // block, self.max_blocks_per_unit)
        if found is not None:
            per_unit = min(per_unit, found.blocks)
        return self.unit_count * max(1, per_unit)

    def _occupancy(self, block: int, registers: int | None, shared_memory: int) -> Occupancy | None:
        """The kernel's occupancy; None without its resources, or without facts for them."""
        if self.target is None or self.target.fact("exec.occupancy_rule") is None:
            return None
        if registers is None and not shared_memory:
            return None
        return occupancy(
            self.target, block, registers or 1, shared_memory, wave_size=self.warp_size
        )

    def _vector_width(self, n: int, item_bytes: int | None, threads: int) -> int:
        """The elements that a thread loads at once: a power of two that leaves no thread idle."""
        widest = None if self.target is None else self.target.value("exec.max_access")
        if item_bytes is None or widest is None:
            return 1
        width = 1
        while 2 * width * item_bytes <= widest and 2 * width * threads <= n:
            width *= 2
        return width

    def _too_large(self, threads: int) -> LimitExceeded:
        key = "exec.max_threads_per_block"
        fact = None if self.target is None else self.target.fact(key)
        if fact is not None and fact.value == self.max_threads_per_block:
            where, source = f"{key}, source {', '.join(fact.source)}", fact.source
        else:
            where, source = f"{key}, as the device reports", ()
        return LimitExceeded(
            f"a block of {threads} threads is more than the {self.max_threads_per_block} that "
            f"this device has ({where})",
            limit=key,
            most=self.max_threads_per_block,
            source=source,
        )


def _dimensions(name: str, value: int | tuple[int, ...]) -> tuple[int, int, int]:
    given = value if isinstance(value, tuple) else (value,)
    if not 1 <= len(given) <= len(_DIMENSIONS):
        raise ValueError(f"{name} has {len(given)} dimensions; a launch has one to three")
    x, y, z = (*(to_int(name, each, 1) for each in given), 1, 1)[: len(_DIMENSIONS)]
    return x, y, z


def _nothing_fits(found: Occupancy) -> LimitExceeded:
    limit = next(limit for limit in found.limits if limit.blocks == 0)
    fact = found.target.facts[limit.key]
    most = limit.has or 0
    return LimitExceeded(
        f"no block of {found.kernel.threads} threads fits: {limit.of} takes {limit.takes} of "
        f"{most} {limit.unit} ({limit.key}, source {', '.join(fact.source)})",
        limit=limit.key,
        most=most,
        source=fact.source,
    )


def sizing_of_device(properties: Any, target: Target | None, warp_size: int) -> Sizing:
    """The limits of a GPU: from torch's properties, else from the facts.

    Without a stated largest block, it is four warps, which every device runs. Without a fact for
    the blocks of a unit, they are as many of the largest as its threads allow.

    :param properties: what ``torch.cuda.get_device_properties`` returned.
    :param target: the facts of the product or architecture; None where there are none.
    :param warp_size: threads a warp.
    """
    per_unit = _reported_or_stated(
        properties, "max_threads_per_multi_processor", target, "max_threads_per_unit"
    )
    block = _reported_or_stated(
        properties, "max_threads_per_block", target, "max_threads_per_block"
    )
    block = block or 4 * warp_size
    per_unit = per_unit or block
    blocks = target.value("exec.max_blocks_per_unit") if target is not None else None
    return Sizing(
        warp_size=warp_size,
        unit_count=properties.multi_processor_count,
        max_threads_per_block=block,
        max_threads_per_unit=per_unit,
        max_blocks_per_unit=blocks or max(1, per_unit // block),
        target=target,
    )


def _reported_or_stated(properties: Any, name: str, target: Target | None, fact: str) -> int:
    reported: Any = getattr(properties, name, None)
    stated = target.value(f"exec.{fact}") if target is not None else None
    return int(reported or stated or 0)


_MIN_ACCUMULATOR: Final = 4
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
        return reduction_lines(self)


def plan_reduction(sizing: Sizing, n: int, item_bytes: int) -> Reduction:
    """The reduction of ``n`` elements of ``item_bytes`` bytes on the device of ``sizing``."""
    size = max(to_int("item_bytes", item_bytes, 1), _MIN_ACCUMULATOR)
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


def _blocks(grid: int, block: int, warps: int) -> str:
    return f"{count(grid, 'block')} of {count(block, 'thread')} (num_warps={warps})"
