"""Occupancy: how much of a unit a kernel fills, what limits it, and what one step more would need.

>>> from portagpu.sizing import occupancy
>>> found = occupancy("sm_90", 256, 64, 16384)
>>> found.blocks, found.waves, found.limited_by
(4, 32, ('registers',))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from portagpu.arch import Arch
from portagpu.errors import Unsupported
from portagpu.sizing.kernel import Kernel, check, whole
from portagpu.sizing.rules import RULES
from portagpu.target import Target, load_architecture

if TYPE_CHECKING:
    from portagpu.sizing.residency import Limit, Residency, WavesPerSimd
    from portagpu.sizing.steps import Step


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """What :func:`occupancy` found: of one unit, a multiprocessor, compute unit or WGP.

    A kernel of which a unit holds no block cannot be launched.
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
        """The warps or wavefronts that a unit holds at best."""
        return self.residency.max_waves

    @property
    def fraction(self) -> float:
        """Waves that a unit holds, of those that it could: 0 to 1."""
        return self.waves / self.max_waves

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The blocks for which each resource has room."""
        return self.residency.limits

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that have room for no more blocks than these."""
        blocks = self.blocks
        return tuple(str(limit.resource) for limit in self.limits if limit.blocks == blocks)

    @property
    def per_simd(self) -> WavesPerSimd | None:
        """Waves a SIMD by the compiler's rule and by the hardware's; None where none counts so."""
        return self.residency.per_simd

    def next_steps(self) -> tuple[Step, ...]:
        """The least changes that each let a unit hold more waves; empty where it is full."""
        from portagpu.sizing.steps import search

        return search(self)

    def explain(self) -> tuple[str, ...]:
        """What was asked, found and would help, as lines for people."""
        from portagpu.sizing.words import occupancy_lines

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

    ``threads`` a block, ``registers`` a thread, ``shared_memory`` in bytes a block, static and
    dynamic; the rest is described in :class:`portagpu.sizing.Kernel`. The result equals
    cuda_occupancy.h of the CUDA toolkit (``blocks``, every limit), or LLVM's "Occupancy"
    (``per_simd.compiler``), by the rule that the architecture's facts name.

    Raises TargetNotFound for an architecture without facts, Unsupported for one that has no
    occupancy (a CPU), LimitExceeded for what no block or thread can have there, and ValueError for
    what cannot be.
    """
    target = _target(arch)
    if target.value("exec.occupancy_rule") not in RULES:
        raise Unsupported(f"{target.arch} has no occupancy: no fact exec.occupancy_rule says how")
    kernel = Kernel(
        threads=whole("threads", threads, 1),
        registers=whole("registers", registers, 1),
        shared_memory=whole("shared_memory", shared_memory, 0),
        accumulators=whole("accumulators", accumulators, 0),
        scalar_registers=whole("scalar_registers", scalar_registers, 0),
        barriers=whole("barriers", barriers, 0),
        opt_in=opt_in,
        carveout=None if carveout is None else whole("carveout", carveout, 0),
        wave_size=target.arch.warp_size if wave_size is None else whole("wave_size", wave_size, 1),
        cu_mode=cu_mode,
    )
    check(target, kernel)
    return _of(target, kernel)


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

    ``registers`` are all that a thread is given: accumulation registers are among them where one
    file holds both. ``scalar_registers`` are None where a vendor has none.
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


def changed(found: Occupancy, **changes: Any) -> Occupancy:
    """The occupancy of the same kernel with other numbers; not checked against limits."""
    return _of(found.target, replace(found.kernel, **changes))


def _of(target: Target, kernel: Kernel) -> Occupancy:
    rule = RULES[target.value("exec.occupancy_rule")]
    return Occupancy(target, kernel, rule(target, kernel))


def _target(arch: str | Arch | Target) -> Target:
    if isinstance(arch, Target):
        return arch
    return load_architecture(arch.name if isinstance(arch, Arch) else arch)
