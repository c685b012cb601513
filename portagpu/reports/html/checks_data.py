"""The checks of several runs as data in the page, from which a script makes the rows it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.reports.html.components import section
from portagpu.reports.html.controls import filter_controls
from portagpu.reports.html.markup import Markup, json_block, shown_text, tag
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import found_in_words

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from portagpu.reports.html.runs import NamedRun
    from portagpu.runs.results.run import Result


def checks_section(runs: Sequence[NamedRun]) -> Markup:
    """The table that the script fills, and its data."""
    head = ("Verdict", "Check", "Reason", "Evidence", "Run")
    table = tag(
        "table",
        tag("caption", "The checks of all runs"),
        tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))),
        tag("tbody"),
        class_="cards checks of-runs",
    )
    note = "The checks of several runs need scripts. The result files have all of them."
    return section(
        "Checks",
        filter_controls(),
        tag("noscript", tag("p", note)),
        tag("div", table, class_="wide-box card"),
        tag("button", "Show more", type="button", class_="more", hidden=True),
        json_block(data_of(runs), "DATA"),
    )


def data_of(runs: Sequence[NamedRun]) -> dict[str, Any]:
    """Every result as whole numbers, which are places in the lists of the other keys.

    A row is run, check (suite, area, id), verdict, and the texts of device, reason, what was found
    and the evidence. So 100,000 results of 35 targets are 2.4 MB.
    """
    verdicts = list(Verdict)
    texts: dict[Hashable, int] = {"": 0}
    checks: dict[Hashable, int] = {}
    rows = [
        [
            place,
            _place(checks, tuple(map(shown_text, (*result.origin, result.id)))),
            verdicts.index(result.verdict),
            _place(texts, shown_text(result.device or "")),
            _place(texts, shown_text(result.reason)),
            _place(texts, shown_text(_further(result))),
            _place(texts, ", ".join(result.evidence)),
        ]
        for place, each in enumerate(runs)
        for result in each.run.results
    ]
    return {
        "verdicts": list(map(str, verdicts)),
        "runs": [{"name": shown_text(n.name), "target": shown_text(n.hardware)} for n in runs],
        "checks": list(checks),
        "texts": list(texts),
        "rows": rows,
    }


def _further(result: Result) -> str:
    """What was found and expected, and what kept the result from running."""
    blocked = f"blocked by {result.blocked_by}" if result.blocked_by else ""
    return ", ".join(filter(None, (found_in_words(result), blocked)))


def _place(known: dict[Hashable, int], value: Hashable) -> int:
    return known.setdefault(value, len(known))
