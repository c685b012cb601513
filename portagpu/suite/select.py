"""Which cases ``--only`` means."""

from __future__ import annotations

import difflib
import re
from functools import cache
from typing import TYPE_CHECKING

from portagpu.errors import PortagpuError
from portagpu.suite.cases import AREAS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.suite.machine import Listed


class SelectionError(PortagpuError, LookupError):
    """No case has that area or id; the message offers the closest ones."""


def base_id(full: str) -> str:
    """The id without the labels of its parameters."""
    return full.partition("[")[0]


def matches(pattern: str, full: str) -> bool:
    """Whether a case is meant: by its area, its id with or without parameters, or ``*`` and ``?``.

    Brackets stand for themselves, because ids have them.
    """
    names = (full, base_id(full), full.partition("/")[0])
    return any(_expression(pattern).fullmatch(name) for name in names)


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile("".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern))


def select(cases: Sequence[Listed], only: Sequence[str], smoke: bool) -> list[Listed]:
    """The cases that are asked for, in their order; SelectionError for a name without any."""
    chosen = list(cases)
    if only:
        for pattern in only:
            if not any(matches(pattern, each.id) for each in cases):
                raise SelectionError(_unknown(pattern, cases))
        chosen = [each for each in chosen if any(matches(one, each.id) for one in only)]
    if smoke:
        chosen = [each for each in chosen if each.smoke]
    if not chosen:
        within = f" in {', '.join(only)}" if only else ""
        raise SelectionError(f"there is no {'smoke ' if smoke else ''}case{within}")
    return chosen


def _unknown(pattern: str, cases: Sequence[Listed]) -> str:
    areas = [area for area in AREAS if any(each.area == area for each in cases)]
    if pattern in AREAS:
        return f"the area {pattern!r} has no case yet: areas with cases are {', '.join(areas)}"
    names = [*areas, *dict.fromkeys(base_id(each.id) for each in cases)]
    full = [each.id for each in cases] if "[" in pattern else []
    close = difflib.get_close_matches(pattern, names + full, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"areas are {', '.join(areas)}"
    return f"no case is called {pattern!r}: {hint}"
