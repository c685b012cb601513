"""Matrix products: the tile of a block, the warps that share it, and the memory that feeds it.

The tile is the largest that fits and that gives every unit a tile. Nothing is measured. Measured
kernels (cuBLAS, hipBLASLt) know more: this is a start for a hand-written or Triton kernel. Where
a vendor's widest instruction takes several warps (wgmma, tcgen05), the tile is for one warp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from portagpu.base.errors import Unsupported
from portagpu.devices.sizing.calculator import count, head_lines, occupancy
from portagpu.devices.sizing.rules import int_fact, largest_registers, to_int
from portagpu.facts.targets import dtype_name
from portagpu.facts.targets.model import DTYPE_BITS, fp8_flavour

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.devices.sizing.calculator import Occupancy
    from portagpu.facts.targets import Target

_SIDES: Final = (256, 128, 64, 32, 16, 8)
"""Sides of a block's tile, in elements: those of CUTLASS's and Triton's kernels."""
_MIN_SIDE: Final = 32
"""A smaller side reads every element of the other matrix more often than it is worth."""
_ROW_BITS: Final = 512
"""A stage has rows of 64 B along k: two of the 32 B sectors in which memory is read."""
_MAX_STAGES: Final = 4
_ADDRESSES: Final = 32
"""Registers a thread for addresses and loop counters: an estimate."""
_VECTOR_DTYPES: Final = ("fp64", "fp32", "fp16", "bf16", "int8")
"""Dtypes that every GPU multiplies in its vector unit."""


class Limits(Protocol):
    """The limits of a device that a plan goes by: those of :class:`portagpu.Sizing`."""

    @property
    def target(self) -> Target | None: ...
    @property
    def warp_size(self) -> int: ...
    @property
    def unit_count(self) -> int: ...
    @property
    def max_num_warps(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Matmul:
    """A plan for ``batch`` products of m x k by k x n elements.

    A block computes ``tile`` = (m, n) elements of the result and reads k in steps of ``step``;
    ``stages`` of those steps are in its ``shared_memory`` (bytes) at once. ``instruction`` is the
    matrix instruction's m x n x k, None where the vector unit multiplies. ``accumulators`` are
    32-bit registers a thread, ``vector_width`` elements a thread loads at once. ``occupancy`` goes
    by an estimate of the registers, which a compiler decides.
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    tile: tuple[int, int]
    step: int
    instruction: tuple[int, int, int] | None
    num_warps: int
    warp_size: int
    stages: int
    shared_memory: int
    accumulators: int
    vector_width: int
    occupancy: Occupancy

    @property
    def block(self) -> int:
        """Threads a block."""
        return self.num_warps * self.warp_size

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks along x, where y and z are short: tiles of one product, products, 1."""
        high, wide = self.tile
        return -(-self.m // high) * -(-self.n // wide), self.batch, 1

    def explain(self) -> tuple[str, ...]:
        """The plan as lines of text."""
        return matmul_lines(self)


def plan_matmul(device: Limits, m: int, n: int, k: int, dtype: object, batch: int) -> Matmul:
    """The product on ``device``; see :meth:`portagpu.Sizing.matmul`, which checks the grid."""
    target = device.target
    if target is None or target.fact("shared_memory.per_unit") is None:
        raise Unsupported("no fact says what shared memory this device has, so it has no tiles")
    sides = {name: to_int(name, value, 1) for name, value in (("m", m), ("n", n), ("k", k))}
    products = to_int("batch", batch, 1)
    name, instruction = _instruction(target, dtype)
    found = None
    for tile in _tiles(sides["m"], sides["n"], instruction):
        fitting = _plan_with_tile(
            device, target, name, instruction, tile, (*sides.values(), products)
        )
        if fitting is not None:
            found = fitting
            if found.grid[0] * products >= device.unit_count:
                break
    if found is None:
        raise Unsupported(f"no tile of {name} fits a block of {target.arch}")
    return found


def _instruction(target: Target, dtype: object) -> tuple[str, tuple[int, int, int] | None]:
    """The dtype's name in the facts, and the tile of its matrix instruction if it has one."""
    name = dtype_name(dtype)
    if name is None:
        raise ValueError(f"{dtype} is not a dtype of matrix products; try 'bf16'")
    flavour, had = fp8_flavour(dtype), target.value("matrix.fp8_flavour")
    if flavour not in (None, had):
        raise Unsupported(f"{target.arch} has no fp8 of the flavour {flavour} (matrix.fp8_flavour)")
    tile = target.value(f"matrix.tile.{name}")
    if tile is not None:
        m, n, k = (int(side) for side in tile.split("x"))
        return name, (m, n, k)
    if name not in _VECTOR_DTYPES:
        fact = target.fact("matrix.dtypes")
        known = "none" if fact is None else ", ".join(target.value("matrix.dtypes"))
        source = "" if fact is None else f", source {', '.join(fact.source)}"
        raise Unsupported(
            f"no fact says how a warp of {target.arch} multiplies {name}; "
            f"its matrix unit has {known} (matrix.dtypes{source})"
        )
    return name, None


def _tiles(m: int, n: int, instruction: tuple[int, int, int] | None) -> Iterator[tuple[int, int]]:
    """Tiles by falling area, square ones first, none far larger than the product."""
    least_m, least_n, _ = instruction or (1, 1, 1)
    high = [side for side in _SIDES if _is_side(side, m, least_m)]
    wide = [side for side in _SIDES if _is_side(side, n, least_n)]
    pairs = [(one, two) for one in high for two in wide]
    yield from sorted(pairs, key=lambda tile: (-tile[0] * tile[1], abs(tile[0] - tile[1])))


def _is_side(side: int, length: int, instruction: int) -> bool:
    """Whether a side is a multiple of the instruction's, and neither far too long nor too short."""
    covering = next((each for each in reversed(_SIDES) if each >= length), _SIDES[0])
    longest = max(covering, instruction)
    return side % instruction == 0 and min(longest, max(_MIN_SIDE, instruction)) <= side <= longest


def _plan_with_tile(
    device: Limits,
    target: Target,
    name: str,
    instruction: tuple[int, int, int] | None,
    tile: tuple[int, int],
    sides: tuple[int, ...],
) -> Matmul | None:
    """The plan with that tile, or None if its block does not fit."""
    bits = DTYPE_BITS[name]
    m, n, k, batch = sides
    step = max(1 << (_ROW_BITS // bits).bit_length() - 1, instruction[2] if instruction else 1)
    warps, accumulators = _warps(device, target, bits, instruction, tile)
    stage = sum(tile) * step * bits // 8
    # two blocks a unit, so that one computes while the other waits
    room = int_fact(target, "shared_memory.per_unit") // 2
    room -= int_fact(target, "shared_memory.reserved_per_block")
    stages = max(2, min(_MAX_STAGES, room // stage))
    memory = stages * stage
    if warps > device.max_num_warps or memory > int_fact(target, "shared_memory.per_block_optin"):
        return None
    fragments = -(-stage * 8 // (32 * warps * device.warp_size))
    found = _occupancy(device, target, warps, fragments + _ADDRESSES, accumulators, memory)
    if found is None:
        return None
    width = max(1, int_fact(target, "exec.max_access") * 8 // bits)
    return Matmul(
        m,
        n,
        k,
        batch,
        name,
        tile,
        step,
        instruction,
        warps,
        device.warp_size,
        stages,
        memory,
        accumulators,
        width,
        found,
    )


def _warps(
    device: Limits,
    target: Target,
    bits: int,
    instruction: tuple[int, int, int] | None,
    tile: tuple[int, int],
) -> tuple[int, int]:
    """Warps of a block, and 32-bit accumulators of a thread: at most half of its registers.

    As many warps as that takes, and as the unit has SIMDs where there are instructions for them.
    """
    words = tile[0] * tile[1] * (2 if bits == 64 else 1)
    high, wide, _ = instruction or (1, device.warp_size, 1)
    most = (int_fact(target, "register.max_per_thread") + 1) // 2
    pieces = tile[0] * tile[1] // (high * wide)
    warps = 1
    while words // (warps * device.warp_size) > most:
        warps *= 2
    while warps < int_fact(target, "exec.simds_per_unit") and 2 * warps <= pieces:
        warps *= 2
    return warps, -(-words // (warps * device.warp_size))


def _occupancy(
    device: Limits, target: Target, warps: int, registers: int, accumulators: int, memory: int
) -> Occupancy | None:
    """The occupancy if a unit holds a block; accumulators may have a register file of their own."""
    own = target.value("register.max_accumulators_per_thread")
    held = 0 if own is None else min(own, accumulators)
    rest = registers + accumulators - held
    if rest > largest_registers(target):
        return None
    threads = warps * device.warp_size
    found = occupancy(target, threads, rest, memory, accumulators=held, wave_size=device.warp_size)
    return found if found.blocks else None


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
