"""The area ``memory``: programs of tensors, and the counters after each of their calls.

A program holds at most MAX_LIVE bytes. Every tensor is written, because untouched pages are not
resident on a CPU, and is read again when memory was released and at the end: what ``empty_cache``
frees is nobody's, and what is written into a view is in all views of its memory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from portagpu.facts.capability import Capability
from portagpu.suites.search.area import Area, has_contract
from portagpu.suites.search.memory.model import (
    MIB,
)
from portagpu.suites.search.memory.run import CALLS, SLOTS, Run

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Program, Runners

SIZES: Final = (20 * MIB, 24 * MIB + 8, 40 * MIB, 28 * MIB - 8, 64 * MIB)
DTYPES: Final = ("uint8", "float32", "float16", "int64", "complex64", "bool")
MAKERS: Final = ("full", "ones", "empty", "zeros")
VIEWS: Final = ("detach", "slice", "reshape", "expand", "transpose")
BY: Final = ("method", "function")
"""Whether the handle is asked, or the module's function for the current device."""


FIRST: Final[Program] = [
    ("make", {"slot": "x", "size": 20 * MIB, "dtype": "float32", "maker": "full"}),
    ("clone", {"slot": "y", "source": "x"}),
    ("view", {"slot": "z", "source": "x", "view": "slice", "write": True}),
    ("grow", {"slot": "y"}),
    ("write", {"slot": "x"}),
    ("temporary", {"slot": "x", "error": True}),
    ("graph", {"slot": "y", "size": 20 * MIB, "links": 2}),
    ("backward", {"slot": "y"}),
    ("read", {"thread": True, "by": "method"}),
    ("info", {"by": "function"}),
    ("release", {"by": "function"}),
    *(
        call
        for number, dtype in enumerate(DTYPES)
        for call in (
            (
                "make",
                {
                    "slot": "z",
                    "size": 20 * MIB,
                    "dtype": dtype,
                    "maker": MAKERS[number % len(MAKERS)],
                },
            ),
            ("release", {"by": "method"}),
        )
    ),
]
"""Every call once, and every dtype: the code that they need is resident memory too, and a kernel
may map it in pieces of 2 MiB."""


WARM_UPS: Final = 5
"""How often FIRST runs at most, until nothing differs."""


class _Memory(Area):
    name = "memory"

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        from portagpu.suites.search.strategies import call, programs

        flag = (False, True)
        make = call("make", slot=SLOTS, size=SIZES, dtype=DTYPES, maker=MAKERS)
        release = call("release", by=BY)
        read = call("read", thread=flag, by=BY)
        calls = [
            *(make, make, release, release, read, read, read),
            call("clone", slot=SLOTS, source=SLOTS),
            call("view", slot=SLOTS, source=SLOTS, view=VIEWS, write=flag),
            call("free", slot=SLOTS),
            call("free", slot=SLOTS),
            call("write", slot=SLOTS),
            call("grow", slot=SLOTS),
            call("temporary", slot=SLOTS, error=flag),
            call("graph", slot=SLOTS, size=SIZES[:2], links=(1, 2)),
            call("backward", slot=SLOTS),
            call("info", by=BY),
        ]
        if gpu.supports(Capability.PEAK_MEMORY):
            calls += [call("reset", by=BY), call("reset", by=BY)]
        if gpu.supports(Capability.IPC) and has_contract(gpu, 2):
            calls.append(call("ipc_collect", by=BY))
        return programs(*calls, most=8)

    def __init__(self) -> None:
        self._process = 0
        """The process in which each call has run once."""

    def calls(self) -> Runners:
        return CALLS

    def difference(self, rank: Rank, program: Program) -> str:
        if self._process != os.getpid():
            self._process = os.getpid()
            # at its first calls torch loads and keeps memory of its own; a difference ends a run
            for _ in range(WARM_UPS):
                if not self._one(rank, FIRST):
                    break
        return self._one(rank, program)

    def _one(self, rank: Rank, program: Program) -> str:
        run = Run(rank.gpu)
        try:
            return run.all(program)
        finally:
            run.tensors.clear()
            run.leaves.clear()
            run.release_memory()


AREA: Final = _Memory()
