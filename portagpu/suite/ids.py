"""Ids of cases, and the patterns that name them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from portagpu.paths import matrix_dir

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Retired:
    """What was a case: the test of this package that it is now, and the traps it looks for."""

    test: str
    traps: tuple[str, ...]


@cache
def retired() -> Mapping[str, Retired]:
    """The cases whose result no machine changes, by the ids that they had and no case has again."""
    file = matrix_dir() / "conformance" / "retired.toml"
    rows = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: Retired(row["test"], tuple(row["traps"])) for name, row in rows.items()}


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
