"""Runs as one self-contained HTML file: no font, no request.

Its content security policy forbids every request, so a report can be mailed and opened anywhere.
One script, which the policy names by its hash, adds filters and search. Without it a page of one
run has all of its results, and a page of several runs all but its list of checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.report.matrix_page import render_runs as render_runs
    from portagpu.report.run_page import render as render
    from portagpu.report.write import write_report as write_report
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.report.matrix_page": "render_runs",
            "portagpu.report.run_page": "render",
            "portagpu.report.write": "write_report",
        },
    )
