"""Occupancy: how much of a unit a kernel fills, what limits it, and what the next step needs.

>>> from portagpu.devices.sizing import occupancy
>>> found = occupancy("sm_90", 256, 64, 16384)
>>> found.blocks, found.waves, found.limited_by
(4, 32, ('registers',))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from portagpu.base.errors import Unsupported
from portagpu.devices.sizing.kernel import Kernel, check_kernel, to_int
from portagpu.devices.sizing.rules import RULES
from portagpu.facts.arch import Arch
from portagpu.facts.targets import Target, load_architecture

if TYPE_CHECKING:
    from portagpu.devices.sizing.residency import Limit, Residency, WavesPerSimd
    from portagpu.devices.sizing.steps import Step


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """The result of :func:`occupancy` for one unit: a multiprocessor, compute unit or WGP.

    A kernel cannot be launched where a unit holds no block of it.
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
        """The most warps or wavefronts that a unit holds."""
        return self.residency.max_waves

    @property
    def fraction(self) -> float:
        """``waves`` as a share of ``max_waves``: 0 to 1."""
        return self.waves / self.max_waves

    @property
    def limits(self) -> tuple[Limit, ...]:
        """How many blocks each resource has room for."""
        return self.residency.limits

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources with room for the fewest blocks."""
        blocks = self.blocks
        return tuple(str(limit.resource) for limit in self.limits if limit.blocks == blocks)

    @property
    def per_simd(self) -> WavesPerSimd | None:
        """Waves a SIMD by the compiler's and the hardware's rule; None without such a rule."""
        return self.residency.per_simd

    def next_steps(self) -> tuple[Step, ...]:
        """The smallest changes that each fit more waves in a unit; empty where it is full."""
        from portagpu.devices.sizing.steps import find_steps

        return find_steps(self)

    def explain(self) -> tuple[str, ...]:
        """The kernel, its occupancy and the next steps as lines of text."""
        from portagpu.devices.sizing.explain import occupancy_lines

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
    dynamic; the rest is described in :class:`portagpu.devices.sizing.Kernel`. The result equals
    cuda_occupancy.h of the CUDA toolkit (``blocks``, every limit), or LLVM's "Occupancy"
    (``per_simd.compiler``), by the rule that the architecture's facts name.

    Raises TargetNotFound for an architecture without facts, Unsupported for one that has no
    occupancy (a CPU), LimitExceeded for what no block or thread can have there, and ValueError for
    what cannot be.
    """
    target = _as_target(arch)
    if target.value("exec.occupancy_rule") not in RULES:
        raise Unsupported(f"{target.arch} has no occupancy: no fact exec.occupancy_rule says how")
    kernel = Kernel(
        threads=to_int("threads", threads, 1),
        registers=to_int("registers", registers, 1),
        shared_memory=to_int("shared_memory", shared_memory, 0),
        accumulators=to_int("accumulators", accumulators, 0),
        scalar_registers=to_int("scalar_registers", scalar_registers, 0),
        barriers=to_int("barriers", barriers, 0),
        opt_in=opt_in,
        carveout=None if carveout is None else to_int("carveout", carveout, 0),
        wave_size=target.arch.warp_size if wave_size is None else to_int("wave_size", wave_size, 1),
        cu_mode=cu_mode,
    )
    check_kernel(target, kernel)
    return _calculate(target, kernel)


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


def with_changes(found: Occupancy, **changes: Any) -> Occupancy:
    """The occupancy of the same kernel with other numbers; not checked against limits."""
    return _calculate(found.target, replace(found.kernel, **changes))


def _calculate(target: Target, kernel: Kernel) -> Occupancy:
    rule = RULES[target.value("exec.occupancy_rule")]
    return Occupancy(target, kernel, rule(target, kernel))


def _as_target(arch: str | Arch | Target) -> Target:
    if isinstance(arch, Target):
        return arch
    return load_architecture(arch.name if isinstance(arch, Arch) else arch)
