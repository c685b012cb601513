"""A compiled kernel: its machine code and the resources of a launch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from portagpu.base.errors import PortagpuError
from portagpu.facts.targets import load_architecture

if TYPE_CHECKING:
    from portagpu.devices.sizing import Occupancy


class CompileError(PortagpuError, RuntimeError):
    """A compiler rejected a source, died or took too long; the message quotes it."""


class CompilerEnded(CompileError):
    """A compiler died or took too long. The source may be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """One kernel of a module that was built for one architecture.

    Registers are 32 bits wide, those of a thread (``registers``, with ``accumulators`` among them
    on AMD) or of a wave (``scalar_registers``; None on NVIDIA). ``stack`` is in bytes a thread,
    ``shared_memory`` in bytes a block. ``code`` is the whole module: a cubin or a code object.
    """

    name: str
    arch: str
    compiler: str
    """The compiler and its version: "NVRTC 13.5"."""
    seconds: float = field(compare=False)
    """How long the module's compilation took here."""
    registers: int
    accumulators: int = 0
    scalar_registers: int | None = None
    spills: int
    """What does not fit in registers, in ``spill_unit``; 0 means the same in both."""
    spill_unit: str
    """ "bytes" of spill stores and loads in the code (NVIDIA) or vector "registers" (AMD)."""
    scalar_spills: int = 0
    """Scalar registers that are kept in lanes of vector registers."""
    stack: int
    shared_memory: int
    wave_size: int
    max_threads: int | None = None
    """The largest block that it was compiled for; None where the module does not state it."""
    code: bytes = field(repr=False, compare=False)

    def occupancy(self, threads: int, *, dynamic_shared_memory: int = 0) -> Occupancy:
        """The occupancy with blocks of that many threads; raises as ``sizing.occupancy`` does."""
        from portagpu.devices.sizing import occupancy_of_code

        return occupancy_of_code(
            load_architecture(self.arch),
            threads,
            registers=self.registers,
            accumulators=self.accumulators,
            scalar_registers=self.scalar_registers,
            shared_memory=self.shared_memory + dynamic_shared_memory,
            wave_size=self.wave_size,
        )
