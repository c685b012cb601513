"""What the doctor can find, and a finding as a result.

``findings.toml`` has the findings that are the same everywhere. A vendor adds those of its library
in its table ``doctor.toml`` (``portagpu.vendors.tables``).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.results.run import Result, Verdict
from portagpu.text import MOST_NAMED
from portagpu.vendors import leave_out_table, tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SUITE: Final = "collectives"
AREA: Final = "doctor"
TABLE: Final = "doctor"
_OWN: Final = Path(__file__).resolve().parent / "findings.toml"


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

    ``device`` is what is to blame ("rank 2"). ``cause`` and ``remedy`` replace those of its kind
    where more is known.
    """

    id: str
    evidence: str
    device: str | None = None
    cause: str = ""
    remedy: str = ""


@cache
def known_findings() -> Mapping[str, Known]:
    """Every kind of finding by its id, ours first; a vendor's broken table is left out."""
    found = _kinds(own_table())
    for vendor, table in dict(tables(TABLE)).items():
        try:
            # ours count where a vendor has one of the same id
            found = {**found, **{k: v for k, v in _kinds(table).items() if k not in found}}
        except (KeyError, TypeError, ValueError) as error:
            leave_out_table(vendor, TABLE, error)
    return found


@cache
def own_table() -> Mapping[str, Any]:
    """The table of what is the same everywhere."""
    return tomllib.loads(_OWN.read_text(encoding="utf-8"))


def _kinds(table: Mapping[str, Any]) -> dict[str, Known]:
    return {
        each["id"]: Known(**{**each, "verdict": Verdict(each["verdict"])})
        for each in table.get("finding", ())
    }


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


def to_result(finding: Finding) -> Result:
    """The finding as a result; ``extra`` has its cause, remedy and source."""
    kind = known_findings()[finding.id]
    return Result(
        id=f"{SUITE}/{AREA}/{finding.id}",
        suite=SUITE,
        area=AREA,
        verdict=kind.verdict,
        device=finding.device,
        reason=finding.evidence,
        extra={
            "cause": finding.cause or kind.cause,
            "remedy": finding.remedy or kind.remedy,
            "source": kind.source,
        },
    )
