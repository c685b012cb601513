"""Every vendor-only use below some paths; no file is changed.

Python is analysed. C++ and CUDA sources, shell scripts and Dockerfiles are read line by line. The
findings are printed as text, JSON, SARIF 2.1.0 and annotations of GitHub.

SARIF: OASIS "Static Analysis Results Interchange Format (SARIF) Version 2.1.0". Annotations:
"Workflow commands for GitHub Actions", which escape "%", line ends, and ":" and ","
in properties.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_all_start_methods, get_context
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from portagpu._version import __version__
from portagpu.base.text import escaped
from portagpu.train.port.reading import files, no_report, read
from portagpu.train.port.rules import (
    SEVERITIES,
    Finding,
    Ignored,
    Unread,
    in_order,
    lines_of,
    load_rules,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from portagpu.train.port.reading import Report, Source
    from portagpu.train.port.rules import Rule, Rules, Severity


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


def lint(paths: Sequence[str], *, processes: int = 1, report: Report = no_report) -> Lint:
    """Judge the files that ``paths`` name or hold, in at most ``processes`` processes.

    Raises MissingDependency without libcst.
    """
    named, result = [*files(paths)], Lint()
    judged = _map(named, min(processes, len(named) // _FILES_PER_PROCESS))
    for number, found in enumerate(judged, 1):
        report(number, len(named))
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
    from portagpu.train.port import analysis

    source, rules = read(path), load_rules()
    if isinstance(source, Unread):
        return source
    if source.kind != "python":
        return [*text_findings(source, rules)]
    found = analysis.analyse(source, rules, whole=False)
    if isinstance(found, Unread):
        return found
    return [] if found is None else [analysis.finding(source.path, use) for use in found.uses]


_C_COMMENTS: Final = re.compile(
    r"(\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')|//[^\n]*|/\*.*?\*/", re.DOTALL
)
_PROSE: Final = re.compile(
    r"\b(?:about|comment|description|help|notes?|reason|summary|title|where)[\"']?[ \t]*[:=][ \t]*"
    r"(?:\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*')"
)
"""A setting whose value is a text for readers."""
_HASH_COMMENTS: Final = re.compile(r"(?m)(?:^|(?<=\s))#.*$")


def without_comments(source: Source) -> str:
    """The text with a blank for each character of a comment, so that lines and columns stay."""

    def blank(match: re.Match[str]) -> str:
        return match[0] if match.re.groups and match[1] else re.sub(r"[^\n]", " ", match[0])

    pattern = _C_COMMENTS if source.kind == "kernel" else _HASH_COMMENTS
    text = pattern.sub(blank, source.text)
    return _PROSE.sub(lambda match: " " * len(match[0]), text) if source.kind == "config" else text


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


Level = Literal["error", "warning", "note"]
SCHEMA: Final = "portagpu.port/1"
_LEVELS: Final[dict[Severity, Level]] = {
    "trains nothing": "error",
    "raises": "error",
    "other numbers": "warning",
    "slower": "note",
}


def level(rule: Rule) -> Level:
    """SARIF's and GitHub's word for the rule's severity."""
    return _LEVELS[rule.severity]


def message(each: Finding) -> str:
    """One sentence: what it is, where it breaks, and what to write."""
    rule = each.rule
    left = f" (by hand: {each.left})" if each.left else ""
    return f"{rule.title}; breaks on {rule.breaks}; write {rule.write}{left}"


def code_line(each: Finding) -> str:
    """The code on one line, with what a terminal would obey or hide as escapes."""
    return escaped(" ".join(each.code.split()))


NOT_SEEN: Final = (
    "not seen: what other packages do, names that are put together when the program runs, exec, "
    "and settings that come from elsewhere"
)
"""What a list without a finding does not show."""


def text(result: Lint) -> Iterator[str]:
    """One line for each finding, why it breaks below it, and the counts."""
    for each in result.findings:
        place = f"{each.path}:{each.line}:{each.column}"
        yield f"{place}: {each.rule.id} {each.rule.severity}: {code_line(each)}"
        yield f"    {message(each)}"
    yield summary(result.findings, result.files)
    if result.files and not result.findings:
        yield f"    {NOT_SEEN}"


def summary(findings: Sequence[Finding], files: int) -> str:
    """ "12 uses in 3 files: 2 trains nothing, 10 raises"."""
    counts = Counter(each.rule.severity for each in findings)
    parts = ", ".join(f"{counts[each]} {each}" for each in SEVERITIES if counts[each])
    read = f"{files} file{'' if files == 1 else 's'} read"
    if not files:
        return "no file was read"
    if not findings:
        rules = len(load_rules().rules)
        return f"no use found that ties this to a vendor, among what {rules} rules name; {read}"
    uses = f"{len(findings)} use{'' if len(findings) == 1 else 's'}"
    return f"{uses}: {parts}; {read}"


def github(result: Lint) -> Iterator[str]:
    """Workflow commands, which GitHub shows next to the lines of a pull request."""
    words = {"error": "error", "warning": "warning", "note": "notice"}
    for each in result.findings:
        place = f"file={_property(each.path)},line={each.line},col={each.column}"
        title = _property(f"{each.rule.id} {each.rule.title}")
        yield f"::{words[level(each.rule)]} {place},title={title}::{_data(message(each))}"
    for unread in result.unread:
        yield f"::warning file={_property(unread.path)}::{_data('was not read: ' + unread.why)}"


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")


def document(result: Lint) -> dict[str, Any]:
    """The JSON of ``portagpu port lint``: findings, their rules, and the files not read."""
    rules = {each.rule.id: each.rule for each in result.findings}
    return {
        "schema": SCHEMA,
        "files": result.files,
        "findings": [finding(each) for each in result.findings],
        "rules": {name: _rule(rules[name]) for name in sorted(rules)},
        "unread": [unread(each) for each in result.unread],
    }


def finding(each: Finding) -> dict[str, Any]:
    """One finding; ``left`` says why a rewrite leaves it, and is empty where one does not."""
    return {
        "path": each.path,
        "line": each.line,
        "column": each.column,
        "rule": each.rule.id,
        "severity": each.rule.severity,
        "code": each.code,
        "left": each.left,
    }


def unread(each: Unread) -> dict[str, str]:
    """A file that was not judged."""
    return {"path": each.path, "why": each.why}


def _rule(rule: Rule) -> dict[str, str]:
    return {
        "title": rule.title,
        "breaks": rule.breaks,
        "write": rule.write,
        "source": rule.source,
        "fix": rule.fix,
    }


def sarif(result: Lint) -> dict[str, Any]:
    """The same as a SARIF log, with the files that were not read as notifications."""
    rules = {each.rule.id: each.rule for each in result.findings}
    names = sorted(rules)
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "portagpu port lint",
                        "version": __version__,
                        "rules": [_sarif_rule(rules[name]) for name in names],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [
                    {
                        "executionSuccessful": result.files > 0,
                        "toolExecutionNotifications": [
                            {
                                "level": "warning",
                                "message": {"text": each.why},
                                "locations": [_location(each.path)],
                            }
                            for each in result.unread
                        ],
                    }
                ],
                "results": [
                    {
                        "ruleId": each.rule.id,
                        "ruleIndex": names.index(each.rule.id),
                        "level": level(each.rule),
                        "message": {"text": message(each)},
                        "locations": [_location(each.path, each.line, each.column)],
                    }
                    for each in result.findings
                ],
            }
        ],
    }


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": f"Breaks on {rule.breaks}."},
        "help": {"text": f"Write {rule.write}. Source: {rule.source}"},
        "defaultConfiguration": {"level": level(rule)},
    }


def _location(path: str, line: int = 1, column: int = 1) -> dict[str, Any]:
    uri = quote(os.fsencode(PurePath(path).as_posix()))
    place = {
        "artifactLocation": {"uri": f"file://{uri}" if path.startswith("/") else uri},
        "region": {"startLine": line, "startColumn": column},
    }
    return {"physicalLocation": place}
