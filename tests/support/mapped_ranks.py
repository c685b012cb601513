"""A rank whose file pages the kernel takes back and maps again while a program of memory runs."""

from __future__ import annotations

import mmap
import tempfile
from typing import TYPE_CHECKING, Any

from portagpu.suites.search.memory import AREA, run

if TYPE_CHECKING:
    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Program

SIZE = 48 << 20
"""Three times what a counter may be off."""


def differences(rank: Rank, program: Program) -> list[str]:
    """Of the program on its own, and while a mapped file comes and goes when a tensor is made.

    The file stands for the code that a process has mapped: the kernel counts both as ``RssFile``.
    """
    program = [(name, given) for name, given in program]
    alone = AREA.difference(rank, program)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(SIZE))
        file.flush()
        mapped = mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ)
        made, there = run.CALLS["make"], [False]

        def make(self: Any, **given: Any) -> None:
            there[0] = not there[0]
            if there[0]:
                # each page is read
                mapped[:: mmap.PAGESIZE].count(0)
            else:
                mapped.madvise(mmap.MADV_DONTNEED)
            made(self, **given)

        run.CALLS["make"] = make
        return [alone, AREA.difference(rank, program), AREA.difference(rank, program[1:])]
