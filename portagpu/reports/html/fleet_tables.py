"""The tables of a fleet's page: reasons, slow links, outliers, versions, and files not read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from portagpu.base import units
from portagpu.base.text import shortened
from portagpu.reports.fleet.measures import by_node
from portagpu.reports.html.components import badge, code_marked, section, table_box, wrapped_id
from portagpu.reports.html.markup import Child, Markup, shown_text, tag
from portagpu.reports.html.overview import fragment
from portagpu.runs.results.verdicts import FAILING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.reports.fleet.measures import Unlike
    from portagpu.reports.fleet.report import Alike, FleetReport
    from portagpu.reports.fleet.versions import Group

_MOST: Final = 60
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
        for each in report.alike[:_MOST]
    ]
    head = ("Nodes", "Verdict", "Number", "First gate", "Action", "Reason")
    caption = "Nodes that are not a PASS, by reason"
    return _section("Reasons", head, rows, caption, len(report.alike))


def _verdict(each: Alike) -> Markup:
    if each.verdict is None:
        return tag("span", each.state, class_="badge none")
    return badge(each.verdict)


def _reason(each: Alike) -> list[Child]:
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
        for each in report.slow[:_MOST]
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
        for side, node, own in groups[:_MOST]
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
    return _section("Versions", head, rows[:_MOST], caption, len(rows))


def _effects(group: Group) -> list[Child]:
    if not group.effects:
        return [tag("span", "alike, or too few to say", class_="soft")]
    worst = sorted(group.effects, key=lambda each: (not each.worse, -abs(each.relative)))
    lines: list[Child] = [
        tag("div", f"{each.measure}: {each.relative:+.1%}") for each in worst[:_NAMED]
    ]
    return [*lines, _more(len(worst) - _NAMED)]


def unread_section(report: FleetReport) -> Markup | None:
    """Files that could not be used; None if there is none."""
    rows = [
        tag("tr", tag("th", str(each.path), scope="row"), tag("td", each.reason, class_="reason"))
        for each in report.unread[:_MOST]
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
