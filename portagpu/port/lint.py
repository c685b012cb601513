"""Every vendor-only use below some paths, and nothing changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from portagpu.port.findings import Finding, Unread, in_order
from portagpu.port.reading import Source, sources
from portagpu.port.rules import load_rules
from portagpu.port.texts import text_findings

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def lint(paths: Sequence[str]) -> Lint:
    """Judge the files that ``paths`` name or hold. Raises MissingDependency without libcst."""
    from portagpu.port.python import analyse, finding

    rules, result = load_rules(), Lint()
    for source in sources(paths):
        if not isinstance(source, Source):
            result.unread.append(source)
            continue
        result.files += 1
        if source.kind != "python":
            result.findings.extend(text_findings(source, rules))
            continue
        found = analyse(source, rules)
        if isinstance(found, Unread):
            result.unread.append(found)
            result.files -= 1
        elif found is not None:
            result.findings.extend(finding(source.path, use) for use in found.uses)
    result.findings = in_order(result.findings)
    return result
