"""The slow links and nodes that a fleet run of collectives shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.base.errors import ResultError
from portagpu.reports.fleet import pairs
from portagpu.reports.fleet.measures import Limits
from portagpu.reports.fleet.result_files import gather

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.reports.fleet.pairs import Slow


def slow_of(folder: Path) -> list[Slow]:
    """What is slow among the pairs and groups in ``folder``, the farthest first.

    Pairs are compared with pairs, and groups with groups of their size; fewer than four values of a
    kind are not judged (``portagpu.runs.judges.peers``). Empty where there is no result.
    """
    try:
        joint = gather([folder]).joint
    except ResultError:
        return []
    tables = pairs.tables_of(joint)
    return pairs.judge(joint, tables, Limits.of(tables))
