"""Ids of cases, patterns that match them, and the ids of retired cases."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from portagpu.base.documents import rule_of, values_of
from portagpu.base.paths import matrix_dir

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class RetiredCase:
    """A former case, by what replaced it, and the traps that a test in its place looks for."""

    test: str = ""
    """The test of this package that it became; empty if random programs do what it did."""
    traps: tuple[str, ...] = ()
    case: str = ""
    """The case whose random programs cover it; empty if it became a test."""


@cache
def retired_cases() -> Mapping[str, RetiredCase]:
    """The former cases, by ids that are never used again."""
    file = matrix_dir() / "conformance" / "retired.toml"
    rows = tomllib.loads(file.read_text(encoding="utf-8"))
    cases: Mapping[str, RetiredCase] = values_of(rule_of(RetiredCase)).read(rows, file.name)
    return cases


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
