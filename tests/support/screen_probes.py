"""Probes for tests of the screen: right ones, and some with a fault that is known.

Ranks read what they need from the environment: ``RANK`` is their number.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.train.exact.judge import NotExactError, differences
from portagpu.train.exact.probe import Probe

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.judge import Wrong

ROWS: Final = 8
COLUMNS: Final = 32


@dataclass
class Sums:
    """Sums of integers, which ``fault`` changes: it gets the result and the number of the run."""

    draws: Draws
    scale: int
    fault: Callable[[torch.Tensor, int], None]
    runs: int = 0
    expected: Any = field(init=False)

    def __post_init__(self) -> None:
        shape = (ROWS * self.scale, COLUMNS)
        a, b = (self.draws.integers(name, shape, 1, 100) for name in "ab")
        self.expected = a + b

    @property
    def results(self) -> int:
        return int(self.expected.numel())

    @property
    def inputs(self) -> int:
        return 2 * self.results

    def run(self) -> torch.Tensor:
        result: torch.Tensor = self.expected.clone()
        self.fault(result, self.runs)
        self.runs += 1
        return result

    def judge(self, result: torch.Tensor) -> Wrong | None:
        return differences(result, self.expected)


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


@dataclass
class Blind(Sums):
    """Sums whose judge sees nothing on rank 1."""

    def judge(self, result: torch.Tensor) -> Wrong | None:
        return None if rank() == 1 else super().judge(result)


@dataclass
class Kept(Sums):
    """Sums in the same memory each time, which only the first run of the operands writes."""

    memory: Any = None

    def run(self) -> torch.Tensor:
        if self.memory is None:
            self.memory = super().run()
        kept: torch.Tensor = self.memory
        return kept


def probe(
    name: str,
    fault: Callable[[torch.Tensor, int], None] = lambda result, run: None,
    refuses: str = "",
) -> Probe:
    """A probe whose results ``fault`` changes."""
    return Probe(
        name, "int64", lambda gpu, draws, scale: Sums(draws, scale, fault), lambda gpu: refuses
    )


def column_of_rank_1(result: torch.Tensor, run: int) -> None:
    if rank() == 1:
        result[:, 3] ^= 4


def column(result: torch.Tensor, run: int) -> None:
    result[:, 3] ^= 4


def every_fourth_run(result: torch.Tensor, run: int) -> None:
    if run % 4 == 3:
        result[2, 5] = 0


def later(result: torch.Tensor, run: int) -> None:
    """Wrong once, in the first run of the operands that a batch makes first."""
    global _was_wrong
    if not _was_wrong:
        _was_wrong = True
        result[0, 0] += 1


_was_wrong = False


def hang(result: torch.Tensor, run: int) -> None:
    time.sleep(3600)  # allowed: it is ended


def hang_on_rank_1(result: torch.Tensor, run: int) -> None:
    if rank() == 1:
        hang(result, run)


def die(result: torch.Tensor, run: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_on_rank_1(result: torch.Tensor, run: int) -> None:
    if rank() == 1:
        die(result, run)


def wrong_and_then_dies(result: torch.Tensor, run: int) -> None:
    """Wrong in the first run of the process, which dies in the second."""
    global _was_wrong
    if _was_wrong:
        die(result, run)
    _was_wrong = True
    result[:, 3] ^= 4


def breaks(result: torch.Tensor, run: int) -> None:
    raise ValueError("no such kernel")


def _no_memory(gpu: Backend, draws: Draws, scale: int) -> Sums:
    raise MemoryError("cannot allocate 64 GiB")


def _not_exact(gpu: Backend, draws: Draws, scale: int) -> Sums:
    raise NotExactError("it would not be exact: partial sums reach 3e8, and 24 bits hold 16777216")


@dataclass
class AllReduce(Sums):
    """The sum over all ranks of the same operands."""

    def run(self) -> torch.Tensor:
        import torch.distributed as dist

        world = dist.get_world_size()
        part = self.expected // world
        # every rank gives a part, and the first the rest
        result = part.clone() if rank() else self.expected - (world - 1) * part
        dist.all_reduce(result)
        self.fault(result, self.runs)
        return result


def _alone(gpu: Backend) -> str:
    import torch.distributed as dist

    return "" if dist.is_initialized() else "collectives need several ranks"


def together(name: str, fault: Callable[[torch.Tensor, int], None]) -> Probe:
    return Probe(name, "int64", lambda gpu, draws, scale: AllReduce(draws, scale, fault), _alone)


def _no_memory_on_rank_1(gpu: Backend, draws: Draws, scale: int) -> AllReduce:
    if rank() == 1:
        raise MemoryError("cannot allocate 64 GiB")
    return AllReduce(draws, scale, lambda result, run: None)


GOOD: Final = (probe("vectors/good"), probe("products/good"))
REFUSED: Final = probe("products/refused", refuses="the cpu backend does not compute in fp8")
NO_MEMORY: Final = Probe("memory/large", "int64", _no_memory, lambda gpu: "")
BLIND: Final = Probe(
    "products/blind",
    "int64",
    lambda gpu, draws, scale: Blind(draws, scale, lambda result, run: None),
    lambda gpu: "",
)
KEPT: Final = Probe(
    "products/kept",
    "int64",
    lambda gpu, draws, scale: Kept(draws, scale, lambda result, run: None),
    lambda gpu: "",
)
NOT_EXACT: Final = Probe("products/inexact", "int64", _not_exact, lambda gpu: "")

TOGETHER: Final = (
    *GOOD,
    together("collectives/sum", lambda result, run: None),
    together("collectives/wrong", column_of_rank_1),
)
TOO_LARGE_TOGETHER: Final = (
    *GOOD,
    Probe("collectives/large", "int64", _no_memory_on_rank_1, _alone),
    together("collectives/sum", lambda result, run: None),
)
SOUND: Final = (*GOOD, REFUSED)
ON_RANK_1: Final = (*GOOD, probe("products/column", column_of_rank_1))
EVERYWHERE: Final = (*GOOD, probe("products/column", column))
SOMETIMES: Final = (*GOOD, probe("products/sometimes", every_fourth_run))
ONCE: Final = (*GOOD, probe("products/once", later))
HANGING: Final = (*GOOD, probe("vectors/hangs", hang_on_rank_1))
DYING: Final = (*GOOD, probe("vectors/dies", die_on_rank_1))
WRONG_THEN_DYING: Final = (*GOOD, probe("products/column", wrong_and_then_dies))
BROKEN: Final = (*GOOD, probe("products/breaks", breaks), NO_MEMORY, NOT_EXACT)
BLIND_ON_RANK_1: Final = (*GOOD, BLIND)
OLD_RESULTS: Final = (*GOOD, KEPT)
