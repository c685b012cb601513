"""NVIDIA's cubins: which kernels they hold. What a kernel takes is in the assembler's report."""

from __future__ import annotations

from typing import Final

from portagpu.kernels.cpp.formats.elf import Elf

_MACHINE: Final = "EM_CUDA"
_CODE: Final = ".text."


def kernels_in(cubin: bytes) -> frozenset[str]:
    """The functions with machine code in a cubin. Raises ValueError where it is none."""
    elf = Elf(cubin)
    if elf.machine != _MACHINE:
        raise ValueError(f"this ELF file is for machine {elf.machine}, not a cubin")
    return frozenset(
        name.removeprefix(_CODE) for name in elf.with_content() if name.startswith(_CODE)
    )
