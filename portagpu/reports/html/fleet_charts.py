"""Drawings of a fleet: the map of its nodes, and histograms of its measures."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from portagpu.base import units
from portagpu.base.text import shortened
from portagpu.reports.html.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Chart,
    axes,
    drawing,
    framed,
    linear,
    plain_table,
    swatch,
)
from portagpu.reports.html.components import section
from portagpu.reports.html.markup import Markup, tag
from portagpu.runs.results.verdicts import FAILING, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from portagpu.reports.fleet.measures import Distribution
    from portagpu.reports.fleet.report import FleetReport


_MAX_HISTOGRAMS: Final = 36
"""Charts; the JSON has all."""
_NAMED: Final = 20


def distributions_section(distributions: Sequence[Distribution]) -> Markup | None:
    """A histogram of each measure, those with most outliers first; None if there is none."""
    if not distributions:
        return None
    order = sorted(distributions, key=lambda each: -len(each.outliers))
    several = len({each.hardware for each in distributions}) > 1
    figures = [
        _figure(each, f"histogram-{n}", several=several)
        for n, each in enumerate(order[:_MAX_HISTOGRAMS])
    ]
    note = "The line is the median of all peers. The ticks below are outliers."
    if (more := len(order) - _MAX_HISTOGRAMS) > 0:
        note += f" {units.count(more, 'measure')} more, with no more outliers, are in the JSON."
    return section(
        "Distributions",
        tag("p", note, class_="soft"),
        tag("div", *figures, class_="charts"),
    )


def _figure(of: Distribution, identifier: str, *, several: bool) -> Markup:
    factor, unit = units.best_prefix(of.median or 1.0, of.unit)
    name = f"{of.measure}, {shortened(of.hardware, 40)}" if several and of.hardware else of.measure
    chart = Chart(name, "value", unit, "values", "1", x_log=False)
    across = linear([of.low * factor, of.high * factor], LEFT, RIGHT, from_zero=False)
    up = linear([0, max(of.counts)], BOTTOM, TOP, from_zero=True)
    step = (of.high - of.low) / len(of.counts) * factor
    bars, outline = of.low * factor, ""
    for n, count in enumerate(of.counts):
        if count:
            left, right = across(bars + n * step), across(bars + (n + 1) * step)
            outline += f"M{left:.1f} {BOTTOM}V{up(count):.1f}H{max(right, left + 1):.1f}V{BOTTOM}z"
    middle = across(of.median * factor)
    marks = "".join(f"M{across(value * factor):.1f} {BOTTOM + 1}v6" for value in of.far)
    parts = [
        axes(chart, across, up),
        tag("path", d=outline, class_="bars"),
        tag("path", d=f"M{middle:.1f} {TOP}V{BOTTOM}", class_="median"),
    ]
    if marks:
        parts.append(tag("path", d=marks, class_="far"))
    values = [
        ("median", units.quantity(of.median, of.unit)),
        ("MAD", units.quantity(of.mad, of.unit, like=of.median)),
        ("lowest", units.quantity(of.low, of.unit, like=of.median)),
        ("highest", units.quantity(of.high, of.unit, like=of.median)),
        ("values", f"{of.n:,}"),
        ("without a number", f"{of.lost:,}"),
    ]
    rows = [tag("tr", tag("th", key, scope="row"), tag("td", said)) for key, said in values]
    rows += [
        tag("tr", tag("th", "outlier", scope="row"), tag("td", shortened(each)))
        for each in of.outliers[:_NAMED]
    ]
    if (more := len(of.outliers) - _NAMED) > 0:
        rows.append(tag("tr", tag("td", f"and {more:,} more in the JSON", colspan=2)))
    outliers = units.count(len(of.outliers), "outlier")
    text = f"median {values[0][1]}, MAD {values[1][1]}, {of.n:,} values, {outliers}"
    return framed(
        chart,
        drawing(identifier, name, f"Histogram: {text}", *parts),
        [(swatch(0, marked=False), text)],
        plain_table(f"{name}: what is drawn", ("", "value"), rows),
    )


_SHAPE: Final = 2.5
"""Width over height of a picture."""
_MIN_COLUMNS: Final = 16
"""Columns; fewer nodes have larger cells otherwise than those of other fleets."""
_GRID: Final = 1500
"""With more nodes the lines between them would hide them."""
MAX_GATES: Final = 60
"""Gates and areas that the page has; the JSON has all."""
NONE: Final = "none"
"""The class of a node without a result."""
LEGEND: Final = (*(str(verdict).lower() for verdict in Verdict), NONE)
_BELOW: Final = ("skip", "pass", "unverified", NONE, "inconclusive", "error", "fail")
"""The graver is drawn over the others, and in a large fleet a little larger than its cell."""


def map_section(report: FleetReport) -> Markup:
    """A picture of all nodes, one of those unlike their peers, and one of each gate."""
    worse = {each.node for each in report.worse}
    worse |= {node for slow in report.slow for node in slow.nodes}
    whole = [_class(node.verdict) for node in report.nodes]
    compared = [
        _class(Verdict.FAIL if node.name in worse else Verdict.PASS if node.gates else None)
        for node in report.nodes
    ]
    pictures = [_picture("all gates", whole, None)]
    if report.limits.comparisons or report.joint:
        pictures.append(_picture("like its peers", compared, None, "unlike"))
    gates = report.gates[:MAX_GATES]
    for at, (gate, title) in enumerate(zip(gates, gate_titles(gates), strict=True)):
        found = [_class(node.gates.get(gate)) for node in report.nodes]
        pictures.append(_picture(title, found, at))
    there = {each for node in report.nodes for each in map(_class, node.gates.values())}
    there |= {*whole, NONE}
    legend = [
        tag("li", tag("i", class_=f"cell {each}"), "no result" if each == NONE else each.upper())
        for each in LEGEND
        if each in there
    ]
    note = (
        "Each cell is a node, by name from left to right and down, in every picture at one place."
    )
    if (more := len(report.gates) - MAX_GATES) > 0:
        note += f" {more:,} more gates are in the JSON."
    return section(
        "Map",
        tag("p", note, class_="soft"),
        tag("ul", *legend, class_="legend"),
        tag("div", *pictures, class_="maps large" if len(report.nodes) > _GRID else "maps"),
        tag("p", role="status", aria_live="off", class_="soft"),
    )


def gate_titles(gates: Sequence[tuple[str, str]]) -> list[str]:
    """The area of each gate, and its suite where two have the same."""
    areas = Counter(area for _, area in gates)
    return [f"{area} ({suite})" if areas[area] > 1 else area for suite, area in gates]


def _class(verdict: Verdict | None) -> str:
    return NONE if verdict is None else str(verdict).lower()


def _picture(title: str, found: Sequence[str], gate: int | None, bad: str = "failed") -> Markup:
    columns = max(_MIN_COLUMNS, math.ceil(math.sqrt(len(found) * _SHAPE)))
    rows = max(1, math.ceil(len(found) / columns))
    paths = [
        tag("path", d=_runs(found, kind, columns), class_=f"cell {kind}")
        for kind in _BELOW
        if kind in found
    ]
    if len(found) <= _GRID:
        lines = "".join(f"M{x} 0V{rows}" for x in range(1, columns))
        lines += "".join(f"M0 {y}H{columns}" for y in range(1, rows))
        paths.append(tag("path", d=lines, class_="lines"))
    text = _status_text(found, bad)
    svg = tag(
        "svg",
        *paths,
        viewBox=f"0 0 {columns} {rows}",
        role="img",
        aria_label=f"{title}: {text}",
        data_columns=columns,
        data_gate=gate,
        class_="many" if len(found) > _GRID else None,
    )
    caption = tag("figcaption", tag("b", title), tag("span", text, class_="soft"))
    return tag("figure", caption, svg, class_="card")


def _status_text(found: Sequence[str], bad: str) -> str:
    """ "3 of 90 failed, 1 without a result"; "none failed" otherwise."""
    failed = sum(each.upper() in FAILING for each in found)
    unknown = found.count(Verdict.INCONCLUSIVE.lower())
    none = found.count(NONE)
    parts = [
        f"{failed:,} of {len(found):,} {bad}" if failed else f"none {bad}",
        f"{unknown:,} not judged" if unknown else "",
        f"{none:,} without a result" if none else "",
    ]
    return ", ".join(filter(None, parts))


def _runs(found: Sequence[str], kind: str, columns: int) -> str:
    """The cells of one kind as one path: neighbours of a row are one rectangle."""
    return "".join(f"M{x} {y}h{width}v1h-{width}z" for x, y, width in _spans(found, kind, columns))


def _spans(found: Sequence[str], kind: str, columns: int) -> Iterable[tuple[int, int, int]]:
    for top in range(0, len(found), columns):
        row = found[top : top + columns]
        start: int | None = None
        for x, each in enumerate((*row, None)):
            if each == kind and start is None:
                start = x
            elif each != kind and start is not None:
                yield start, top // columns, x - start
                start = None
