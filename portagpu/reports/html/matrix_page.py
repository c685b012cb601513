"""The page of several runs: target by area, what fails, measures side by side, and every check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.base import units
from portagpu.reports.html import compare, overview, roofline
from portagpu.reports.html.checks_data import checks_section
from portagpu.reports.html.components import section, shapes
from portagpu.reports.html.controls import script
from portagpu.reports.html.markup import page, tag
from portagpu.reports.html.runs import named
from portagpu.reports.html.sections import contents, footer
from portagpu.reports.html.style import CSS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.reports.html.markup import Markup
    from portagpu.reports.html.runs import NamedRun
    from portagpu.runs.ledger import Clearance
    from portagpu.runs.results.run import Run


def render_runs(
    runs: Sequence[Run], *, title: str | None = None, clearances: Sequence[Clearance] = ()
) -> str:
    """``runs`` as an HTML document: all text from the runs is escaped.

    The order is: verdict and what to do, target by area, failures, runs, measures side by side,
    roofline, curves, history, and the checks, which a script lists. The first run is the one that
    others are compared with. Raises ValueError without a run.
    """
    if not runs:
        raise ValueError("a report needs at least one run")
    listed = named(runs)
    standing = overview.standing_cells(listed, clearances)
    targets = len({each.hardware for each in listed})
    default = f"portagpu: {units.count(len(runs), 'run')} of {units.count(targets, 'target')}"
    shown = title or default
    parts = (
        ("Matrix", overview.matrix_section(listed, standing)),
        ("Failures", overview.failures_section(listed)),
        ("Runs", overview.runs_section(listed)),
        ("Measures", compare.measures_section(listed)),
        ("Roofline", _roofline_section(listed)),
        ("Curves", compare.curves_section(listed)),
        ("History", compare.history_section(listed)),
        ("Checks", checks_section(listed)),
    )
    main = tag(
        "main",
        shapes(),
        overview.banner(listed, shown, standing),
        contents(parts),
        *(part for _, part in parts),
        footer([result for run in runs for result in run.results]),
    )
    return page(f"{overview.verdict_of_all(listed, standing)}: {shown}", CSS, main, script())


def _roofline_section(runs: Sequence[NamedRun]) -> Markup | None:
    figures = roofline.figures([(each.name, each.run) for each in runs])
    return section("Roofline", tag("div", *figures, class_="charts")) if figures else None
