"""What is found in a file: the uses, and why a file was not read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from portagpu.train.port.rules import Rule

_IGNORE: Final = re.compile(r"portagpu:\s*ignore\b(?:\s*\[([^\]]*))?")


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


class Ignored:
    """The rules that comments "portagpu: ignore[RULE]" name, and "portagpu: ignore" for all.

    A bracket without the id of a rule ends no finding.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        found = ((number, _IGNORE.search(line)) for number, line in enumerate(lines, 1))
        self._rules = {number: each[1] for number, each in found if each is not None}

    def has(self, line: int, rule: str) -> bool:
        """Whether a comment on that line, from 1, ends the rule's findings."""
        if line not in self._rules:
            return False
        named = self._rules[line]
        return named is None or rule in {each.strip() for each in named.split(",")}


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """By file, line and column."""
    return sorted(findings, key=lambda each: (each.path, each.line, each.column, each.rule.id))
