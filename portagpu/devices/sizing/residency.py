"""The result of an occupancy rule: how many blocks each resource of a unit has room for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Resource(StrEnum):
    """A resource of a unit that can limit its blocks."""

    WAVES = "waves"
    REGISTERS = "registers"
    SCALAR_REGISTERS = "scalar registers"
    SHARED_MEMORY = "shared memory"
    BLOCKS = "block slots"
    BARRIERS = "barriers"


@dataclass(frozen=True, slots=True)
class Limit:
    """How many blocks of the kernel one resource has room for in a unit.

    ``takes`` is what ``of`` takes of it and ``has`` what there is (None: not one number), both in
    ``unit``; ``key`` is the fact that says what there is.
    """

    resource: Resource
    blocks: int
    takes: int
    has: int | None
    unit: str
    of: str
    key: str


@dataclass(frozen=True, slots=True)
class WavesPerSimd:
    """Waves of one SIMD by two rules; ``most`` is the most that it holds.

    ``compiler`` equals LLVM's "Occupancy", which rounds the waves of the busiest SIMD up and does
    not round shared memory; ``hardware`` is the same with shared memory rounded up to what is
    allocated.
    """

    compiler: int
    hardware: int
    most: int


@dataclass(frozen=True, slots=True)
class Residency:
    """Limits in the order in which they are shown, and what a block is allocated.

    ``allocated_registers`` are those of a block, or of a wave where registers are counted by wave.
    """

    limits: tuple[Limit, ...]
    max_waves: int
    allocated_registers: int
    allocated_shared_memory: int
    per_simd: WavesPerSimd | None = None
