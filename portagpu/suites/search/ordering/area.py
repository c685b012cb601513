"""The area ``ordering``: programs of kernels on streams, and how long their long work is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Final

from portagpu.suites.search.area import Area
from portagpu.suites.search.ordering.kernels import Kernels, TorchKernels
from portagpu.suites.search.ordering.model import Kernel
from portagpu.suites.search.ordering.run import START, Run
from portagpu.suites.search.programs import methods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank
    from portagpu.suites.search.programs import Program, Runners

FACTOR: Final = 4
"""By how much work gets longer where it was over too early."""
PROBE_S: Final = 0.1
"""A device whose launches hold the host for that long works while it launches."""
PROVED: Final = 32
"""After so many programs whose work was long enough at once, shorter work is tried again."""


@dataclass(slots=True)
class Length:
    """The length of long work on one device, and how often it was long enough."""

    gpu: Backend
    kernels: Kernels
    work: int = 0
    """0 where the device has nothing in flight when a call returns."""
    streak: int = 0

    def find(self) -> str:
        """The shortest work behind which an event is pending; a difference, or an empty text."""
        if not self.gpu.supports("events"):
            self.work = 1
            return ""
        self.kernels.start(START)
        event, work, buffer = self.gpu.Event(), 1, "a"
        while True:
            began = time.perf_counter()
            self.kernels.busy(work)
            self.kernels.launch(Kernel("write", buffer, value=work))
            event.record()
            over = event.query()
            if not over or work == self.kernels.most or time.perf_counter() - began > PROBE_S:
                break
            work *= FACTOR
        found = self.kernels.peek(buffer)
        self.gpu.synchronize()
        if over and found != {work}:
            return "an event said that it had happened before the work that it stands for was done"
        self.work = 0 if over else work
        return ""

    def proved(self, work: int, at_once: bool) -> None:
        """Work of that length was in flight for long enough."""
        self.work = work
        self.streak = self.streak + 1 if at_once else 0
        if self.streak > PROVED:
            self.work, self.streak = max(1, work // FACTOR), 0


class Ordering(Area):
    """``kernels`` makes what launches kernels on a device."""

    name = "ordering"

    def __init__(self, kernels: Callable[[Backend], Kernels] = TorchKernels) -> None:
        self.kernels = kernels
        self._early = 0
        """How many programs had no work in flight when they looked at it."""
        self._length: Length | None = None

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        from portagpu.suites.search.ordering.draw import programs_for

        return programs_for(gpu)

    def aside(self) -> Iterator[str]:
        return repeat("the work was over too early", self._early)

    def unjudged(self) -> int:
        return self._early

    def calls(self) -> Runners:
        return methods(Run, "_")

    def difference(self, rank: Rank, program: Program) -> str:
        length = self._length
        if length is None or length.gpu is not rank.gpu:
            length = Length(rank.gpu, self.kernels(rank.gpu))
            wrong = length.find()
            if wrong:
                return wrong
            self._length = length
        first = work = length.work
        while True:
            run = Run(rank.gpu, length.kernels, work)
            found = run.all(program)
            if found or not run.early:
                break
            if work >= length.kernels.most:
                self._early += 1
                return ""
            work = min(work * FACTOR, length.kernels.most)
        if work and not found:
            length.proved(work, work == first)
        return found


AREA: Final = Ordering()
