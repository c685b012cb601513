"""Areas of devices that are right, wrong, flaky, deadly or slow, and the ranks that search them."""

from __future__ import annotations

import os
import signal
import time
from itertools import count
from typing import TYPE_CHECKING, Any

from portagpu.suites.search import worker as rounds
from portagpu.suites.search.area import AREAS, Area, NotSearchable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank, Ranks
    from portagpu.suites.search.area import Program, Runners


def prepare(ranks: Ranks) -> Ranks:
    """Have the rank server import what each rank that searches would take a second for."""
    names = ["collectives-4", "memory"]
    ranks.prepare("portagpu.suites.search.worker:load_areas", backend="cpu", names=names)
    return ranks


def _wrong() -> str:
    return "the sum is another one"


def _flaky() -> str:
    return "the sum is another one" if os.urandom(1)[0] < 100 else ""


def _dies() -> str:
    os.kill(os.getpid(), signal.SIGSEGV)
    return ""


_ran = count(1)


def _dies_at_the_third() -> str:
    """Of each process."""
    return _dies() if next(_ran) == 3 else ""


def _ends_the_server() -> str:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(5)  # allowed: its process is ended meanwhile
    return ""


def _wrong_after_a_while() -> str:
    time.sleep(0.5)  # allowed: it is slow
    return _wrong()


def _hangs() -> str:
    time.sleep(600)
    return ""


def _raises() -> str:
    raise RuntimeError("the device was lost")


class Adding(Area):
    """Programs that add numbers; the device does what ``wrong`` says where one is above 40."""

    def __init__(self, wrong: Callable[[], str]) -> None:
        self.wrong = wrong

    name = "adding"

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:

        from portagpu.suites.search.strategies import call, programs

        return programs(call("add", n=range(256)), call("rest"))

    def calls(self) -> Runners:
        return {"add": lambda n: n, "rest": lambda: None}

    def difference(self, rank: Rank, program: Program) -> str:
        if any(given.get("n", 0) > 40 for _, given in program):
            return self.wrong()
        return ""


class Unjudged(Adding):
    """The same, where nothing of a program can be judged."""

    ran = 0

    def unjudged(self) -> int:
        return self.ran

    def aside(self) -> Iterator[str]:
        return iter(["no sample"] * self.ran)

    def difference(self, rank: Rank, program: Program) -> str:
        self.ran += 1
        return ""


class LoadsForLong(Adding):
    """The same, which needs longer to load than a program may hang."""

    start_s = 60.0

    def load(self) -> None:
        time.sleep(3.0)  # allowed: it is slow


class Damaged(Adding):
    """Programs of four calls at most; what is wrong comes four calls after one that adds above 40.

    So another program damages what the one uses that fails, and all later ones of the process.
    """

    def __init__(self, wrong: Callable[[], str]) -> None:
        super().__init__(wrong)
        self.calls_since = -1

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:

        from portagpu.suites.search.strategies import call, programs

        return programs(call("add", n=range(256)), call("rest"), most=4)

    def difference(self, rank: Rank, program: Program) -> str:
        for _, given in program:
            if self.calls_since >= 0:
                self.calls_since += 1
            elif given.get("n", 0) > 40:
                self.calls_since = 0
        return self.wrong() if self.calls_since >= 4 else ""


class SlowToLoad(Adding):
    """The same, where what draws the programs needs longer than a short search."""

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:

        from hypothesis import strategies as st

        return st.deferred(lambda: _slowly(super(SlowToLoad, self).programs(gpu)))


def _slowly(made: Any) -> Any:
    time.sleep(0.5)  # allowed: it is slow
    return made


class Slow(Adding):
    """The same on a device that takes 0.05 s for each program by the clock of a round."""

    spent_s = 0.0

    def load(self) -> None:
        rounds.charged_s = lambda: self.spent_s

    def difference(self, rank: Rank, program: Program) -> str:
        # as long for the search, which counts rounds by its own clock
        time.sleep(0.05)  # allowed: it is slow
        self.spent_s += 0.05
        return super().difference(rank, program)


class Listed(Adding):
    """The same of sixty listed programs, and every tenth is not judged."""

    def __init__(self, wrong: Callable[[], str], missing: str = "", count: int = 60) -> None:
        super().__init__(wrong)
        self.missing = missing
        self.count = count
        self.reasons: list[str] = []

    def listed(self, gpu: Backend) -> list[Program] | None:
        if self.missing:
            raise NotSearchable(self.missing)
        return [[("add", {"n": n})] for n in range(self.count)]

    def aside(self) -> Iterator[str]:
        return iter(self.reasons)

    def difference(self, rank: Rank, program: Program) -> str:
        self.listed(rank.gpu)
        if program[0][1]["n"] % 10 == 0:
            self.reasons.append("n ends in 0")
            return ""
        return super().difference(rank, program)


LISTED = Listed(str)
LISTED_WRONG = Listed(_wrong)
LISTED_DIES = Listed(_dies)
LISTED_MISSING = Listed(str, "install adding")
LISTED_NONE = Listed(str, count=0)
DAMAGED = Damaged(_wrong)
DAMAGED_DIES = Damaged(_dies)
SLOW = Slow(str)
SLOW_TO_LOAD = SlowToLoad(str)
RIGHT = Adding(str)
WRONG = Adding(_wrong)
FLAKY = Adding(_flaky)
DIES = Adding(_dies)
DIES_AT_THE_THIRD = Adding(_dies_at_the_third)
ENDS_THE_SERVER = Adding(_ends_the_server)
WRONG_AFTER_A_WHILE = Adding(_wrong_after_a_while)
UNJUDGED = Unjudged(str)
LOADS_FOR_LONG = LoadsForLong(str)
HANGS = Adding(_hangs)
RAISES = Adding(_raises)


def _use(device: str) -> None:
    AREAS["adding"] = f"{__name__}:{device}"  # type: ignore[index]
    # ten repetitions of nothing end by themselves
    rounds.REPEAT_S = 600.0  # type: ignore[misc]


def search_rank(rank: Rank, device: str, **arguments: Any) -> Any:
    """``rounds.search_rank`` on that device."""
    _use(device)
    return rounds.search_rank(rank, **arguments)


def repeat_rank(rank: Rank, device: str, **arguments: Any) -> Any:
    """``rounds.repeat_rank`` on that device."""
    _use(device)
    return rounds.repeat_rank(rank, **arguments)
