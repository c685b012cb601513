"""Ids of cases, and the patterns that name them."""

from __future__ import annotations

import re
from functools import cache


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
