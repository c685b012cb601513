"""How programs are drawn: each call by itself, so that hypothesis can leave any of them out.

A call is one choice of hypothesis: some bytes, of which each stands for the place of a value in a
list. No two calls of a program have the same bytes. Otherwise hypothesis makes most programs of
others by putting one of their parts in place of another, and few calls are new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hypothesis.strategies import SearchStrategy

    from portagpu.suites.search.area import Call, Program

MAX_VALUES: Final = 256
"""A byte has this many values."""


@dataclass(frozen=True, slots=True)
class Table:
    """A call, and the values of each of its arguments, the simplest first."""

    name: str
    arguments: Mapping[str, Sequence[Any]]

    def dealt(self, numbers: bytes) -> Call:
        """The call of those bytes, one for each argument; zeros are the simplest values."""
        pairs = zip(self.arguments.items(), numbers, strict=False)
        return self.name, {key: values[byte % len(values)] for (key, values), byte in pairs}


def call(name: str, **arguments: Sequence[Any]) -> Table:
    """A call with one of those values for each argument, the simplest first."""
    long = [key for key, values in arguments.items() if len(values) > MAX_VALUES]
    if long:
        raise ValueError(f"{name}: {long[0]} has more than {MAX_VALUES} values")
    return Table(name, arguments)


def hands(width: int, most: int) -> SearchStrategy[list[bytes]]:
    """Lists of 1 to ``most`` different texts of ``width`` bytes, none of which begins with 0.

    Half of them are drawn with at least half of ``most``, because lists of hypothesis have six on
    average. It begins with the simplest, all zeros: those are not programs, and cost no time.
    """
    one = st.binary(min_size=width, max_size=width)
    lists = st.one_of(
        *(st.lists(one, min_size=least, max_size=most, unique=True) for least in (1, most // 2))
    )
    return lists.map(lambda found: [each for each in found if each[0]]).filter(bool)


def programs(*calls: Table, most: int = 16) -> SearchStrategy[Program]:
    """Lists of 1 to ``most`` of those calls; one that is named twice is drawn twice as often."""
    # one byte for which call it is, and one more, so that equal calls can differ
    width = 2 + max(len(each.arguments) for each in calls)
    return hands(width, most).map(
        lambda found: [calls[(each[0] - 1) % len(calls)].dealt(each[1:]) for each in found]
    )
