"""Line charts as SVG: axes with round ticks, lines, legends and the table of each chart."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Final

from portagpu.base import units
from portagpu.base.units import number
from portagpu.reports.html.markup import CHART_CSS, Markup, tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from portagpu.runs.results.run import Result


_MIN_SPAN: Final = 1e-200
"""Of the length of an axis: less has no round steps."""
_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """A map from values ``low`` to ``high`` onto coordinates ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def linear(values: Sequence[float], start: float, end: float, *, from_zero: bool) -> Scale:
    """A scale with round ticks around ``values``; with ``from_zero`` it includes 0.

    Heights can be compared only from 0, so measures that cannot be negative start there.
    """
    low, high = min(values), max(values)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < _MIN_SPAN:
        room = max(1.0, 1e-6 * abs(low))
        low, high = (low, low + room) if low >= 0 else (low - room, low)
    step = _round_step((high - low) / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(index * step for index in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], start, end, log=False, ticks=ticks)


def span(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale from the lowest to the highest of ``values``, with round ticks inside: for time."""
    wide = linear(values, start, end, from_zero=False)
    low, high = min(values), max(values)
    if high - low < _MIN_SPAN:
        return wide
    ticks = tuple(tick for tick in wide.ticks if low <= tick <= high)
    return Scale(low, high, start, end, log=False, ticks=ticks)


def logarithmic(values: Sequence[float], start: float, end: float, *, base: int) -> Scale:
    """A logarithmic scale over positive ``values`` with at most six ticks at powers of ``base``."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low / base, high * base
    first = math.ceil(math.log(low, base) - 1e-9)
    last = math.floor(math.log(high, base) + 1e-9)
    if first > last:  # no power of the base lies inside
        return Scale(low, high, start, end, log=True, ticks=(low, high))
    stride = max(1, math.ceil((last - first + 1) / 6))
    ticks = tuple(float(base) ** power for power in range(first, last + 1, stride))
    return Scale(low, high, start, end, log=True, ticks=ticks)


def compact(value: float) -> str:
    """A number short enough for a tick: "7,500", "40k", "2.5M", "1e-4"."""
    if 0 < value < 1e-3 and (power := math.log10(value)).is_integer():
        return f"1e{power:.0f}"
    for least, factor, suffix in ((1e10, 1e9, "G"), (1e7, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return number(value / factor) + suffix
    return number(value)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step for step in _STEPS if step * power >= rough * (1 - 1e-9)) * power


WIDTH: Final = 400
HEIGHT: Final = 240
LEFT, RIGHT, TOP, BOTTOM = 46, 374, 30, 196
COLOURS: Final = 6
"""Series colours in the style sheet; markers and dashes distinguish further series."""

_MARKERS: Final = (
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",
    "M-2.8-2.8h5.6v5.6h-5.6z",
    "M0-3.8L3.6 2.8h-7.2z",
    "M0-3.9L3.9 0L0 3.9L-3.9 0z",
    "M0 3.8L3.6-2.8h-7.2z",
)
_MARKED_POINTS: Final = 40
MAX_COORDINATE: Final = 1e200
"""Of what an axis can hold without an overflow."""
MAX_LINES: Final = 24
"""Of a chart of several runs: more lines cannot be distinguished."""
_HEADING: Final = 40
"""Height above a standalone chart for its title and legend, in SVG units."""
_STANDALONE_CSS: Final = """
.page { fill: var(--card); } .title { font-weight: 600; }
text { font-family: system-ui, sans-serif; }
"""
_Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its name and its points in order of x; None is a gap."""

    name: str
    points: tuple[_Point | None, ...]

    @property
    def drawn_points(self) -> list[_Point]:
        """The points without the gaps."""
        return [point for point in self.points if point is not None]


@dataclass(slots=True)
class Chart:
    """The series in one pair of axes."""

    title: str
    x_label: str
    x_unit: str
    y_label: str
    y_unit: str
    x_log: bool
    series: list[Series] = field(default_factory=list)


def charts_of(results: Iterable[Result]) -> list[Chart]:
    """The charts of ``results``: curves with the same area, axes and units share one."""
    charts: dict[tuple[object, ...], Chart] = {}
    for result in results:
        for curve in curves_of(result):
            axes = (curve["x_label"], curve["x_unit"], curve["y_label"], curve["y_unit"])
            log = curve["x_log"]
            title = title_of(result, curve)
            chart = charts.setdefault((result.suite, title, *axes, log), Chart(title, *axes, log))
            chart.series.append(Series(curve["series"], points_of(curve)))
    drawn = [chart for chart in charts.values() if any(line.drawn_points for line in chart.series)]
    return [with_unit_prefix(chart) for chart in drawn]


def some_of(title: str, lines: int) -> str:
    """The title of a chart with the first ``MAX_LINES`` of this many lines."""
    return f"{title} ({MAX_LINES} of {lines} lines)"


def with_unit_prefix(chart: Chart) -> Chart:
    """``chart`` with the unit prefix that fits its highest value; sizes stay in bytes."""
    if chart.y_unit == "B":
        return chart
    factor, unit = units.best_prefix(
        max(y for s in chart.series for _, y in s.drawn_points), chart.y_unit
    )
    series = [
        Series(s.name, tuple(None if p is None else (p[0], p[1] * factor) for p in s.points))
        for s in chart.series
    ]
    return replace(chart, y_unit=unit, series=series)


def figure_of(chart: Chart, identifier: str) -> Markup:
    """The chart as a ``figure_of``: heading, SVG, legend and the values as a table."""
    lines = [line for line in chart.series if line.drawn_points]
    across, up = _scales(chart, lines)
    drawn = (_line(chart, line, i, across, up) for i, line in enumerate(lines))
    return framed(
        chart,
        drawing(
            identifier, chart.title, _description(chart, lines), axes(chart, across, up), *drawn
        ),
        [(swatch(i, marked=_has_markers(line)), line.name) for i, line in enumerate(lines)],
        _table(chart, lines),
    )


def framed(
    chart: Chart, svg: Markup, legend: Sequence[tuple[Markup, str]], table: Markup
) -> Markup:
    """A drawing with its heading, its legend and its values as a table."""
    title = chart.title
    return tag(
        "figure",
        tag("figcaption", tag("h3", title)),
        svg,
        tag("ul", *(tag("li", sample, name) for sample, name in legend), class_="legend"),
        tag(
            "details",
            tag("summary", "Values"),
            tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=title),
        ),
        class_="chart",
    )


def drawing(identifier: str, title: str, description: str, *parts: Markup) -> Markup:
    """An SVG of the size of a chart that a screen reader can name and describe."""
    return tag(
        "svg",
        tag("title", title, id=f"{identifier}-title"),
        tag("desc", description, id=f"{identifier}-desc"),
        *parts,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=f"{identifier}-title {identifier}-desc",
    )


def standalone(chart: Chart) -> Markup:
    """The chart as an SVG file: title, legend, light and dark colours, no script."""
    lines = [line for line in chart.series if line.drawn_points]
    across, up = _scales(chart, lines)
    names = [
        tag(
            "g",
            _mark(i, _has_markers(line)),
            tag("text", line.name, x=28, y=10),
            transform=_legend_position(i),
        )
        for i, line in enumerate(lines)
    ]
    return tag(
        "svg",
        tag("title", chart.title),
        tag("desc", _description(chart, lines)),
        tag("style", Markup(f"{CHART_CSS}{_STANDALONE_CSS}")),
        tag("rect", class_="page", x=0, y=-_HEADING, width=WIDTH, height=HEIGHT + _HEADING),
        tag("text", chart.title, x=2, y=14 - _HEADING, class_="axis title"),
        *names,
        axes(chart, across, up),
        *(_line(chart, line, i, across, up) for i, line in enumerate(lines)),
        xmlns="http://www.w3.org/2000/svg",
        class_="chart",
        viewBox=f"0 {-_HEADING} {WIDTH} {HEIGHT + _HEADING}",
        role="img",
    )


def _legend_position(index: int) -> str:
    return f"translate({2 + 130 * index} {22 - _HEADING})"


def _description(chart: Chart, lines: list[Series]) -> str:
    best = max((y, line.name) for line in lines for _, y in line.drawn_points)
    return (
        f"{chart.y_label} against {chart.x_label} for {', '.join(line.name for line in lines)}."
        f" The highest value is {units.quantity(best[0], chart.y_unit)} ({best[1]})."
    )


def curves_of(result: Result) -> list[Mapping[str, Any]]:
    """The curves of a result, in the form of docs/results.md."""
    single = [result.extra["curve"]] if "curve" in result.extra else []
    return [*single, *result.extra.get("curves", [])]


def title_of(result: Result, curve: Mapping[str, Any]) -> str:
    """The heading of the chart of a curve."""
    area, y_label = result.area, curve["y_label"]
    return curve.get("title") or (y_label if area in y_label else f"{area}: {y_label}")


def points_of(curve: Mapping[str, Any]) -> tuple[_Point | None, ...]:
    """The points of a curve; None where a value is missing, or no axis can place it."""
    points: list[_Point | None] = []
    for x, y in zip(curve["x"], curve["y"], strict=True):
        known = x is not None and y is not None
        drawable = known and max(abs(x), abs(y)) < MAX_COORDINATE
        drawable = drawable and (x > 1 / MAX_COORDINATE or not curve["x_log"])
        points.append((x, y) if drawable else None)
    return tuple(points)


def _scales(chart: Chart, lines: list[Series]) -> tuple[Scale, Scale]:
    xs = [x for line in lines for x, _ in line.drawn_points]
    ys = [y for line in lines for _, y in line.drawn_points]
    if chart.x_log:
        across = logarithmic(xs, LEFT, RIGHT, base=2 if chart.x_unit == "B" else 10)
    else:
        across = span(xs, LEFT, RIGHT)
    return across, linear(ys, BOTTOM, TOP, from_zero=True)


def axes(chart: Chart, across: Scale, up: Scale) -> Markup:
    """Both axes with their names, ticks and the lines of the grid."""
    parts = [tag("text", _axis_name(chart.y_label, chart.y_unit), x=2, y=13, class_="axis")]
    for tick in up.ticks:
        y = up(tick)
        label = units.size(tick) if chart.y_unit == "B" else compact(tick)
        parts.append(tag("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", label, x=LEFT - 6, y=y + 4, class_="tick y"))
    for tick in across.ticks:
        x = across(tick)
        label = units.size(tick) if chart.x_unit == "B" else compact(tick)
        parts.append(tag("line", x1=x, x2=x, y1=BOTTOM, y2=BOTTOM + 4, class_="mark"))
        parts.append(tag("text", label, x=x, y=BOTTOM + 17, class_="tick x"))
    middle = (LEFT + RIGHT) / 2
    name = chart.x_label if chart.x_unit == "B" else _axis_name(chart.x_label, chart.x_unit)
    parts.append(tag("line", x1=LEFT, x2=RIGHT, y1=up(up.low), y2=up(up.low), class_="base"))
    parts.append(tag("text", name, x=middle, y=HEIGHT - 4, class_="axis x"))
    return tag("g", *parts)


def _axis_name(label: str, unit: str) -> str:
    return label if unit == "1" else f"{label} ({unit})"


def _line(chart: Chart, line: Series, index: int, across: Scale, up: Scale) -> Markup:
    pen, path = "M", []
    for point in line.points:
        if point is None:
            pen = "M"
            continue
        path.append(f"{pen}{across(point[0]):.2f} {up(point[1]):.2f}")
        pen = "L"
    markers = [
        marker(index, across(x), up(y), _point_label(chart, line.name, (x, y)))
        for x, y in (line.drawn_points if _has_markers(line) else [])
    ]
    return tag("g", tag("path", d=" ".join(path), class_="line"), *markers, class_=style_of(index))


def marker(index: int, x: float, y: float, label: str) -> Markup:
    """The marker of series ``index`` at a place of the drawing; ``label`` is its tooltip."""
    return tag(
        "path",
        tag("title", label),
        d=_MARKERS[index % len(_MARKERS)],
        transform=f"translate({x:.2f} {y:.2f})",
        class_="point",
    )


def _point_label(chart: Chart, name: str, point: _Point) -> str:
    x, y = units.quantity(point[0], chart.x_unit), units.quantity(point[1], chart.y_unit)
    return f"{name}, {x}: {y}"


def style_of(index: int) -> str:
    """The classes of series ``index``: its colour, and whether its line is dashed."""
    return f"s{index % COLOURS}" + (" dashed" if index // COLOURS % 2 else "")


def _has_markers(line: Series) -> bool:
    """Whether each point gets a marker; a long series does without."""
    return len(line.drawn_points) <= _MARKED_POINTS


def swatch(index: int, *, marked: bool) -> Markup:
    """A piece of the line of series ``index`` for a legend."""
    return tag("svg", _mark(index, marked), viewBox="0 0 24 12", aria_hidden="true")


def _mark(index: int, marked: bool) -> Markup:
    """A piece of the line, with its marker, 24 units wide and 12 high."""
    shape = _MARKERS[index % len(_MARKERS)]
    point = tag("path", d=shape, transform="translate(12 6)", class_="point") if marked else None
    return tag("g", tag("path", d="M1 6L23 6", class_="line"), point, class_=style_of(index))


def _table(chart: Chart, lines: list[Series]) -> Markup:
    """The values of all lines; of records with many points only their range."""
    if not all(map(_has_markers, lines)):
        return _ranges_table(chart, lines)
    xs = sorted({x for line in lines for x, _ in line.drawn_points})
    names = (f"{line.name} ({chart.y_unit})" for line in lines)
    columns = [dict(line.drawn_points) for line in lines]
    rows = [
        tag(
            "tr",
            tag("th", units.quantity(x, chart.x_unit), scope="row"),
            *(tag("td", units.number(c[x]) if x in c else "–", class_="n") for c in columns),
        )
        for x in xs
    ]
    return plain_table(f"{chart.title}: the values of its lines", (chart.x_label, *names), rows)


def _ranges_table(chart: Chart, lines: list[Series]) -> Markup:
    rows = []
    for line in lines:
        ys = [y for _, y in line.drawn_points]
        figures = (ys[0], min(ys), median(ys), max(ys), ys[-1])
        cells = (tag("td", units.number(y), class_="n") for y in figures)
        rows.append(tag("tr", tag("th", line.name, scope="row"), *cells))
    head = (f"{chart.y_label} ({chart.y_unit})", "first", "lowest", "median", "highest", "last")
    return plain_table(f"{chart.title}: the result document has every point", head, rows)


def plain_table(caption: str, head: Sequence[str], rows: Sequence[Markup]) -> Markup:
    """A table of a chart."""
    titles = tag("tr", *(tag("th", name, scope="col") for name in head))
    return tag("table", tag("caption", caption), tag("thead", titles), tag("tbody", *rows))
