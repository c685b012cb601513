"""Several runs side by side: measures on one axis, curves in one chart, and their history."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from portagpu.base import units
from portagpu.reports.html.charts import (
    COLOURS,
    MAX_COORDINATE,
    MAX_LINES,
    Chart,
    Series,
    curves_of,
    figure_of,
    points_of,
    some_of,
    title_of,
)
from portagpu.reports.html.charts import with_unit_prefix as fitted
from portagpu.reports.html.components import section, wrapped_id
from portagpu.reports.html.markup import Markup, tag
from portagpu.reports.html.sections import is_measure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from portagpu.reports.html.sections import NamedRun
    from portagpu.runs.results.run import Result

_BAR: Final = 200
"""Units of the drawing that the longest bar takes."""
_MAX_HISTORIES: Final = 24
_DAY_S: Final = 86400
_MAX_OPEN: Final = 30
"""With more measures their areas are folded."""
_MAX_VALUES: Final = 50
"""Of one measure; the checks have all."""

Key = tuple[str, str, str, str]
"""Suite, area, id and unit of a measure, the unit without its prefix."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A value of a run, and the series that it belongs to: the run, and its device."""

    of: NamedRun
    place: int
    result: Result

    @property
    def name(self) -> str:
        device = self.result.device
        return f"{self.of.name}, {device}" if device else self.of.name

    @property
    def value(self) -> float:
        """In the unit without its prefix, so that GB/s and MB/s can be compared."""
        assert isinstance(self.result.value, int | float)  # noqa: S101 - a measure has a number
        return units.to_base(self.result.value, self.result.unit or "1")[0]

    @property
    def spread(self) -> float:
        """As ``value``; 0 where it is not known, or too large for a number."""
        spread = units.to_base(self.result.spread or 0.0, self.result.unit or "1")[0]
        return spread if math.isfinite(spread) else 0.0


def measures_of(runs: Sequence[NamedRun]) -> dict[Key, list[Measured]]:
    """Every measure with its values in the order of the runs; what is too large is left out."""
    found: dict[Key, list[Measured]] = {}
    for place, each in enumerate(runs):
        for result in filter(is_measure, each.run.results):
            key = (*result.origin, result.id, units.to_base(0.0, result.unit or "1")[1])
            measured = Measured(each, place, result)
            if abs(measured.value) < MAX_COORDINATE:
                found.setdefault(key, []).append(measured)
    return found


def measures_section(runs: Sequence[NamedRun]) -> Markup | None:
    """The values of each measure that several runs have, side by side; None if there is none."""
    shared = {
        key: values
        for key, values in measures_of(runs).items()
        if len({value.place for value in values}) > 1
    }
    if not shared:
        return None
    areas: dict[tuple[str, str], list[Markup]] = {}
    for (suite, area, identifier, unit), values in shared.items():
        areas.setdefault((suite, area), []).append(_side_by_side(identifier, unit, values))
    run, value, ratio = (tag("th", each, scope="col") for each in ("Run", "Value", "Of the first"))
    head = tag("thead", tag("tr", run, tag("td"), value, ratio))
    folded = len(shared) > _MAX_OPEN
    tables = []
    for (suite, area), groups in areas.items():
        caption = tag("caption", f"{area}: each measure on an axis of its own, from 0")
        table = tag("table", caption, head, *groups, class_="compared")
        count = tag("span", units.count(len(groups), "measure"), class_="soft")
        title = tag("h3", f"{area} ", tag("span", f"({suite})", class_="soft"))
        summary = tag("summary", title, count)
        box = tag("div", table, class_="wide-box")
        tables.append(tag("details", summary, box, class_="card area", open=not folded))
    note = tag(
        "p",
        "Each value is divided by that of the first run that has it. The thin line is the spread,"
        " one median absolute deviation to each side.",
    )
    return section("Measures", note, *tables)


def _farthest(values: Sequence[Measured]) -> Sequence[Measured]:
    """The first value, and in their order those that differ most from it."""
    if len(values) <= _MAX_VALUES:
        return values
    first = values[0].value
    far = sorted(values[1:], key=lambda each: -abs(each.value - first))[: _MAX_VALUES - 1]
    kept = {id(each) for each in (values[0], *far)}
    return [each for each in values if id(each) in kept]


def _side_by_side(identifier: str, unit: str, all_values: Sequence[Measured]) -> Markup:
    values = _farthest(all_values)
    highest = max(abs(each.value) + each.spread for each in values)
    first = values[0].value
    largest = max((each.value for each in values), key=abs)
    rows = [
        tag(
            "tr",
            tag("th", each.name, scope="row"),
            tag("td", _bar(each, highest), class_="bar"),
            tag("td", _in_words(each, unit, largest), class_="n"),
            tag("td", _ratio(each.value, first), class_="n"),
        )
        for each in values
    ]
    if more := len(all_values) - len(values):
        note = f"and {more} more, closer to the first: the checks have them"
        rows.append(tag("tr", tag("td", note, colspan=4, class_="soft")))
    heading = tag("tr", tag("th", wrapped_id(identifier), scope="rowgroup", colspan=4))
    return tag("tbody", heading, *rows)


def _ratio(value: float, first: float) -> str:
    ratio = value / first if first else math.inf
    return f"{units.number(ratio, 3)} ×" if math.isfinite(ratio) else "–"


def _bar(each: Measured, highest: float) -> Markup:
    longest = highest or 1.0
    value, spread = (_BAR * (part / longest) for part in (abs(each.value), each.spread))
    whisker = None
    if spread:
        whisker = tag(
            "path", d=f"M{max(value - spread, 0):.1f} 6H{value + spread:.1f}", class_="spread"
        )
    return tag(
        "svg",
        tag("rect", x=0, y=1, width=round(value, 1), height=10, class_=f"s{each.place % COLOURS}"),
        whisker,
        viewBox=f"0 0 {_BAR} 12",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def _in_words(each: Measured, unit: str, largest: float) -> str:
    shown = units.quantity(each.value, unit, like=largest)
    if each.result.spread is None:
        return shown
    return f"{shown} ± {units.quantity(each.spread, unit, like=largest)}"


def curves_section(runs: Sequence[NamedRun]) -> Markup | None:
    """Each curve in a chart with a line for each run that has it; None if there is none."""
    charts: dict[tuple[object, ...], Chart] = {}
    for each in runs:
        for result in each.run.results:
            for curve in curves_of(result):
                labels = (curve["x_label"], curve["x_unit"], curve["y_label"], curve["y_unit"])
                title = f"{title_of(result, curve)}: {curve['series']}"
                key = (*result.origin, title, *labels, curve["x_log"])
                chart = charts.setdefault(key, Chart(title, *labels, curve["x_log"]))
                device = f", {result.device}" if result.device else ""
                chart.series.append(Series(each.name + device, points_of(curve)))
    drawn = [chart for chart in charts.values() if any(line.drawn_points for line in chart.series)]
    figures = [figure_of(fitted(_readable(chart)), f"chart-{n}") for n, chart in enumerate(drawn)]
    return section("Curves", tag("div", *figures, class_="charts")) if figures else None


def _readable(chart: Chart) -> Chart:
    """``chart`` with no more lines than can be distinguished; its title names what is left out."""
    lines = [line for line in chart.series if line.drawn_points]
    if len(lines) <= MAX_LINES:
        return chart
    return replace(chart, title=some_of(chart.title, len(lines)), series=lines[:MAX_LINES])


def history_section(runs: Sequence[NamedRun]) -> Markup | None:
    """Measures over time where several runs are of one target; None if there are none.

    Those that changed most come first; the others are counted.
    """
    charts: list[tuple[float, Chart]] = []
    for hardware in dict.fromkeys(each.hardware for each in runs):
        own = [each for each in runs if each.hardware == hardware]
        if len({each.started for each in own}) < 2:
            continue
        own.sort(key=lambda each: each.started)
        for (_, _, identifier, unit), values in measures_of(own).items():
            if len({value.of.started for value in values}) > 1:
                charts.append((_change(values), _history(hardware, identifier, unit, values)))
    if not charts:
        return None
    charts.sort(key=lambda entry: -entry[0])
    shown = [chart for _, chart in charts[:_MAX_HISTORIES]]
    figures = [figure_of(fitted(_readable(chart)), f"history-{n}") for n, chart in enumerate(shown)]
    note = None
    if len(charts) > len(shown):
        note = tag("p", f"The {len(shown)} measures of {len(charts)} that changed most.")
    return section("History", note, tag("div", *figures, class_="charts"))


def _history(hardware: str, identifier: str, unit: str, values: Sequence[Measured]) -> Chart:
    """One measure of one target over the time of its runs, a line for each host and device."""
    first = values[0].of
    span_s = (values[-1].of.started - first.started).total_seconds()
    scale, name = (_DAY_S, "d") if span_s > 2 * _DAY_S else (3600, "h")
    lines: dict[str, list[tuple[float, float] | None]] = {}
    for each in values:
        where = (each.of.run.info.host, each.result.device)
        line = ", ".join(filter(None, where)) or hardware
        at = (each.of.started - first.started).total_seconds() / scale
        lines.setdefault(line, []).append((at, each.value))
    label = f"time since {first.run.info.started}"
    chart = Chart(f"{hardware}: {identifier}", label, name, "value", unit, x_log=False)
    chart.series += [Series(line, tuple(points)) for line, points in lines.items()]
    return chart


def _change(values: Iterable[Measured]) -> float:
    """The largest value over the smallest, less 1."""
    numbers = [abs(each.value) for each in values]
    return max(numbers) / min(numbers) - 1 if min(numbers) else float("inf")
