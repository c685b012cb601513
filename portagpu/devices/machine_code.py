"""The interface of vendors' compilers, and readers of machine code."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias

from portagpu.base.documents import DocumentError, bounded, decode, one_of
from portagpu.base.errors import MissingDependency, PortagpuError, Unsupported
from portagpu.base.plugins import install
from portagpu.facts.targets import load_architecture

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from portagpu.devices.sizing import Occupancy


TRITON: Final = "Triton"
"""The name of that compiler in results."""
MAJOR: Final = 3
"""The major version of Triton that the kernels and readers of machine code support."""
_VERSION: Final = re.compile(r"^__version__ = ['\"]([^'\"]+)['\"]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Compiler:
    """``stamp`` changes with the installed files, where the version does not."""

    name: str
    version: str
    stamp: str

    def __str__(self) -> str:
        """ "Triton 3.9.0"."""
        return f"{self.name} {self.version}"


def find_compiler() -> Compiler:
    """The installed Triton; raises MissingDependency that says what to install."""
    try:
        spec = importlib.util.find_spec("triton")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise MissingDependency(f"Triton is not installed: {install('compile')}")
    file = Path(spec.origin)
    try:
        found = _VERSION.search(file.read_text("utf-8", "replace"))
    except OSError as error:
        raise MissingDependency(
            f"cannot read {file}: {error.strerror}; {install('compile')}"
        ) from error
    if found is None:
        raise MissingDependency(f"{file} states no version; reinstall triton: {install('compile')}")
    version = found.group(1)
    if version.split(".", 1)[0] != str(MAJOR):
        raise MissingDependency(
            f"Triton {version} is installed, the kernels are written for Triton {MAJOR}: "
            f"{install('compile')}"
        )
    return Compiler(TRITON, version, stamp(sorted(file.parent.glob("_C/*.so"))))


def stamp(files: Iterable[Path]) -> str:
    """A digest of names, sizes and times of files. It changes with the installation."""
    stated = []
    for file in files:
        about = file.stat()
        stated.append(f"{file.name} {about.st_size} {about.st_mtime_ns}")
    return hashlib.sha256("\n".join(stated).encode()).hexdigest()


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
        """The occupancy with blocks of that many threads.

        :param threads: threads a block.
        :param dynamic_shared_memory: bytes a block that the launch adds to the kernel's own.
        :returns: blocks and waves a unit, and what limits them.
        :raises TargetNotFound: for an architecture without facts.
        :raises Unsupported: for an architecture that has no occupancy.
        :raises LimitExceeded: for more than a block or thread can have there.
        """
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


class CodeError(Exception):
    """The machine code cannot be read; the message says why, in one line."""


_MAX_COUNT: Final = 2**31 - 1
Count: TypeAlias = Annotated[int, bounded("a whole number of 31 bits", 0, _MAX_COUNT, integer=True)]
Occurrences: TypeAlias = Annotated[
    int, bounded("a whole number from 1, of 31 bits", 1, _MAX_COUNT, integer=True)
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
    unit_reads: Mapping[str, Occurrences] = field(default_factory=dict)
    """How often each register is read that names the hardware unit; see :class:`UnitReading`."""

    @classmethod
    def from_json(cls, found: object) -> MachineCode | None:
        """Decode the output of ``portagpu.base.documents.encode``; None for another form."""
        try:
            return decode(cls, found, "code")
        except DocumentError:
            return None


@dataclass(frozen=True, slots=True)
class UnitPart:
    """One number in the name of a hardware unit: ``bits`` bits of a word, from ``low`` on."""

    name: str
    """What it counts: "SM", "SE"."""
    low: int
    bits: int
    word: int = 0
    """Which instruction's word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitReading:
    """How code on a device reads which hardware unit executes it. Since contract 1.5.

    ``assembly`` has one instruction for each word of 32 bits, one or two, in the form of LLVM's
    inline assembly with the result as ``$0``, whose constraint is ``constraint``. ``registers`` are
    what they read, as :attr:`MachineCode.unit_reads` names them. ``parts`` are the numbers of the
    unit's name, in order. ``source`` says where the vendor states this.
    """

    assembly: tuple[str, ...]
    constraint: str
    registers: tuple[str, ...]
    parts: tuple[UnitPart, ...]
    source: str

    def name(self, words: int) -> str:
        """The unit that ``words`` name: "SM 17", "XCC 3 SE 1 SH 0 CU 5".

        The first instruction's word is the lower half of ``words``, the second one's the upper.
        """
        numbers = (
            (each.name, words >> (32 * each.word + each.low) & ((1 << each.bits) - 1))
            for each in self.parts
        )
        return " ".join(f"{name} {number}" for name, number in numbers)


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
        """The figures of the stages in ``code``.

        :param code: stage -> its text or bytes, as in ``asm`` of Triton's compiled kernel.
        :param threads: threads a block of the launch that it was compiled for.
        :param warps: warps a block of that launch.
        :param matrix: whether the caller needs matrix instructions and reads of the unit; without
            it none need be read.
        :returns: registers, spills, memory and instructions.
        :raises CodeError: where the code cannot be read.
        """

    def unit_reading(self, arch: str) -> UnitReading | None:
        """How code for ``arch`` reads its hardware unit; None where the vendor documents no way.

        Since contract 1.5. :meth:`inspect` counts what is read in ``unit_reads``.
        """
        del arch
        return None

    def cpp_compilers(self, archs: Sequence[str]) -> Mapping[str, Compiler | str]:
        """For each architecture the compiler that builds C++ for it here, or what to install.

        Nothing is compiled. Like :meth:`compile_cpp` it may load a vendor's library or start its
        programs: callers ask in a child process. Raises Unsupported where the vendor has no C++.
        """
        raise Unsupported(f"the backend for {self.vendor} builds no C++")

    def compile_cpp(self, source: str, arch: str) -> tuple[CompiledKernel, ...]:
        """Every ``extern "C" __global__`` function of a CUDA or HIP C++ source, for ``arch``.

        The compiler may hang, print or end this process: callers are child processes with a limit.

        :param source: the text of the source.
        :param arch: the architecture's name, such as "sm_90".
        :returns: one kernel for each function.
        :raises MissingDependency: with what to install.
        :raises CompileError: with the compiler's words, where it refuses the source.
        :raises CompilerEnded: where the compiler died.
        :raises Unsupported: where the vendor has no C++.
        """
        raise Unsupported(f"the backend for {self.vendor} builds no C++")


_IDENT: Final = b"\x7fELF\x02\x01"


def library(name: str, distribution: str) -> Any:
    """Import a module that reads machine code; raises MissingDependency with what to install."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependency(
            f"machine code is read by {distribution}: {install('compile')}"
        ) from error


def check_readers() -> None:
    """Raise MissingDependency where a library for reading machine code is not installed."""
    library("elftools.elf.elffile", "pyelftools")
    library("msgpack", "msgpack")


class Elf:
    """A 64-bit little-endian file (System V ABI). Raises ValueError for any other bytes."""

    def __init__(self, data: bytes) -> None:
        if data[: len(_IDENT)] != _IDENT:
            raise ValueError("not a 64-bit little-endian ELF file")
        elffile = library("elftools.elf.elffile", "pyelftools")
        with _damage_as_error():
            self._file = elffile.ELFFile(io.BytesIO(data))
            self._sections = list(self._file.iter_sections())
            self.machine: int | str = self._file["e_machine"]
            """ "EM_CUDA", "EM_AMDGPU", or the number of what pyelftools does not know."""

    def contents(self) -> dict[str, bytes]:
        """The bytes of the sections that are not empty, by name."""
        with _damage_as_error():
            held = {each.name: bytes(each.data()) for each in self._sections}
        return {name: data for name, data in held.items() if data}

    def notes(self) -> Iterator[tuple[str, int, bytes]]:
        """Owner, type and content of every note."""
        with _damage_as_error():
            for section in self._sections:
                if section["sh_type"] == "SHT_NOTE":
                    for note in section.iter_notes():
                        yield note["n_name"], note["n_type"], note["n_descdata"]


@contextlib.contextmanager
def _damage_as_error() -> Iterator[None]:
    """Turn what pyelftools raises for a damaged file into a ValueError."""
    try:
        yield
    except (ValueError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"this ELF file is damaged: {error}") from error
