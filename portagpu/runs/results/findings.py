"""Kinds of findings from tables, and a finding as a result.

A table has an entry ``[[finding]]`` for each kind, with the fields of :class:`Known`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from portagpu.base.documents import rule_of
from portagpu.base.text import MOST_NAMED
from portagpu.runs.results.run import Result, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A kind of finding: what it means, its usual cause, what to do, and where that is written."""

    id: str
    verdict: Verdict
    means: str
    cause: str
    remedy: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. ``evidence`` is a sentence on what was read.

    ``device`` is what is to blame ("rank 2"). ``cause``, ``remedy`` and ``verdict`` replace those
    of its kind where more is known. ``value``, ``unit`` and ``expected`` are those of a result.
    """

    id: str
    evidence: str
    device: str | None = None
    cause: str = ""
    remedy: str = ""
    verdict: Verdict | None = None
    value: float | str | None = None
    unit: str | None = None
    expected: Mapping[str, Any] | None = None


def kinds_of(table: Mapping[str, Any]) -> dict[str, Known]:
    """The kinds of a table by id. Raises DocumentError for a wrong one."""
    kinds = rule_of(tuple[Known, ...]).read(table.get("finding", ()), "finding")
    return {each.id: each for each in kinds}


def combine(findings: Iterable[Finding]) -> list[Finding]:
    """One finding of each kind and device, with the evidence of all of them: results are unique."""
    groups: dict[tuple[str, str | None], list[Finding]] = {}
    for each in findings:
        groups.setdefault((each.id, each.device), []).append(each)
    return [replace(group[0], evidence=_all_evidence(group)) for group in groups.values()]


def _all_evidence(group: Sequence[Finding]) -> str:
    said = list(dict.fromkeys(each.evidence for each in group))
    more = f"; and {len(said) - MOST_NAMED} more" if len(said) > MOST_NAMED else ""
    return "; ".join(said[:MOST_NAMED]) + more


def result_of(finding: Finding, kind: Known, suite: str, area: str) -> Result:
    """The finding as a result; ``extra`` has its cause, remedy and source."""
    return Result(
        id=f"{suite}/{area}/{finding.id}",
        suite=suite,
        area=area,
        verdict=kind.verdict if finding.verdict is None else finding.verdict,
        device=finding.device,
        value=finding.value,
        unit=finding.unit,
        expected=finding.expected,
        reason=finding.evidence,
        extra={
            "cause": finding.cause or kind.cause,
            "remedy": finding.remedy or kind.remedy,
            "source": kind.source,
        },
    )
