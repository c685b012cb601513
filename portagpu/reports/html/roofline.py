"""Rooflines: the rate of every measure over its intensity, below what the hardware can reach.

A measure is drawn if its ``extra`` has ``flops`` and ``bytes`` of one call. Its intensity is
``flops / bytes``. The ceiling at an intensity I is ``min(peak, I * bandwidth)`` (Williams,
Waterman and Patterson, "Roofline", CACM 52(4), 2009, doi:10.1145/1498765.1498785).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.base import units
from portagpu.base.errors import PortagpuError
from portagpu.facts.targets import Confidence, dtype_name, load_target
from portagpu.reports.html.charts import (
    BOTTOM,
    LEFT,
    MAX_LINES,
    RIGHT,
    TOP,
    Chart,
    axes,
    drawing,
    framed,
    logarithmic,
    marker,
    plain_table,
    some_of,
    style_of,
    swatch,
)
from portagpu.reports.html.markup import Markup, tag
from portagpu.reports.proofs.evidence import target_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from portagpu.facts.targets import Target
    from portagpu.reports.html.charts import Scale
    from portagpu.runs.results.run import Result, Run

_OPERATIONS: Final = ("FLOPS", "FLOP/s", "OPS")
_MAX_VALUE: Final = 1e30
"""Of what is drawn: no hardware comes near, and quotients stay within what numbers can hold."""
_ANY: Final = "any dtype"
"""For a measure that names no dtype."""


@dataclass(frozen=True, slots=True)
class Point:
    """A measure: operations a byte, and operations a second."""

    name: str
    dtype: str
    intensity: float
    rate: float
    beyond_cache: bool = True
    """False where a cache may have held the arrays: then it has no share of the ceiling."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most operations a second of one dtype: ``peak``, and ``bandwidth`` (B/s) times intensity.

    None is not known. Each is "stated" by the target's facts, or the fastest "measured" in the run.
    """

    peak: float | None
    bandwidth: float | None
    of_peak: str = "stated"
    of_bandwidth: str = "stated"

    def at(self, intensity: float) -> float | None:
        """The ceiling in operations a second; None where nothing is known."""
        slope = None if self.bandwidth is None else self.bandwidth * intensity
        return min((each for each in (self.peak, slope) if each is not None), default=None)

    def __str__(self) -> str:
        parts = []
        if self.peak is not None:
            parts.append(f"{units.quantity(self.peak, 'FLOPS')} {self.of_peak}")
        if self.bandwidth is not None:
            parts.append(f"{units.quantity(self.bandwidth, 'B/s')} {self.of_bandwidth}")
        return ", ".join(parts) or "no ceiling known"


@dataclass(frozen=True, slots=True)
class Roof:
    """One line of the chart, and the measures of one dtype and run below it."""

    name: str
    ceiling: Ceiling
    points: Sequence[Point]


def point_of(result: Result) -> Point | None:
    """The place of ``result``; None if it does not state operations, bytes and a time or rate."""
    flops, moved = _positive(result.extra.get("flops")), _positive(result.extra.get("bytes"))
    rate = _rate(result, flops, moved)
    if flops is None or moved is None or rate is None:
        return None
    where = f" on {result.device}" if result.device else ""
    beyond_cache = result.extra.get("beyond_cache") is not False
    return Point(f"{result.id}{where}", _dtype(result), flops / moved, rate, beyond_cache)


def ceiling_of(run: Run, dtype: str) -> Ceiling:
    """What the target's facts say of ``dtype``; what they do not say is the best measured here."""
    target = _target(run)
    peak, bandwidth = _stated_peak(target, dtype), _stated_bandwidth(target)
    rates = (_product_rate(each, dtype) for each in run.results)
    speeds = map(_bandwidth, run.results)
    return Ceiling(
        peak or max(filter(None, rates), default=None),
        bandwidth or max(filter(None, speeds), default=None),
        "stated" if peak else "measured",
        "stated" if bandwidth else "measured",
    )


def figures(runs: Sequence[tuple[str, Run]]) -> list[Markup]:
    """Charts of the named runs: one with all dtypes of a single run, else one for each dtype."""
    roofs: list[tuple[str, Roof]] = []
    for name, run in runs:
        points = [point for each in run.results if (point := point_of(each)) is not None]
        for dtype in dict.fromkeys(point.dtype for point in points):
            members = [point for point in points if point.dtype == dtype]
            roofs.append((dtype, Roof(name or dtype, ceiling_of(run, dtype), members)))
    if len(runs) == 1:
        return [_figure("Roofline", [roof for _, roof in roofs], "roofline")] if roofs else []
    return [
        _figure(f"Roofline, {dtype}", [roof for each, roof in roofs if each == dtype], f"roof-{n}")
        for n, dtype in enumerate(dict.fromkeys(dtype for dtype, _ in roofs))
    ]


def _figure(title: str, roofs: Sequence[Roof], identifier: str) -> Markup:
    if len(roofs) > MAX_LINES:
        title, roofs = some_of(title, len(roofs)), roofs[:MAX_LINES]
    points = [point for roof in roofs for point in roof.points]
    across = _logarithmic([point.intensity for point in points] + _ridges(roofs), LEFT, RIGHT)
    tops = [top for roof in roofs for x in (across.low, across.high) if (top := roof.ceiling.at(x))]
    rates = [*(point.rate for point in points), *tops]
    factor, unit = units.best_prefix(max(rates), "FLOPS")
    up = _logarithmic([rate * factor for rate in rates], BOTTOM, TOP)
    chart = Chart(title, "operations a byte", "1", "operations a second", unit, True)
    drawn = [_drawn(roof, index, across, up, factor, unit) for index, roof in enumerate(roofs)]
    best = max(points, key=lambda point: point.rate)
    description = (
        f"{len(points)} measures below {len(roofs)} ceilings. The highest rate is"
        f" {units.quantity(best.rate, 'FLOPS')} ({best.name})."
    )
    svg = drawing(identifier, title, description, axes(chart, across, up), *drawn)
    legend = [
        (swatch(n, marked=True), f"{roof.name}: {roof.ceiling}") for n, roof in enumerate(roofs)
    ]
    return framed(chart, svg, legend, _table(title, roofs))


def _drawn(roof: Roof, index: int, across: Scale, up: Scale, factor: float, unit: str) -> Markup:
    xs = sorted({across.low, *_ridges([roof]), across.high})
    corners = [(x, top) for x in xs if (top := roof.ceiling.at(x)) is not None]
    path = "L".join(f"{across(x):.2f} {up(top * factor):.2f}" for x, top in corners)
    marks = [
        marker(
            index,
            across(point.intensity),
            up(point.rate * factor),
            f"{point.name}, {units.number(point.intensity)} operations a byte: "
            f"{units.number(point.rate * factor)} {unit}",
        )
        for point in roof.points
    ]
    line = tag("path", d=f"M{path}", class_="line") if path else None
    return tag("g", line, *marks, class_=style_of(index))


def _table(title: str, roofs: Sequence[Roof]) -> Markup:
    rows = []
    for roof in roofs:
        for point in roof.points:
            top = roof.ceiling.at(point.intensity)
            shown = (
                units.number(point.intensity),
                units.quantity(point.rate, "FLOPS"),
                "not known" if top is None else units.quantity(top, "FLOPS"),
                "–" if top is None or not point.beyond_cache else f"{100 * point.rate / top:.3g} %",
            )
            names = (tag("th", point.name, scope="row"), tag("td", roof.name))
            rows.append(tag("tr", *names, *(tag("td", each, class_="n") for each in shown)))
    titles = ("measure", "of", "operations a byte", "rate", "ceiling there", "share")
    return plain_table(
        f"{title}: below ceilings that the target's facts state, or that the run measured",
        titles,
        rows,
    )


def _ridges(roofs: Iterable[Roof]) -> list[float]:
    """Where ceilings bend: the intensity at which bandwidth and peak allow the same rate."""
    ceilings = (roof.ceiling for roof in roofs)
    return [each.peak / each.bandwidth for each in ceilings if each.peak and each.bandwidth]


def _logarithmic(values: Sequence[float], start: float, end: float) -> Scale:
    """A logarithmic scale of whole decades around ``values``."""
    first = math.floor(math.log10(min(values) * 0.999))
    last = math.ceil(math.log10(max(values) * 1.001))
    return logarithmic([10.0**first, 10.0**last], start, end, base=10)


def _rate(result: Result, flops: float | None, moved: float | None) -> float | None:
    if flops is None or moved is None:
        return None
    if (seconds := _positive(result.extra.get("seconds"))) is not None:
        return flops / seconds
    if (value := _positive(result.value)) is None or result.unit is None:
        return None
    number, unit = units.to_base(value, result.unit)
    if unit in _OPERATIONS:
        return number
    return {"s": flops / number, "B/s": flops / moved * number}.get(unit)


def _positive(value: Any) -> float | None:
    """``value`` if it is a positive number that can be drawn; ``extra`` may hold anything."""
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if numeric and 1 / _MAX_VALUE < value < _MAX_VALUE else None


def _dtype(result: Result) -> str:
    stated = result.shape.get("dtype") if isinstance(result.shape, dict) else None
    return dtype_name(stated) or (stated if isinstance(stated, str) else _ANY)


def _product_rate(result: Result, dtype: str) -> float | None:
    """Operations a second, of a result in such a unit."""
    value = _positive(result.value)
    if value is None or result.unit is None or _dtype(result) != dtype:
        return None
    rate, unit = units.to_base(value, result.unit)
    return rate if unit in _OPERATIONS else None


def _bandwidth(result: Result) -> float | None:
    """Bytes a second, of a measure of the memory."""
    value = _positive(result.value)
    if value is None or result.unit is None or not result.id.startswith("memory/"):
        return None
    rate, unit = units.to_base(value, result.unit)
    return rate if unit == "B/s" else None


def _target(run: Run) -> Target | None:
    target = target_of(run)
    try:
        return load_target(target) if target else None
    except PortagpuError:  # a target of another version of this package
        return None


def _stated_peak(target: Target | None, dtype: str) -> float | None:
    peak = target.peak(dtype) if target is not None else None
    known = peak is not None and peak.confidence is not Confidence.UNVERIFIED
    return peak.per_second if peak is not None and known else None


def _stated_bandwidth(target: Target | None) -> float | None:
    fact = target.fact("memory.bandwidth") if target is not None else None
    if fact is None or fact.unit is None or fact.confidence is Confidence.UNVERIFIED:
        return None
    return units.to_base(fact.value, fact.unit)[0] if isinstance(fact.value, int | float) else None
