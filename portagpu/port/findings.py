"""What is found in a file: the uses, and why a file was not read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from portagpu.port.rules import Rule

_IGNORE: Final = re.compile(r"portagpu:\s*ignore(?:\[([\w,\s]*)\])?")


@dataclass(frozen=True, slots=True)
class Finding:
    """One use. ``line`` and ``column`` count from 1; ``left`` says why no rewrite decides it."""

    path: str
    line: int
    column: int
    rule: Rule
    code: str
    left: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that was not judged, and why; it stays as it is."""

    path: str
    why: str


def is_ignored(lines: Sequence[str], line: int, rule: str) -> bool:
    """Whether a comment "portagpu: ignore[RULE]" or "portagpu: ignore" stands on that line."""
    comment = _IGNORE.search(lines[line - 1]) if 0 < line <= len(lines) else None
    if comment is None:
        return False
    return comment[1] is None or rule in {each.strip() for each in comment[1].split(",")}


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """By file, line and column."""
    return sorted(findings, key=lambda each: (each.path, each.line, each.column, each.rule.id))
