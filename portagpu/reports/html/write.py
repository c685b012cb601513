"""The file of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.base.files import write_atomic
from portagpu.reports.html.run_page import render
from portagpu.runs.results.run import Run

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from portagpu.runs.ledger import Clearance


def write_report(
    runs: Run | Sequence[Run],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    clearances: Sequence[Clearance] = (),
) -> Path:
    """Write the page of one run, or of several, to ``path``, whole or not at all.

    ``clearances`` are of devices in several runs.

    Raises OutputError, and ValueError for no run at all.
    """
    if isinstance(runs, Run):
        return write_atomic(path, render(runs, title=title))
    from portagpu.reports.html.matrix_page import render_runs

    return write_atomic(path, render_runs(runs, title=title, clearances=clearances))
