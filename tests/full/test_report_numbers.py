"""Numbers that no machine gives, and times that no clock shows, break no page."""

from __future__ import annotations

from hypothesis import given, settings

from portagpu.reports.html import render, render_runs
from portagpu.runs.results.run import Result, Run
from tests.support.result_samples import info
from tests.unit.reports.test_report_numbers import checked, results


@settings(max_examples=150, deadline=None)
@given(results(), results())
def test_any_number_can_be_shown(first: Result, second: Result) -> None:
    runs = [
        Run(info(id="a", target="t", started="2025-01-01T00:00:00Z"), [first]),
        Run(info(id="b", target="t", started="2025-01-02T00:00:00Z"), [second]),
    ]
    checked(render(runs[0]))
    checked(render_runs(runs))
