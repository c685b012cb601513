"""The page of a fleet: the map of its nodes, what fails, and who is unlike the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from portagpu.base import units
from portagpu.base.files import write_atomic
from portagpu.base.text import shortened
from portagpu.reports.fleet.measures import by_node
from portagpu.reports.html.components import (
    MEANING,
    badge,
    code_marked,
    filter_controls,
    fleet_script,
    icon,
    meanings,
    section,
    shapes,
    table_box,
    wrapped_id,
)
from portagpu.reports.html.fleet_charts import (
    MAX_GATES,
    distributions_section,
    gate_titles,
    map_section,
)
from portagpu.reports.html.markup import FLEET_CSS, Child, Markup, json_block, page, shown_text, tag
from portagpu.reports.html.matrix_page import fragment
from portagpu.reports.html.sections import contents
from portagpu.runs.results.advice import Action
from portagpu.runs.results.verdicts import FAILING, Verdict

if TYPE_CHECKING:
    import os
    from collections.abc import Hashable, Sequence
    from pathlib import Path

    from portagpu.reports.fleet.measures import Unlike
    from portagpu.reports.fleet.report import FleetReport, SharedReason
    from portagpu.reports.fleet.versions import Group


_MAX_ROWS: Final = 60
"""Rows of a table; the JSON has all."""
_NAMED: Final = 8
_EACH: Final = 3
"""Outliers of one node that are not folded."""


def reasons_section(report: FleetReport) -> Markup | None:
    """Nodes that are not a PASS, grouped by what they say; None if all passed."""
    rows = [
        tag(
            "tr",
            tag("th", _names(each.nodes), scope="row"),
            tag("td", _verdict(each), class_="verdict-cell"),
            tag("td", f"{len(each.nodes):,}", class_="n", data_label="Nodes"),
            tag("td", each.gate or None, data_label="First gate"),
            tag("td", each.action or None, data_label="Action"),
            tag("td", *_reason(each), class_="reason"),
            class_="bad" if each.verdict in FAILING else None,
        )
        for each in report.reasons[:_MAX_ROWS]
    ]
    head = ("Nodes", "Verdict", "Number", "First gate", "Action", "Reason")
    caption = "Nodes that are not a PASS, by reason"
    return _section("Reasons", head, rows, caption, len(report.reasons))


def _verdict(each: SharedReason) -> Markup:
    if each.verdict is None:
        return tag("span", each.state, class_="badge none")
    return badge(each.verdict)


def _reason(each: SharedReason) -> list[Child]:
    parts: list[Child] = [shortened(each.reason, 400)]
    blamed = Counter(device for device in each.devices if device)
    if blamed:
        named = ", ".join(f"{device} ({n:,})" if n > 1 else device for device, n in blamed.items())
        parts.append(tag("span", f"on {shortened(named, 200)}", class_="soft"))
    if each.check:
        parts.append(tag("span", wrapped_id(shortened(each.check)), class_="soft"))
    if each.next_step:
        parts.append(tag("span", tag("b", "Next: "), code_marked(each.next_step), class_="soft"))
    return parts


def slow_section(report: FleetReport) -> Markup | None:
    """Links and nodes that were slow in pairs and groups; None without any result of these."""
    if not report.joint:
        return None
    rows = [
        tag(
            "tr",
            tag("th", _names(each.nodes), scope="row"),
            tag("td", each.what, data_label="What"),
            tag("td", f"{each.slow} of {each.pairs}", class_="n", data_label="Slow"),
            tag("td", each.sentence, class_="reason"),
            class_="bad",
        )
        for each in report.slow[:_MAX_ROWS]
    ]
    of = f"{report.joint:,} results"
    head = ("Nodes", "What", "Slow pairs", "Why")
    caption = f"What {of} of pairs and groups of nodes say"
    if not rows:
        return section("Slow links", tag("p", f"None in {of} of pairs and groups of nodes."))
    return _section("Slow links", head, rows, caption, len(report.slow))


def outliers_section(report: FleetReport) -> Markup | None:
    """Nodes that measure worse than their peers, then other outliers; None if there is none."""
    groups = [("worse", *each) for each in by_node(report.worse).items()]
    others = (each for each in report.unlike if not each.worse)
    groups += [("other", *each) for each in by_node(others).items()]
    rows = [
        tag(
            "tr",
            tag("th", _name(node), scope="row"),
            tag("td", side, data_label="Side"),
            tag("td", *(tag("div", each.sentence) for each in own[:_EACH]), _rest(own)),
            class_="bad" if side == "worse" else None,
        )
        for side, node, own in groups[:_MAX_ROWS]
    ]
    caption = "Nodes unlike their peers, the farthest first"
    return _section("Outliers", ("Node", "Side", "Measures"), rows, caption, len(groups))


def _rest(unlike: Sequence[Unlike]) -> Markup | None:
    rest = unlike[_EACH:]
    if not rest:
        return None
    summary = tag("summary", f"{len(rest):,} more", class_="soft")
    return tag("details", summary, *(tag("div", each.sentence, class_="soft") for each in rest))


def differing_section(report: FleetReport) -> Markup | None:
    """Versions that are not the same on all nodes of a target; None if none."""
    rows = []
    for each in report.differing:
        usual = f"{each.usual or 'none'} on {units.count(each.votes, 'node')}"
        if not each.decided:
            usual += ", which are not most"
        rows += [
            tag(
                "tr",
                tag("th", each.component, _soft(shortened(each.hardware)), scope="row"),
                tag("td", usual, data_label="Usual"),
                tag("td", group.version or "none", data_label="Differs"),
                tag("td", f"{len(group.nodes):,}", class_="n", data_label="Nodes"),
                tag("td", _names(group.nodes)),
                tag("td", *_effects(group), class_="reason"),
                class_="bad" if any(effect.worse for effect in group.effects) else None,
            )
            for group in each.groups
        ]
    head = ("Component", "Usual", "Differs", "Number", "Nodes", "They measure")
    caption = "Versions that differ within a target; a difference of measures shows no cause"
    return _section("Versions", head, rows[:_MAX_ROWS], caption, len(rows))


def _effects(group: Group) -> list[Child]:
    if not group.effects:
        return [tag("span", "no difference, or too few to say", class_="soft")]
    worst = sorted(group.effects, key=lambda each: (not each.worse, -abs(each.relative)))
    lines: list[Child] = [
        tag("div", f"{each.measure}: {each.relative:+.1%}") for each in worst[:_NAMED]
    ]
    return [*lines, _more(len(worst) - _NAMED)]


def unread_section(report: FleetReport) -> Markup | None:
    """Files that could not be used; None if there is none."""
    rows = [
        tag("tr", tag("th", str(each.path), scope="row"), tag("td", each.reason, class_="reason"))
        for each in report.unread[:_MAX_ROWS]
    ]
    caption = "Files that cannot be used; the others were"
    return _section("Files not read", ("File", "Why"), rows, caption, len(report.unread))


def _section(
    title: str, head: Sequence[str], rows: Sequence[Markup], caption: str, whole: int
) -> Markup | None:
    if not rows:
        return None
    note = None
    if (more := whole - len(rows)) > 0:
        note = tag("p", f"and {more:,} more in the JSON", class_="soft")
    return section(title, table_box(head, rows, caption), note)


def _names(nodes: Sequence[str]) -> Markup:
    """The first names, each a link to its row, and the others folded."""
    first = [tag("div", _name(node)) for node in nodes[:_NAMED]]
    rest = nodes[_NAMED:]
    if not rest:
        return tag("div", *first, class_="names")
    summary = tag("summary", f"{len(rest):,} more", class_="soft")
    folded = tag("details", summary, tag("div", ", ".join(map(shortened, rest)), class_="soft"))
    return tag("div", *first, folded, class_="names")


def _name(node: str) -> Markup:
    return tag("a", shortened(node), href=fragment(q=shown_text(shortened(node))))


def _soft(text: str | None) -> Markup | None:
    return tag("span", text, class_="soft") if text else None


def _more(count: int) -> Markup | None:
    return _soft(f"and {count:,} more") if count > 0 else None


_FACETS: Final = ("verdict", "gate", "action", "target", "state", "peers")
_MAX_NAMES: Final = 3
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
    return page(f"{report.verdict}: {title}", FLEET_CSS, main, fleet_script())


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
    unjudged = sum(node.verdict is Verdict.INCONCLUSIVE for node in report.nodes)
    said = [
        f"{sum(node.failed for node in report.nodes):,} failed",
        *([f"{unjudged:,} not judged"] if unjudged else []),
        f"{len(worse):,} worse than their peers"
        if report.limits.comparisons
        else "none compared with peers",
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
    titles = gate_titles(report.gates[:MAX_GATES])
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
        more = f" and {len(own) - _MAX_NAMES} more" if len(own) > _MAX_NAMES else ""
        digits = (node.gates.get(gate) for gate in report.gates[:MAX_GATES])
        rows.append(
            [
                shown_text(shortened(node.name)),
                place(shortened(node.hardware)),
                place(node.state),
                verdicts.index(node.verdict) if node.verdict is not None else -1,
                "".join("." if each is None else str(verdicts.index(each)) for each in digits),
                place(", ".join(own[:_MAX_NAMES]) + more),
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
