"""What a vendor adds to the compilation: how Triton names its GPUs, and how its code is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping


class CodeError(Exception):
    """The machine code cannot be read; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class MachineCode:
    """What one kernel's machine code says of itself.

    ``registers`` are 32-bit vector registers a thread; ``spill_bytes`` is memory a thread that
    holds what did not fit them; ``scalar_spills`` are scalar registers kept in lanes of vector
    registers, which costs no memory (None where a vendor has none). ``matrix`` counts matrix
    instructions by mnemonic.
    """

    wave_size: int
    registers: int
    spill_bytes: int
    scalar_spills: int | None
    matrix: Mapping[str, int]


class Toolchain(ABC):
    """One vendor's side of a compilation by Triton. Imports neither torch nor triton by itself.

    ``vendor`` is the one of the targets ("nvidia", "amd").
    """

    vendor: ClassVar[str]

    @abstractmethod
    def triton_target(self, arch: str) -> tuple[str, int | str]:
        """Triton's names for an architecture: its backend, and what it calls the chip."""

    @abstractmethod
    def inspect(
        self, code: Mapping[str, str | bytes], threads: int, warps: int, *, matrix: bool
    ) -> MachineCode:
        """What the stages in ``code`` (``asm`` of Triton's compiled kernel) hold.

        The launch was compiled for ``threads`` a block in ``warps``. Without ``matrix`` the
        instructions need not be read. Raises CodeError for what cannot be read.
        """
