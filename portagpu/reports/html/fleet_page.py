"""The page of a fleet: the map of its nodes, what fails, and who is unlike the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.base.files import write_atomic
from portagpu.base.text import shortened
from portagpu.reports.fleet.measures import by_node
from portagpu.reports.html.components import MEANING, badge, icon, meanings, section, shapes
from portagpu.reports.html.controls import filter_controls, fleet_script
from portagpu.reports.html.fleet_charts import distributions_section
from portagpu.reports.html.fleet_map import MOST_GATES, gate_titles, map_section
from portagpu.reports.html.fleet_style import CSS
from portagpu.reports.html.fleet_tables import (
    differing_section,
    outliers_section,
    reasons_section,
    slow_section,
    unread_section,
)
from portagpu.reports.html.markup import Markup, json_block, page, shown_text, tag
from portagpu.reports.html.sections import contents
from portagpu.runs.results.advice import Action
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    import os
    from collections.abc import Hashable
    from pathlib import Path

    from portagpu.reports.fleet.report import FleetReport

_FACETS: Final = ("verdict", "gate", "action", "target", "state", "peers")
_MOST: Final = 3
"""Outliers of a node that its row names; the JSON has all."""


def write_fleet_page(report: FleetReport, path: str | os.PathLike[str]) -> Path:
    """Write the page to ``path``, whole or not at all; raises OutputError."""
    return write_atomic(path, render(report))


def render(report: FleetReport) -> str:
    """``report`` as an HTML document; all text from results is escaped."""
    nodes = len(report.nodes)
    title = f"portagpu fleet: {nodes:,} {'node' if nodes == 1 else 'nodes'}"
    parts = (
        ("Map", map_section(report)),
        ("Reasons", reasons_section(report)),
        ("Slow links", slow_section(report)),
        ("Outliers", outliers_section(report)),
        ("Versions", differing_section(report)),
        ("Distributions", distributions_section(report.distributions)),
        ("Nodes", _nodes_section(report)),
        ("Files not read", unread_section(report)),
    )
    main = tag(
        "main",
        shapes(),
        _banner(report, title),
        contents(parts),
        *(part for _, part in parts),
        _footer(report),
    )
    return page(f"{report.verdict}: {title}", CSS, main, fleet_script())


def _banner(report: FleetReport, title: str) -> Markup:
    worse = {each.node for each in report.worse}
    known = {str(verdict) for verdict in Verdict}
    counts = [
        tag("li", badge(Verdict(name), f"{count:,} {name}"))
        if name in known
        else tag("li", tag("span", f"{count:,} {name}", class_="badge none"))
        for name, count in sorted(report.counts.items(), key=lambda entry: -entry[1])
    ]
    about = [title]
    about += [f"{each.what}, started {each.started}" for each in report.records]
    said = [
        f"{sum(node.failed for node in report.nodes):,} failed",
        f"{len(worse):,} worse than their peers",
        f"{sum(node.verdict is None for node in report.nodes):,} without a result",
    ]
    if report.joint:
        said.append(f"{len(report.slow):,} slow in {report.joint:,} results of pairs and groups")
    if report.missing_joint:
        said.append(f"{report.missing_joint:,} pairs and groups without a result")
    if several := sum(node.earlier > 0 for node in report.nodes):
        said.append(f"{several:,} with several results, in which a failure stays until it passes")
    if report.unread:
        said.append(f"{len(report.unread):,} files not read")
    return tag(
        "header",
        tag("p", "; ".join(about), class_="about"),
        tag("h1", icon(report.verdict), str(report.verdict)),
        tag("p", ", ".join(said), class_="why"),
        tag("ul", *counts, class_="counts", aria_label="Nodes by verdict"),
        class_=f"card verdict {report.verdict.lower()}",
    )


def _nodes_section(report: FleetReport) -> Markup:
    """The table that the script fills, and its data."""
    titles = gate_titles(report.gates[:MOST_GATES])
    head = [_sorted_by("node", "Node"), _sorted_by("verdict", "Verdict")]
    head += [_sorted_by(str(at), title, class_="turned") for at, title in enumerate(titles)]
    head += [tag("th", name, scope="col") for name in ("Action", "Reason")]
    table = tag(
        "table",
        tag("caption", "Every node; a button in the head sorts by its column, the gravest first"),
        tag("thead", tag("tr", *head)),
        tag("tbody"),
        class_="nodes",
    )
    note = "The list of all nodes needs scripts. The JSON of --json has all of them."
    return section(
        "Nodes",
        filter_controls(_FACETS, label="Filter the nodes", hint="a node or a reason", noun="nodes"),
        tag("noscript", tag("p", note)),
        tag("div", table, class_="wide-box card", tabindex=0, role="region", aria_label="Nodes"),
        tag("button", "Show more", type="button", class_="more", hidden=True),
        json_block(_data(report, titles), "NODES"),
    )


def _sorted_by(value: str, title: str, class_: str | None = None) -> Markup:
    button = tag("button", title, type="button", value=value)
    return tag("th", button, scope="col", class_=class_)


def _data(report: FleetReport, titles: list[str]) -> dict[str, Any]:
    """Every node as texts and whole numbers, which are places in the lists of the other keys.

    A row is name, and the places of target, state, verdict, the verdict of each gate as a digit,
    and the places of what is unlike its peers, action, first failing gate and reason.
    """
    verdicts = list(Verdict)
    texts: dict[Hashable, int] = {"": 0}

    def place(text: str) -> int:
        return texts.setdefault(shown_text(text), len(texts))

    unlike = by_node(report.worse)
    rows = []
    for node in report.nodes:
        own = [each.short for each in unlike.get(node.name, ())]
        more = f" and {len(own) - _MOST} more" if len(own) > _MOST else ""
        digits = (node.gates.get(gate) for gate in report.gates[:MOST_GATES])
        rows.append(
            [
                shown_text(shortened(node.name)),
                place(shortened(node.hardware)),
                place(node.state),
                verdicts.index(node.verdict) if node.verdict is not None else -1,
                "".join("." if each is None else str(verdicts.index(each)) for each in digits),
                place(", ".join(own[:_MOST]) + more),
                place("" if node.action == Action.NONE else node.action),
                place(node.gate),
                place(shortened(node.reason, 300)),
            ]
        )
    return {
        "verdicts": list(map(str, verdicts)),
        "gates": list(map(shown_text, titles)),
        "texts": list(texts),
        "rows": rows,
    }


def _footer(report: FleetReport) -> Markup:
    there = {node.verdict for node in report.nodes}
    said = [(each.value, MEANING[each]) for each in Verdict if each in there]
    rule = (
        f"A value is unlike its peers where it is more than {report.limits.deviations:.2f} × 1.4826"
        " MAD from their median, and more than 5 % of it. So far is normal noise with a chance of"
        f" 5 % in all {report.limits.comparisons:,} comparisons. Nodes of one target are peers."
    )
    return tag("footer", meanings("Verdicts", said) if said else None, tag("p", rule))
