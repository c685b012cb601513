"""What ptxas prints with ``-v``, for each kernel: CUDA 11 to 13, also in NVRTC's log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_ENTRY: Final = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
_STACK: Final = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
_USED: Final = re.compile(r"Used (\d+) registers(.*)")
_SHARED: Final = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class Usage:
    """One kernel: registers and bytes of stack a thread, bytes of shared memory a block.

    ``spills`` are the bytes of all spill stores and loads in the code.
    """

    name: str
    arch: str
    registers: int
    shared_memory: int
    stack: int
    spills: int


def read_usage(log: str) -> tuple[Usage, ...]:
    """Every kernel that the log reports in full, in its order."""
    found = []
    parts = _ENTRY.split(log)[1:]
    for name, arch, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        used, stack = _USED.search(text), _STACK.search(text)
        if used is None or stack is None:
            continue
        shared = _SHARED.search(used[2])
        found.append(
            Usage(
                name=name,
                arch=arch,
                registers=int(used[1]),
                shared_memory=int(shared[1]) if shared else 0,
                stack=int(stack[1]),
                spills=int(stack[2]) + int(stack[3]),
            )
        )
    return tuple(found)
