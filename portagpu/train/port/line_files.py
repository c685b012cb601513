"""Uses in files that are read line by line: C++ and CUDA sources, shell scripts, Dockerfiles."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from portagpu.train.port.findings import Finding, Ignored
from portagpu.train.port.names import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.train.port.reading import Source
    from portagpu.train.port.rules import Rules

_C_COMMENTS: Final = re.compile(
    r"(\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')|//[^\n]*|/\*.*?\*/", re.DOTALL
)
_HASH_COMMENTS: Final = re.compile(r"(?m)(?:^|(?<=\s))#.*$")


def without_comments(source: Source) -> str:
    """The text with a blank for each character of a comment, so that lines and columns stay."""

    def blank(match: re.Match[str]) -> str:
        return match[0] if match.re.groups and match[1] else re.sub(r"[^\n]", " ", match[0])

    pattern = _C_COMMENTS if source.kind == "kernel" else _HASH_COMMENTS
    return pattern.sub(blank, source.text)


def text_findings(source: Source, rules: Rules) -> Iterator[Finding]:
    """What the patterns of that kind of file find; one finding of a rule for each line."""
    patterns = [each for each in rules.texts if source.kind in each.kinds]
    if not any(each.pattern.search(source.text) for each in patterns):
        return
    if source.kind == "kernel" and not _is_kernel(source, rules):
        return
    ignored = Ignored(lines_of(source.text))
    for number, line in enumerate(lines_of(without_comments(source)), 1):
        found: set[str] = set()
        for each in patterns:
            match = each.pattern.search(line)
            rule = each.rule
            if match is None or rule.id in found or not each.near.search(line):
                continue
            if ignored.has(number, rule.id):
                continue
            found.add(rule.id)
            yield Finding(source.path, number, match.start() + 1, rule, match[0].strip())


def _is_kernel(source: Source, rules: Rules) -> bool:
    suffix = PurePath(source.path).suffix.lower()
    return suffix in rules.suffixes or any(each.search(source.text) for each in rules.kernels)
