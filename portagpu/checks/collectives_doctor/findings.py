"""What the doctor can find, and a finding as a result.

``findings.toml`` and ``logs.toml`` have the findings that are the same everywhere. A vendor adds
those of its library in its table ``doctor.toml`` (``portagpu.facts.vendors.tables``).
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import DocumentError
from portagpu.facts.vendors import leave_out_table, tables
from portagpu.runs.results.judgement import Finding, Known, combine_findings, kinds_of, result_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.runs.results.run import Result

SUITE: Final = "collectives"
AREA: Final = "doctor"
TABLE: Final = "doctor"
__all__ = ["Finding", "Known", "combine_findings", "known_findings", "own_table", "to_result"]
_OWN: Final = tuple(
    Path(__file__).resolve().parent / name for name in ("findings.toml", "logs.toml")
)


@cache
def known_findings() -> Mapping[str, Known]:
    """Every kind of finding by its id, ours first; a vendor's broken table is left out."""
    found = kinds_of(own_table())
    for vendor, table in dict(tables(TABLE)).items():
        try:
            # ours count where a vendor has one of the same id
            found = {**found, **{k: v for k, v in kinds_of(table).items() if k not in found}}
        except DocumentError as error:
            leave_out_table(vendor, TABLE, error)
    return found


@cache
def own_table() -> Mapping[str, Any]:
    """The table of what is the same everywhere: of dumps, machines and reports, and of logs."""
    joined: dict[str, Any] = {}
    for file in _OWN:
        for key, value in tomllib.loads(file.read_text(encoding="utf-8")).items():
            joined[key] = [*joined.get(key, ()), *value] if isinstance(value, list) else value
    return joined


def to_result(finding: Finding) -> Result:
    """The finding as a result; ``extra`` has its cause, remedy and source."""
    return result_of(finding, known_findings()[finding.id], SUITE, AREA)
