"""How calls are drawn here: one integer and a few bytes for many calls.

They are the calls at successive places of a list, with the same bytes: each byte picks one
argument. A smaller byte is a simpler value, and a smaller place and a smaller count leave the call
that fails. hypothesis repeats parts of a program that were drawn alike, and then most programs are
made of calls that ran before: here no two parts are alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hypothesis.strategies import SearchStrategy

    from portagpu.suites.search.programs import Call, Program

BYTES: Final = 16
"""At least as many as a call has arguments."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One operation: the call, its fixed arguments, and the values of the others.

    ``times`` is how often it is named, and ``copy`` the number of this one: that many bytes are
    left out, so that two in one program differ.
    """

    name: str
    fixed: Mapping[str, Any]
    lists: Mapping[str, Sequence[Any]]
    times: int = field(default=1, kw_only=True)
    copy: int = field(default=0, kw_only=True)

    def call(self, numbers: bytes) -> Call:
        """The call of ``BYTES`` bytes, in which the first values stand for 0."""
        found = dict(self.fixed)
        for place, (name, values) in enumerate(self.lists.items(), self.copy):
            found[name] = values[numbers[place % BYTES] % len(values)]
        return self.name, found


def spread(choices: Sequence[Choice]) -> list[Choice]:
    """Each as often as it is named, at even distances."""
    placed = [
        ((copy + number / len(choices)) / each.times, replace(each, copy=copy))
        for number, each in enumerate(choices)
        for copy in range(each.times)
    ]
    return [each for _, each in sorted(placed, key=lambda pair: pair[0])]


def drawn(choices: Sequence[Choice], *, calls: int) -> SearchStrategy[Program]:
    """Programs of up to ``calls`` calls, and mostly of so many."""
    from hypothesis import strategies as st

    every = spread(choices)

    def program(numbers: tuple[int, bytes]) -> Program:
        top, (more, *rest) = numbers
        found = bytes(rest)
        return [every[top - each].call(found) for each in range(min(more + 1, calls))]

    several = st.binary(min_size=BYTES + 1, max_size=BYTES + 1)
    return st.tuples(st.integers(0, len(every) - 1), several).map(program)
