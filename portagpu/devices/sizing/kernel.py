"""What a kernel asks of a unit, checked against what one block may have there."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from portagpu.base.errors import LimitExceeded, Unsupported

if TYPE_CHECKING:
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
