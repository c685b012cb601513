"""Findings as text: each with its evidence, cause, remedy and source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.cli._common import results_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.runs.results.run import Result, Run


def finding_lines(run: Run) -> Iterator[str]:
    """Every finding, and the summary of the run."""
    for result in run.results:
        yield from _finding(result)
    yield ""
    yield results_line(run)
    yield run.summary_line()


def _finding(result: Result) -> Iterator[str]:
    from portagpu.runs.results.wording import without_device

    where = f" {result.device}" if result.device else ""
    yield f"{result.verdict} {result.id.rpartition('/')[2]}{where}: {without_device(result)}"
    if str(result.verdict) in ("PASS", "SKIP"):
        return
    for key in ("cause", "remedy", "source"):
        yield f"    {key}: {result.extra[key]}"
