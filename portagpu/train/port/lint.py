"""Every vendor-only use below some paths; no file is changed.

Python is analysed. C++ and CUDA sources, shell scripts and Dockerfiles are read line by line.
"""

from __future__ import annotations

import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_all_start_methods, get_context
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from portagpu.train.port.reading import files, read
from portagpu.train.port.rules import Finding, Ignored, Unread, in_order, lines_of, load_rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from portagpu.train.port.reading import Source
    from portagpu.train.port.rules import Rules


_FILES_PER_PROCESS: Final = 32
"""Fewer files are not worth the start of another process."""


@dataclass(slots=True)
class Lint:
    """What was found in how many files, and the files that were not read."""

    files: int = 0
    findings: list[Finding] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """1 where something breaks or changes numbers, 3 where a file was not read, else 0."""
        if any(each.rule.severity != "slower" for each in self.findings):
            return 1
        return 3 if self.unread else 0


def lint(paths: Sequence[str], *, processes: int = 1) -> Lint:
    """Judge the files that ``paths`` name or hold, in at most ``processes`` processes.

    Raises MissingDependency without libcst.
    """
    named, result = [*files(paths)], Lint()
    for found in _map(named, min(processes, len(named) // _FILES_PER_PROCESS)):
        if isinstance(found, Unread):
            result.unread.append(found)
        else:
            result.files += 1
            result.findings.extend(found)
    result.findings = in_order(result.findings)
    return result


def _map(named: Sequence[Path], processes: int) -> Iterator[list[Finding] | Unread]:
    if processes < 2 or "fork" not in get_all_start_methods():
        yield from map(_judged, named)
        return
    load_rules()  # once for all
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        yield from pool.map(_judged, named, chunksize=_FILES_PER_PROCESS // 4)


def _judged(path: Path) -> list[Finding] | Unread:
    """The findings in one file, or why it was not judged."""
    from portagpu.train.port.analysis import analyse, finding

    source, rules = read(path), load_rules()
    if isinstance(source, Unread):
        return source
    if source.kind != "python":
        return [*text_findings(source, rules)]
    found = analyse(source, rules, whole=False)
    if isinstance(found, Unread):
        return found
    return [] if found is None else [finding(source.path, use) for use in found.uses]


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
