"""Ids of cases, patterns that match them, and the ids of retired cases."""

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
class RetiredCase:
    """A former case: the test of this package that replaced it, and the traps it looks for."""

    test: str
    traps: tuple[str, ...]


@cache
def retired_cases() -> Mapping[str, RetiredCase]:
    """The former cases whose result is the same on every machine, by ids that are never reused."""
    file = matrix_dir() / "conformance" / "retired.toml"
    rows = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: RetiredCase(row["test"], tuple(row["traps"])) for name, row in rows.items()}


def base_id(full: str) -> str:
    """The id without the labels of its parameters."""
    return full.partition("[")[0]


def matches(pattern: str, full: str) -> bool:
    """Whether a pattern with ``*`` and ``?`` fits a case's area, or its id with or without labels.

    Brackets have no special meaning, because ids contain them.
    """
    names = (full, base_id(full), full.partition("/")[0])
    return any(_expression(pattern).fullmatch(name) for name in names)


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile("".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern))
