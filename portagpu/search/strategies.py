"""How programs are drawn: each call by itself, so that hypothesis can leave any of them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import SearchStrategy

    from portagpu.search.programs import Call, Program


def call(name: str, **arguments: SearchStrategy[Any] | Sequence[Any]) -> SearchStrategy[Call]:
    """A call with arguments of those strategies, or one of those values, the simplest first."""
    drawn = {
        key: each if isinstance(each, st.SearchStrategy) else st.sampled_from(each)
        for key, each in arguments.items()
    }
    return st.tuples(st.just(name), st.fixed_dictionaries(drawn))


def programs(*calls: SearchStrategy[Call], most: int = 16) -> SearchStrategy[Program]:
    """Lists of 1 to ``most`` of those calls; one that is named twice is drawn twice as often.

    Half of them have more than half of ``most``, because lists of hypothesis have six on average.
    """
    # one_of would take equal strategies once
    one = st.integers(0, len(calls) - 1).flatmap(calls.__getitem__)
    return st.one_of(
        st.lists(one, min_size=1, max_size=most), st.lists(one, min_size=most // 2, max_size=most)
    )
