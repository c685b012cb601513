"""A vendor's part of the compilation: its names in Triton, C++ compilers and readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, TypeAlias

from portagpu.base.documents import DocumentError, bounded, decode, one_of
from portagpu.base.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.devices.machine_code.compiled import CompiledKernel
    from portagpu.devices.machine_code.compiler import Compiler


class CodeError(Exception):
    """The machine code cannot be read; the message says why, in one line."""


_LARGEST: Final = 2**31 - 1
Count: TypeAlias = Annotated[int, bounded("a whole number of 31 bits", 0, _LARGEST, integer=True)]
Occurrences: TypeAlias = Annotated[
    int, bounded("a whole number from 1, of 31 bits", 1, _LARGEST, integer=True)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCode:
    """The figures in one kernel's machine code.

    ``registers`` are 32-bit vector registers a thread, of which ``accumulators`` are accumulation
    registers; ``scalar_registers`` are those of a wave, ``scalar_spills`` those of them kept in
    lanes of vector registers, which costs no memory (None where a vendor has none). ``threads`` is
    the largest block that it was compiled for, None where the code does not say.
    """

    wave_size: Count
    threads: Count | None
    registers: Count
    accumulators: Count = 0
    scalar_registers: Count | None = None
    spills: Count
    """What does not fit in registers, in ``spill_unit``; 0 means the same in all."""
    spill_unit: Annotated[str, one_of("B", "registers")]
    """"B" of memory a thread or of spill code, or vector "registers"."""
    scalar_spills: Count | None = None
    stack_bytes: Count | None = None
    """Memory of a thread; None where ``spills`` counts it."""
    shared_bytes: Count = 0
    """Shared memory of a block, static and dynamic."""
    matrix: Mapping[str, Occurrences]
    """How often each matrix instruction occurs, by mnemonic."""

    @classmethod
    def from_json(cls, found: object) -> MachineCode | None:
        """Decode the output of ``portagpu.base.documents.encode``; None for another form."""
        try:
            return decode(cls, found, "code")
        except DocumentError:
            return None


@dataclass(frozen=True, slots=True)
class Cupy:
    """The CuPy that launches a vendor's C++: its requirement for pip, and whether it is for HIP.

    No extra can name the distribution, because it depends on the driver.
    """

    install: str
    is_hip: bool


class Toolchain(ABC):
    """One vendor's side of a compilation. Imports neither torch nor triton by itself.

    ``vendor`` is the one of the targets ("nvidia", "amd").
    """

    vendor: ClassVar[str]
    cupy: ClassVar[Cupy | None] = None
    """The launcher of C++ kernels on this vendor's devices; None without one."""

    @abstractmethod
    def triton_target(self, arch: str) -> tuple[str, int | str]:
        """Triton's names for an architecture: its backend and its chip."""

    @abstractmethod
    def inspect(
        self, code: Mapping[str, str | bytes], threads: int, warps: int, *, matrix: bool
    ) -> MachineCode:
        """The figures of the stages in ``code`` (``asm`` of Triton's compiled kernel).

        The launch was compiled for ``threads`` a block in ``warps``. Without ``matrix`` the
        instructions need not be read. Raises CodeError where the code cannot be read.
        """

    def cpp_compilers(self, archs: Sequence[str]) -> Mapping[str, Compiler | str]:
        """For each architecture the compiler that builds C++ for it here, or what to install.

        Nothing is compiled. Like :meth:`compile_cpp` it may load a vendor's library or start its
        programs: callers ask in a child process. Raises Unsupported where the vendor has no C++.
        """
        raise Unsupported(f"the backend for {self.vendor} builds no C++")

    def compile_cpp(self, source: str, arch: str) -> tuple[CompiledKernel, ...]:
        """Every ``extern "C" __global__`` function of a CUDA or HIP C++ source, for ``arch``.

        The compiler may hang, print or end this process: callers are child processes with a limit.
        Raises MissingDependency, which says what to install, CompileError with the compiler's words
        where it refuses the source, CompilerEnded where it died, and Unsupported where the vendor
        has no C++.
        """
        raise Unsupported(f"the backend for {self.vendor} builds no C++")
