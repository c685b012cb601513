"""Every vendor-only use below some paths, and nothing changed."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_all_start_methods, get_context
from typing import TYPE_CHECKING, Final

from portagpu.train.port.findings import Finding, Unread, in_order
from portagpu.train.port.line_files import text_findings
from portagpu.train.port.reading import files, read
from portagpu.train.port.rules import load_rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_SHARE: Final = 32
"""Files for which one more process is worth its start."""


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
    """Judge the files that ``paths`` name or hold, in up to so many processes.

    Raises MissingDependency without libcst.
    """
    named, result = [*files(paths)], Lint()
    for found in _map(named, min(processes, len(named) // _SHARE)):
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
        yield from pool.map(_judged, named, chunksize=_SHARE // 4)


def _judged(path: Path) -> list[Finding] | Unread:
    """The findings in one file, or why it was not judged."""
    from portagpu.train.port.python import analyse, finding

    source, rules = read(path), load_rules()
    if isinstance(source, Unread):
        return source
    if source.kind != "python":
        return [*text_findings(source, rules)]
    found = analyse(source, rules, whole=False)
    if isinstance(found, Unread):
        return found
    return [] if found is None else [finding(source.path, use) for use in found.uses]
