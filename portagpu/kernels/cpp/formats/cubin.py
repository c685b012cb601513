"""NVIDIA's cubins: which kernels they hold. What a kernel takes is in the assembler's report."""

from __future__ import annotations

from typing import Final

from portagpu.kernels.cpp.formats.elf import read_elf

MACHINE: Final = 190
"""EM_CUDA."""
_CODE: Final = ".text."


def kernels_in(cubin: bytes) -> frozenset[str]:
    """The functions with machine code in a cubin. Raises ValueError where it is none."""
    elf = read_elf(cubin)
    if elf.machine != MACHINE:
        raise ValueError(f"this ELF file is for machine {elf.machine}, not a cubin")
    return frozenset(
        section.name.removeprefix(_CODE)
        for section in elf.sections
        if section.name.startswith(_CODE) and section.data
    )
