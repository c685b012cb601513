"""The page of one run, and the file of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.base.errors import PortagpuError
from portagpu.base.files import write_atomic
from portagpu.base.text import shortened
from portagpu.checks.bringup.gates import load_gates
from portagpu.reports.html import sections
from portagpu.reports.html.components import checks_section, names_of, script, shapes
from portagpu.reports.html.markup import CSS, page, tag
from portagpu.runs.results.run import Run

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from portagpu.runs.ledger import Clearance


def render(run: Run, *, title: str | None = None) -> str:
    """A run as an HTML document.

    It has the verdict and why, contents, failures, gates, the run, roofline, curves, numbers and
    checks. All text from the run is escaped.

    :param run: the run, finished or not.
    :param title: by default the verb, the target, and the host or the recording.
    """
    title = title or _title(run)
    names = names_of(run, _gate_titles(run))
    parts = (
        ("Failures", sections.failures_section(run, names)),
        ("Gates", sections.gates_section(run, names)),
        ("Run", sections.run_card(run)),
        ("Roofline", sections.roofline_section(run)),
        ("Curves", sections.curves_section(run)),
        ("Numbers", sections.numbers_section(run, names)),
        ("Checks", checks_section(run, names)),
    )
    main = tag(
        "main",
        # before the parts that it hides: the style sheet selects its following siblings
        tag("input", type="checkbox", id=sections.ONLY_FAILURES) if run.failures else None,
        shapes(),
        sections.banner(run, title, names),
        sections.contents(parts, sections.areas_of(run, names), only_failures=bool(run.failures)),
        *(part for _, part in parts),
        sections.footer(run.results),
    )
    return page(f"{run.verdict}: {title}", CSS, main, script())


def _gate_titles(run: Run) -> dict[str, str]:
    """The gates' titles by id; empty if there is no bring-up result or the gates cannot be read."""
    if not any(result.suite == "bringup" for result in run.results):
        return {}
    try:
        return {gate.id: gate.title for gate in load_gates()}
    except PortagpuError:
        return {}


def _title(run: Run) -> str:
    suites = dict.fromkeys(result.suite for result in run.results)
    what = "bringup" if "bringup" in suites else ", ".join(suites) or "no results"
    on = run.info.target or run.info.backend or "unknown hardware"
    if run.info.replay:
        names = " and ".join(str(each["name"]) for each in run.info.replay)
        if run.info.target is None and run.info.devices:
            on = run.info.devices[0]["name"]
        return f"portagpu {what} of {on}, from the recording {names}"
    where = f" on {shortened(run.info.host)}" if run.info.host else ""
    return f"portagpu {what} of {shortened(on)}{where}"


def write_report(
    runs: Run | Sequence[Run],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    clearances: Sequence[Clearance] = (),
) -> Path:
    """Write the page of one run, or of several, to ``path``, whole or not at all.

    :param runs: a run, or several; the others are compared with the first of them
    :param path: the file; a file that is there is replaced
    :param title: the page's title, by default made of the runs
    :param clearances: of devices in several runs: which failures no longer count
    :returns: ``path``
    :raises OutputError: if the file cannot be written
    :raises ValueError: without a run
    """
    if isinstance(runs, Run):
        return write_atomic(path, render(runs, title=title))
    from portagpu.reports.html.matrix_page import render_runs

    return write_atomic(path, render_runs(runs, title=title, clearances=clearances))
