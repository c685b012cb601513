"""Programs, and what the engine needs of an area: how they are drawn and judged. Arguments of calls
come from covering arrays: any two values of two arguments meet as soon as can be.

Most faults need one value, or two together (Kuhn, Wallace, Gallo: Software Fault Interactions and
Implications for Software Testing, IEEE Trans. Software Eng. 30(6), 2004). Independent draws repeat
pairs: of 693 pairs of five arguments 27 draws have a third, and 645 have all in the median. A
covering array has all of them in some 120 rows. Each row here is built greedily: the next argument
gets the value that makes the most new pairs with those before it (Cohen et al., The AETG System,
IEEE Trans. Software Eng. 23(7), 1997).

A program is a list of calls; a call is a name and its arguments, as JSON holds them.
What a program shows of a device is a difference: the clause that it breaks, and of which kind.

The kind says what else can be its cause. No load of the machine makes a value wrong. But a limit
of time may be met by ranks that wait for a CPU (:func:`excuse`), processes may be killed where
memory ends, and a counter of resident memory counts more than tensors.
"""

from __future__ import annotations

import inspect
import json
import os
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import PortagpuError
from portagpu.base.patience import PATIENCE
from portagpu.base.text import did_you_mean, error_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random

    from hypothesis.strategies import SearchStrategy

    from portagpu.base.patience import Starvation, Watch
    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank


DRAWN = frozenset({"seed"})
"""Arguments that number what is otherwise the same: they are drawn, and in no pair."""


@dataclass(slots=True)
class Rows:
    """Rows of values of named lists; ``random`` breaks ties, so that another seed has others.

    A value that stands twice in a list is two values, which are covered each. ``drawn`` names lists
    of which any value is as good.
    """

    lists: Mapping[str, Sequence[Any]]
    random: Random
    drawn: frozenset[str] = DRAWN
    total: int = field(init=False)
    """How many pairs there are."""
    _sizes: list[int] = field(init=False)
    _left: set[tuple[int, int, int, int]] = field(init=False)
    """Two lists by number, the first one before the second, and a place in each."""
    _open: Counter[tuple[int, int]] = field(init=False)
    """How many pairs of each list and place are left."""

    def __post_init__(self) -> None:
        self._sizes = [len(v) for name, v in self.lists.items() if name not in self.drawn]
        self._left = {
            (one, i, other, j)
            for one, other in combinations(range(len(self._sizes)), 2)
            for i in range(self._sizes[one])
            for j in range(self._sizes[other])
        }
        self._open = Counter(half for pair in self._left for half in (pair[:2], pair[2:]))
        self.total = len(self._left)

    @property
    def covered(self) -> int:
        """How many pairs have met."""
        return self.total - len(self._left)

    def row(self) -> dict[str, Any]:
        """The values of the next row."""
        left, chosen = self._left, dict[int, int]()
        # from the value on that lacks the most pairs, as the AETG system does
        open_pairs = max(self._open.values(), default=0)
        starts = [place for place, count in self._open.items() if count == open_pairs]
        if starts:
            first, value = self.random.choice(starts)
            chosen[first] = value
        others = [number for number in range(len(self._sizes)) if number not in chosen]
        for number in self.random.sample(others, len(others)):
            new = [
                sum(
                    ((k, at, number, i) if k < number else (number, i, k, at)) in left
                    for k, at in chosen.items()
                )
                for i in range(self._sizes[number])
            ]
            best = max(new)
            chosen[number] = self.random.choice([i for i, each in enumerate(new) if each == best])
        for one, other in combinations(sorted(chosen), 2):
            pair = (one, chosen[one], other, chosen[other])
            if pair in left:
                left.remove(pair)
                self._open[pair[:2]] -= 1
                self._open[pair[2:]] -= 1
        places = iter(chosen[number] for number in range(len(self._sizes)))
        return {
            name: self.random.choice(values) if name in self.drawn else values[next(places)]
            for name, values in self.lists.items()
        }


def once(values: Sequence[Any]) -> list[Any]:
    """The different values in their order, where some stand more often to be drawn more often."""
    return list({repr(each): each for each in values}.values())


@dataclass(frozen=True, slots=True)
class Swept:
    """One call of a sweep: its name, the arguments that are fixed, and the lists of the others."""

    name: str
    fixed: Mapping[str, Any]
    rows: Rows
    times: int = 1
    """How often it comes in a turn."""

    def fits(self, given: Mapping[str, Any]) -> bool:
        """Whether a call with those arguments may be this one."""
        return self.fixed.items() <= given.items() and self.rows.lists.keys() <= given.keys()


@dataclass(slots=True)
class Sweep:
    """Programs whose calls have rows of covering arrays as arguments, one array for each call.

    In a turn each call comes as often as it says, in a new order. A program is the next ``size``
    calls, and ``settled`` makes it one that has a meaning.
    """

    calls: Sequence[Swept]
    random: Random
    size: int
    settled: Callable[[Program], Program] = lambda program: program

    @property
    def total(self) -> int:
        """How many pairs of values there are."""
        return sum(each.rows.total for each in self.calls)

    @property
    def covered(self) -> int:
        """How many of them met in the programs so far."""
        return sum(each.rows.covered for each in self.calls)

    def programs(self) -> Iterator[Program]:
        """Programs until all pairs have met."""
        turn = [each for each in self.calls for _ in range(each.times)]
        pending: list[Call] = []
        while self.covered < self.total:
            for each in self.random.sample(turn, len(turn)):
                pending.append((each.name, {**each.fixed, **each.rows.row()}))
                if len(pending) == self.size:
                    yield self.settled(pending)
                    pending = []
        if pending:
            yield self.settled(pending)


Call = tuple[str, dict[str, Any]]
"""A call's name, and its arguments by name: numbers, texts, lists and None."""
Program = list[Call]
Runners = Mapping[str, Callable[..., Any]]
"""What runs each call, by its name: the arguments of the call are parameters of that name."""

MAX_REPEATS_S: Final = 120.0
"""What repeating and shrinking failures may add to the time of a search."""
MAX_PASS: Final = 3.0
"""How many times the seconds of a search the first pass of listed programs may take."""
_MAX_LINE = 400
_NOT_DRAWN: Final = frozenset({"self", "gpu", "index", "name", "rank", "ranks", "run"})
"""Parameters of what runs a call that are not arguments of the call."""


class ProgramError(PortagpuError, ValueError):
    """A text that is not a program; the message says what it should be."""


def to_text(area: str, program: Program) -> str:
    """The program in one line, as ``--program`` takes it."""
    calls = [[name, arguments] for name, arguments in program]
    return f"{area} {json.dumps(calls, separators=(',', ':'))}"


def from_text(text: str) -> tuple[str, Program]:
    """The area and the program of a line that :func:`to_text` wrote; raises ProgramError."""
    area, _, calls = text.strip().partition(" ")
    try:
        found = json.loads(calls)
        program = [(name, arguments) for name, arguments in found]
    except (ValueError, TypeError):
        program = []
    if not program or not all(
        isinstance(name, str) and isinstance(arguments, dict) for name, arguments in program
    ):
        raise ProgramError(
            f"not a program: {text[:60]!r}; copy the text after --program in the failure, with its "
            "quotes"
        )
    return area, program


def program_line(program: Program) -> str:
    """The program for people: ``seed(value=3); rand(n=5)``; a long one is cut."""
    line = "; ".join(
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for name, arguments in program
    )
    return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}..."


def check_calls(area: str, program: Program, known: Runners) -> None:
    """Raise ProgramError for a call, or an argument of it, that the area does not know."""
    for name, given in program:
        if name not in known:
            hint = did_you_mean(name, known, "the program may be of another version")
            raise ProgramError(f"{area} has no call {name!r}: {hint}")
        parameters = {
            key: each
            for key, each in inspect.signature(known[name]).parameters.items()
            if key not in _NOT_DRAWN
        }
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        for key in () if takes_any else given:
            if key not in parameters:
                hint = did_you_mean(key, parameters, f"it has {', '.join(parameters)}")
                raise ProgramError(f"the call {name!r} of {area} has no argument {key!r}: {hint}")
        for key, each in parameters.items():
            if (
                each.kind is not each.VAR_KEYWORD
                and each.default is each.empty
                and key not in given
            ):
                raise ProgramError(f"the call {name!r} of {area} needs the argument {key!r}")


def has_contract(gpu: Backend, minor: int) -> bool:
    """Whether the backend was written for contract 1.``minor`` or a later one.

    What a later contract added is not drawn for an older backend, and cannot be missing there.
    """
    return gpu.plugin.contract >= (1, minor)


class NotSearchable(PortagpuError, RuntimeError):
    """This machine lacks what an area needs; the message says what and how to get it."""


class Area(ABC):
    """One part of the contract with its model.

    Any of a program's calls may be left out: what a call has to work on may not be there, and then
    it does nothing. What :meth:`difference` finds depends on the program alone: it starts from a
    state that it makes itself, and leaves none.
    """

    name: str
    ranks: int = 1
    """On how many ranks a program runs."""
    start_s: float = 0.0
    """Seconds that :meth:`load` may take, on a busy machine."""
    wait_s: float = 0.0
    """Seconds after which a program itself reports that a device or a rank does not answer."""

    def load(self) -> None:  # noqa: B027 - most areas are loaded with their module
        """Import what the programs need, and open no device.

        It runs in the process from which ranks are forked, so that they need not do it.
        """

    @abstractmethod
    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        """Programs for what the device claims, the simplest first, so that they shrink well."""

    def sweep(self, gpu: Backend, chance: random.Random) -> Sweep | None:
        """Programs that come before the drawn ones, in which all pairs of arguments meet."""
        del gpu, chance
        return None

    def listed(self, gpu: Backend) -> list[Program] | None:
        """All programs of the area, where there are so few that none is drawn; else None.

        Raises NotSearchable where this machine lacks what it takes.
        """
        return None

    def ordered(self, listed: list[Program], seed: int) -> list[Program]:
        """Those programs in the order of a seed."""
        return random.Random(seed).sample(listed, len(listed))  # noqa: S311 - no secret

    def first_pass(self, listed: list[Program]) -> int:
        """How many of them run whatever they take, up to ``MAX_PASS`` times the seconds."""
        del listed
        return 1

    def aside(self) -> Iterator[str]:
        """What the programs of this process did not judge, one reason for each time."""
        return iter(())

    def unjudged(self) -> int:
        """How many programs of this process ran without anything of them being judged."""
        return 0

    @abstractmethod
    def calls(self) -> Runners:
        """What runs each call of a program."""

    @abstractmethod
    def difference(self, rank: Rank, program: Program) -> str:
        """The first difference between model and device, as a clause; empty if there is none.

        On an area of several ranks rank 0 calls it, and the others are in :meth:`follow`.
        """

    def follow(self, rank: Rank) -> None:
        """What the other ranks do until rank 0 calls :meth:`end`."""
        raise NotImplementedError(f"{self.name} is an area of one rank")

    def end(self, rank: Rank) -> None:  # noqa: B027 - one rank ends by itself
        """Rank 0 runs no further program."""


AREAS: Final[Mapping[str, str]] = {
    "collectives-2": "portagpu.suites.search.collectives.area:TWO",
    "collectives-3": "portagpu.suites.search.collectives.area:THREE",
    "collectives-4": "portagpu.suites.search.collectives.area:FOUR",
    "collectives-8": "portagpu.suites.search.collectives.area:EIGHT",
    "generators": "portagpu.suites.search.generators:AREA",
    "memory": "portagpu.suites.search.memory:AREA",
    "ordering": "portagpu.suites.search.ordering:AREA",
    "ranges": "portagpu.suites.search.ranges:AREA",
    "numbers": "portagpu.suites.search.numbers.area:AREA",
    "sizes": "portagpu.suites.search.sizes:AREA",
    "autocast": "portagpu.suites.search.autocast.area:AREA",
    "scaler": "portagpu.suites.search.scaler:AREA",
    "operators-elementwise": "portagpu.suites.search.operators.area:ELEMENTWISE",
    "operators-movement": "portagpu.suites.search.operators.area:MOVEMENT",
    "operators-reductions": "portagpu.suites.search.operators.area:REDUCTIONS",
    "operators-linalg": "portagpu.suites.search.operators.area:LINALG",
    "operators-nn": "portagpu.suites.search.operators.area:NN",
    "operators-other": "portagpu.suites.search.operators.area:OTHER",
}
"""Where each area is."""


def load_area(name: str) -> Area:
    """The area of that name; raises ProgramError for another one."""
    place = AREAS.get(name)
    if place is None:
        hint = did_you_mean(name, list(AREAS), f"areas are {', '.join(AREAS)}")
        raise ProgramError(f"no area of random programs is called {name!r}: {hint}")
    module, _, attribute = place.partition(":")
    area: Area = getattr(import_module(module), attribute)
    return area


NOTICED_S: Final = 0.1
"""A process that ends at once waits some milliseconds for a CPU, as each one does when it begins.
A wait of this length is more than that: the scheduler's slices are a few milliseconds."""


class Kind(StrEnum):
    """What is different."""

    VALUE = "value"
    """A result, an order or an error; every difference that states no kind."""
    HANG = "hang"
    """Something did not end within its limit."""
    DEATH = "death"
    """The process ended."""
    COUNTER = "counter"
    """A count of bytes is out of its bounds."""


class Difference(str):
    """The clause of a difference, with its kind."""

    kind: Kind

    def __new__(cls, text: str, kind: Kind) -> Difference:
        made = super().__new__(cls, text)
        made.kind = kind
        return made

    @classmethod
    def from_json(cls, pair: Sequence[str]) -> Difference:
        """The difference that :func:`to_json` made a pair of."""
        text, kind = pair
        return cls(text, Kind(kind))


def kind_of(difference: str) -> Kind:
    """The kind of a difference; VALUE where it states none."""
    return difference.kind if isinstance(difference, Difference) else Kind.VALUE


def to_json(difference: str) -> list[str]:
    """The clause and its kind, as JSON keeps them."""
    return [str(difference), str(kind_of(difference))]


def raised(error: Exception) -> str:
    """The difference of a program that raised; an error may state a ``kind`` of its own."""
    usual = Kind.HANG if isinstance(error, TimeoutError) else Kind.VALUE
    return Difference(f"it raised {error_line(error)}", getattr(error, "kind", usual))


def watch_world(limit_s: float = 0.0) -> Watch:
    """A limit on all ranks of this rank's world: one process forks them, and no others."""
    return PATIENCE.watch(limit_s, os.getppid())


def excuse(starved: Starvation | None) -> Starvation | None:
    """How much ranks waited for a CPU, where that was so long that they were slow; else None."""
    if starved is None or starved.waited_s < NOTICED_S or not starved.is_starved:
        return None
    return starved


@contextmanager
def one_thread() -> Iterator[None]:
    """A block in which torch's CPU kernels use one thread: on little, threads mostly wait."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
