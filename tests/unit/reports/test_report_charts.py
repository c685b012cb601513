"""Charts: a point lies where its value is, ticks are round, and gaps stay gaps."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from portagpu.base import units
from portagpu.reports.html.charts import charts_of, compact, figure_of
from portagpu.runs.results.run import Result
from portagpu.runs.results.verdicts import Verdict
from tests.support.result_samples import failing, passing


def measured(series: str = "s", area: str = "a", **changes: object) -> Result:
    curve = {
        "x": [1024, 65536, 4194304],
        "y": [1.0, 5.0, 7.5],
        "x_label": "message size",
        "y_label": "busbw",
        "x_unit": "B",
        "y_unit": "GB/s",
        "x_log": True,
        "series": series,
        **changes,
    }
    return Result(
        id=f"{area}/{series}", suite="p", area=area, verdict=Verdict.PASS, extra={"curve": curve}
    )


def drawn(*results: Result) -> ET.Element:
    (chart,) = charts_of(results)
    svg = re.search("<svg.*?</svg>", figure_of(chart, "c"))
    assert svg is not None
    return ET.fromstring(svg.group())  # noqa: S314 - our own text


def ticks(svg: ET.Element, axis: str) -> dict[str, float]:
    """The labels of one axis and the coordinate of the line next to each, from the drawing."""
    marks = [e for e in svg.iter("line") if e.get("class") == {"x": "mark", "y": "grid"}[axis]]
    labels = [e for e in svg.iter("text") if e.get("class") == f"tick {axis}"]
    assert len(marks) == len(labels)
    return {
        label.text or "": float(mark.get(f"{axis}1", "nan"))
        for label, mark in zip(labels, marks, strict=True)
    }


def points(svg: ET.Element) -> list[tuple[float, float]]:
    found = []
    for element in svg.iter("path"):
        if element.get("class") == "point":
            x, y = re.findall(r"[\d.]+", element.get("transform", ""))
            found.append((float(x), float(y)))
    return found


def test_the_height_of_a_point_is_its_value() -> None:
    svg = drawn(measured())
    axis = ticks(svg, "y")
    zero, four = axis["0"], axis["4"]
    heights = [zero - y for _, y in points(svg)]
    for height, value in zip(heights, [1.0, 5.0, 7.5], strict=True):
        assert height == pytest.approx((zero - four) * value / 4, abs=0.02)


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors() -> None:
    svg = drawn(measured())
    xs = [x for x, _ in points(svg)]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.02), "64 times more each"
    axis = ticks(svg, "x")
    assert axis["1 KiB"] == pytest.approx(xs[0], abs=0.02)
    assert len(axis) >= 3


def test_a_linear_axis_starts_at_zero_so_that_heights_can_be_compared() -> None:
    svg = drawn(measured(y=[2900.0, 2950.0, 3000.0], y_label="clock", y_unit="MHz"))
    axis = ticks(svg, "y")
    assert "0" in axis
    share = [(axis["0"] - y) / (axis["0"] - axis["3,000"]) for _, y in points(svg)]
    assert share == pytest.approx([2900 / 3000, 2950 / 3000, 1.0], abs=0.001)


def test_a_value_below_zero_is_drawn_below_zero() -> None:
    svg = drawn(measured(y=[-2.0, 0.0, 2.0]))
    below, at, above = (y for _, y in points(svg))
    assert below - at == pytest.approx(at - above, abs=0.02)
    assert at == pytest.approx(ticks(svg, "y")["0"], abs=0.02)


def test_a_gap_breaks_the_line() -> None:
    svg = drawn(measured(y=[1.0, None, 3.0]))
    line = next(e for e in svg.iter("path") if e.get("class") == "line")
    assert line.get("d", "").count("M") == 2
    assert len(points(svg)) == 2


def test_what_a_logarithm_cannot_place_is_a_gap() -> None:
    assert len(points(drawn(measured(x=[0, 1024, 2048])))) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"x": [64], "y": [2.0]},
        {"x": [64, 64], "y": [0.0, 0.0]},
        {"x": [5, 5], "y": [3.0, 3.0], "x_log": False, "x_unit": "s"},
        {"x": [1e-9, 1e12], "y": [1e-12, 1e15], "x_unit": "s"},
        {"x": [1100, 1200], "y": [1.0, 2.0]},
        {"x": [-3, 4], "y": [-1e-9, -2e-9], "x_log": False},
    ],
)
def test_odd_ranges_stay_inside_the_drawing(changes: dict[str, object]) -> None:
    svg = drawn(measured(**changes))
    _, _, width, height = map(float, svg.get("viewBox", "").split())
    assert points(svg)
    assert all(0 <= x <= width and 0 <= y <= height for x, y in points(svg))
    for axis, limit in (("x", width), ("y", height)):
        assert all(0 <= place <= limit for place in ticks(svg, axis).values())


def test_nothing_is_drawn_for_a_curve_without_points() -> None:
    assert charts_of([measured(x=[], y=[])]) == []
    assert charts_of([measured(y=[None, None, None])]) == []


def test_curves_with_the_same_axes_share_a_chart_and_others_do_not() -> None:
    charts = charts_of([measured("all-reduce"), measured("all-gather"), measured("copy", area="b")])
    assert [[line.name for line in chart.series] for chart in charts] == [
        ["all-reduce", "all-gather"],
        ["copy"],
    ]
    units = charts_of([measured("one"), measured("two", y_unit="MB/s")])
    assert len(units) == 2, "two units never share an axis"


def test_a_long_record_is_a_line_without_markers() -> None:
    sustained = [r for r in passing().results if r.area == "sustained"]
    throughput = charts_of(sustained)[0]
    svg = figure_of(throughput, "c")
    assert 'class="point"' not in svg
    assert len(throughput.series[0].points) == 60


def test_legend_tooltip_and_table_state_the_values() -> None:
    (chart,) = charts_of([measured("all-reduce"), measured("all-gather", y=[2.0, 3.0, 4.0])])
    text = figure_of(chart, "c")
    assert "<title>all-gather, 64 KiB: 3 GB/s</title>" in text
    assert "</svg>all-reduce</li>" in text
    assert re.search(r'<th scope="row">4 MiB</th><td[^>]*>7.5</td><td[^>]*>4</td>', text)
    assert "The highest value is 7.5 GB/s (all-reduce)." in text


def test_more_series_than_colours_differ_in_dash_or_marker() -> None:
    (chart,) = charts_of(failing().results)
    text = figure_of(chart, "c")
    legend = re.findall(r"<li>(.*?)</svg>", text)
    assert len(legend) == len(set(legend)) == 8, "two lines of one chart look the same"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (412, "412"),
        (18.42, "18.42"),
        (1234.56, "1,235"),
        (0.01234, "0.01234"),
        (2e-6, "2e-06"),
        (-3.5, "-3.5"),
        (100.0, "100"),
        (4e13, "4e+13"),
    ],
)
def test_numbers_keep_four_digits(value: float, text: str) -> None:
    assert units.number(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (65536, "B", "64 KiB"),
        (1536, "B", "1.5 KiB"),
        (3 * 2**30, "B", "3 GiB"),
        (900, "B", "900 B"),
        (2.5, "GB/s", "2.5 GB/s"),
        (0.41, "TFLOPS", "410 GFLOPS"),
        (1979, "TFLOPS", "1.979 PFLOPS"),
        (1e12, "FLOPS", "1 TFLOPS"),
        (1e9, "B/s", "1 GB/s"),
        (0.0002, "TOPS", "200 MOPS"),
        (0.034, "GB/s", "34 MB/s"),
        (3200, "GB/s", "3.2 TB/s"),
        (2048, "MiB", "2 GiB"),
        (1500, "us", "1.5 ms"),
        (0.25, "s", "250 ms"),
        (90, "s", "90 s"),
        (-3.4, "%", "-3.4 %"),
        (1980, "MHz", "1,980 MHz"),
        (0, "TFLOPS", "0 TFLOPS"),
        (4, "1", "4"),
    ],
)
def test_quantities_have_their_unit(value: float, unit: str, text: str) -> None:
    assert units.quantity(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.04, "40 ms"),
        (0.9999, "1.0 s"),
        (59.96, "1 min 0 s"),
        (74.21, "1 min 14 s"),
        (3600, "1 h 0 min"),
    ],
)
def test_durations_are_stated_as_people_do(seconds: float, text: str) -> None:
    assert units.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7500.0, "7,500"),
        (40000.0, "40k"),
        (25e6, "25M"),
        (-2e10, "-20G"),
        (1e-4, "1e-4"),
        (2e-4, "0.0002"),
    ],
)
def test_tick_labels_are_short(value: float, text: str) -> None:
    assert compact(value) == text
