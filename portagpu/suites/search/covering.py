"""Arguments of calls by covering arrays: any two values of two arguments meet as soon as can be.

Most faults need one value, or two together (Kuhn, Wallace, Gallo: Software Fault Interactions and
Implications for Software Testing, IEEE Trans. Software Eng. 30(6), 2004). Independent draws repeat
pairs: of 693 pairs of five arguments 27 draws have a third, and 645 have all in the median. A
covering array has all of them in some 120 rows. Each row here is built greedily: the next argument
gets the value that makes the most new pairs with those before it (Cohen et al., The AETG System,
IEEE Trans. Software Eng. 23(7), 1997).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from random import Random

    from portagpu.suites.search.area import Call, Program

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
