"""Histograms of a fleet's measures: the median, the limits of the rule, and the outliers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.base import units
from portagpu.base.text import shortened
from portagpu.reports.html import scale
from portagpu.reports.html.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Chart,
    axes,
    drawing,
    framed,
    plain_table,
    swatch,
)
from portagpu.reports.html.components import section
from portagpu.reports.html.markup import Markup, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.reports.fleet.distributions import Distribution

_MOST: Final = 36
"""Charts; the JSON has all."""
_NAMED: Final = 20


def distributions_section(distributions: Sequence[Distribution]) -> Markup | None:
    """A histogram of each measure, those with most outliers first; None if there is none."""
    if not distributions:
        return None
    order = sorted(distributions, key=lambda each: -len(each.outliers))
    several = len({each.hardware for each in distributions}) > 1
    figures = [
        _figure(each, f"histogram-{n}", several=several) for n, each in enumerate(order[:_MOST])
    ]
    note = "The line is the median of all peers. The ticks below are outliers."
    if (more := len(order) - _MOST) > 0:
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
    across = scale.linear([of.low * factor, of.high * factor], LEFT, RIGHT, from_zero=False)
    up = scale.linear([0, max(of.counts)], BOTTOM, TOP, from_zero=True)
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
    told = f"median {values[0][1]}, MAD {values[1][1]}, {of.n:,} values, {outliers}"
    return framed(
        chart,
        drawing(identifier, name, f"Histogram: {told}", *parts),
        [(swatch(0, marked=False), told)],
        plain_table(f"{name}: what is drawn", ("", "value"), rows),
    )
