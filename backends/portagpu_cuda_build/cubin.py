"""NVIDIA's cubins: which kernels they hold, and for blocks of which size each was compiled.

What else a kernel takes is in the assembler's report. ``.nv.info.<kernel>`` is a list of
attributes: a format and a number of a byte each, then 16 bits that are the value, or for format 4
the size of what follows. ``cuobjdump -elf`` prints them by name.
"""

from __future__ import annotations

import struct
from typing import Final

from portagpu.devices.machine_code import Elf

_MACHINE: Final = "EM_CUDA"
_CODE: Final = ".text."
_INFO: Final = ".nv.info."
_ATTRIBUTE: Final = struct.Struct("<BBH")
_SIZED: Final = 4  # EIFMT_SVAL
_MAX_THREADS: Final = 5  # EIATTR_MAX_THREADS: of __launch_bounds__, x, y and z
_THREADS: Final = struct.Struct("<III")


def max_threads(cubin: bytes) -> dict[str, int | None]:
    """The functions with machine code in a cubin, and the largest block of each.

    None where the source bounds no block. Raises ValueError for what is no cubin.
    """
    elf = Elf(cubin)
    if elf.machine != _MACHINE:
        raise ValueError(f"this ELF file is for machine {elf.machine}, not a cubin")
    held = elf.contents()
    names = [name.removeprefix(_CODE) for name in held if name.startswith(_CODE)]
    return {name: _largest_block(held.get(_INFO + name, b"")) for name in names}


def _largest_block(attributes: bytes) -> int | None:
    at = 0
    try:
        while at < len(attributes):
            form, number, value = _ATTRIBUTE.unpack_from(attributes, at)
            at += _ATTRIBUTE.size
            if form != _SIZED:
                continue
            if number == _MAX_THREADS:
                x, y, z = _THREADS.unpack_from(attributes, at)
                return int(x * y * z)
            at += value
    except struct.error:
        raise ValueError("this cubin's attributes are cut off") from None
    return None
