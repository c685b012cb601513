"""How calls are drawn here: a few integers for a batch of calls, which take less time than they.

A batch is several operations with the same choices, from one operation downwards: so a smaller
number of the first one, and then of how many, leaves the one that fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hypothesis.strategies import SearchStrategy

    from portagpu.search.programs import Call, Program

MOST: Final = 2**23
"""hypothesis draws integers of a wider range mostly small."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One operation: the call, its fixed arguments, and the values of the others."""

    name: str
    fixed: Mapping[str, Any]
    lists: Mapping[str, Sequence[Any]]
    shift: int = 0
    """Added to the first integer: an operation that is named several times differs in a batch."""

    def call(self, first: int, second: int) -> Call:
        """The call of two integers, in which the first values stand for 0."""
        found, numbers = dict(self.fixed), [first + self.shift, second]
        for place, (name, values) in enumerate(self.lists.items()):
            numbers[place % 2], index = divmod(numbers[place % 2], len(values))
            found[name] = values[index]
        return self.name, found


def drawn(choices: Sequence[Choice], *, batches: int, calls: int) -> SearchStrategy[Program]:
    """Programs of 1 to ``batches`` batches of up to ``calls`` calls.

    Each operation comes as often as it is named in ``choices``.
    """
    from hypothesis import strategies as st

    def batch(numbers: tuple[int, int, int, int]) -> list[Call]:
        top, more, first, second = numbers
        return [choices[top - each].call(first, second) for each in range(more + 1)]

    def joined(found: list[list[Call]]) -> Program:
        return [each for calls in found for each in calls]

    parts = st.integers(0, MOST)
    one = st.tuples(st.integers(0, len(choices) - 1), st.integers(0, calls - 1), parts, parts)
    return st.lists(one.map(batch), min_size=1, max_size=batches).map(joined)
