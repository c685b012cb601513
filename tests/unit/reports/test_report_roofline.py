"""Rooflines: where a measure stands, and what is above it, worked by hand."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from portagpu.base import units
from portagpu.facts.targets import load_target
from portagpu.reports.html import render
from portagpu.reports.html.roofline import Ceiling, ceiling_of, figures, point_of
from portagpu.runs.results.run import Result, Run
from portagpu.runs.results.verdicts import Verdict
from tests.support.result_samples import info


def measure(identifier: str, value: float, unit: str, dtype: str = "fp32", **extra: Any) -> Result:
    return Result(
        id=identifier,
        suite="performance",
        area=identifier.partition("/")[0],
        verdict=Verdict.UNVERIFIED,
        value=value,
        unit=unit,
        shape={"dtype": dtype},
        extra=extra,
    )


PRODUCT = measure("gemm/fp32[1024]", 2.0, "TFLOPS", flops=2 * 1024**3, bytes=12 * 1024**2)
"""2 N**3 operations and 3 N**2 words of 4 bytes: N / 6 operations a byte."""
COPY = measure("memory/triad", 30.0, "GB/s", flops=2, bytes=12)


@pytest.mark.parametrize(
    ("result", "intensity", "rate"),
    [
        (PRODUCT, 1024 / 6, 2e12),
        (COPY, 1 / 6, 5e9),
        (measure("a/time", 50.0, "us", flops=1e6, bytes=2e6), 0.5, 2e10),
        (measure("a/ratio", 0.9, "1", flops=1e6, bytes=2e6, seconds=1e-3), 0.5, 1e9),
        (measure("a/int8", 3.0, "TOPS", dtype="int8", flops=8, bytes=2), 4.0, 3e12),
    ],
    ids=lambda value: value.id if isinstance(value, Result) else "",
)
def test_a_measure_stands_at_its_intensity_and_rate(
    result: Result, intensity: float, rate: float
) -> None:
    point = point_of(result)
    assert point is not None
    assert point.intensity == pytest.approx(intensity)
    assert point.rate == pytest.approx(rate)


@pytest.mark.parametrize(
    "result",
    [
        measure("a/none", 1.0, "GB/s"),
        measure("a/no-bytes", 1.0, "TFLOPS", flops=1),
        measure("a/text", 1.0, "TFLOPS", flops="many", bytes=1),
        measure("a/flag", 1.0, "TFLOPS", flops=True, bytes=1),
        measure("a/zero", 1.0, "TFLOPS", flops=1, bytes=0),
        measure("a/other-unit", 1.0, "products", flops=1, bytes=1),
        Result(id="a/b", suite="s", area="a", verdict=Verdict.PASS, extra={"flops": 1, "bytes": 1}),
    ],
    ids=lambda result: result.id,
)
def test_what_states_no_operations_bytes_and_rate_is_not_drawn(result: Result) -> None:
    assert point_of(result) is None


def test_what_a_cache_may_have_held_has_no_share_of_the_ceiling() -> None:
    fast = measure("operators/sgd", 90.0, "GB/s", flops=2, bytes=12, beyond_cache=False)
    (figure,) = figures([("", Run(info(), [COPY, fast]))])
    shares = [row.split(">")[-3] for row in re.findall(r"<tr><th.*?</tr>", figure)]
    assert [each.partition("<")[0] for each in shares[-2:]] == ["100 %", "–"]


def test_the_ceiling_is_the_least_of_peak_and_bandwidth() -> None:
    ceiling = Ceiling(peak=100.0, bandwidth=10.0)
    assert [ceiling.at(x) for x in (1.0, 10.0, 50.0)] == [10.0, 100.0, 100.0]
    assert Ceiling(None, 10.0).at(50.0) == 500.0
    assert Ceiling(100.0, None).at(0.1) == 100.0
    assert Ceiling(None, None).at(1.0) is None


def test_ceilings_are_the_targets_facts() -> None:
    target = load_target("nvidia-h100-sxm")
    run = Run(info(target=target.id), [PRODUCT, COPY])
    ceiling = ceiling_of(run, "bf16")
    peak = target.peak("bf16")
    assert peak is not None
    assert ceiling.peak == peak.per_second
    assert ceiling.bandwidth == pytest.approx(target.value("memory.bandwidth") * 1e9)
    assert str(ceiling) == (
        f"{units.quantity(peak.value, 'TFLOPS')} stated, "
        f"{units.quantity(target.value('memory.bandwidth'), 'GB/s')} stated"
    )


@pytest.mark.parametrize("target", ["cpu-x86-64", None, "of-another-version"])
def test_without_facts_the_best_measured_here_is_the_ceiling(target: str | None) -> None:
    slower = measure("gemm/fp32[64]", 1.0, "TFLOPS")
    other = measure("gemm/bf16[64]", 9.0, "TFLOPS", dtype="bfloat16")
    link = measure("transfer/h2d", 900.0, "GB/s")
    run = Run(info(target=target), [slower, PRODUCT, other, COPY, link])
    assert ceiling_of(run, "fp32") == Ceiling(2e12, 30e9, "measured", "measured")
    assert ceiling_of(run, "bf16").peak == 9e12
    assert ceiling_of(run, "fp8").peak is None


def test_points_and_roof_are_drawn_where_their_values_are() -> None:
    (figure,) = figures([("", Run(info(), [PRODUCT, COPY]))])
    ticks = dict(re.findall(r'<text x="([\d.]+)" y="[\d.]+" class="tick x">([\d.k,]+)<', figure))
    place = {label: float(x) for x, label in ticks.items()}
    decade = place["100"] - place["10"]
    xs = [
        float(x) for x in re.findall(r'translate\(([\d.]+) [\d.]+\)" class="point"><title', figure)
    ]
    assert len(xs) == 2
    for x, intensity in zip(xs, (1024 / 6, 1 / 6), strict=True):
        assert x - place["10"] == pytest.approx(decade * math.log10(intensity / 10), abs=0.05)
    assert "operations a second (TFLOPS)" in figure
    assert "fp32: 2 TFLOPS measured, 30 GB/s measured" in figure
    assert "gemm/fp32[1024], 170.7 operations a byte: 2 TFLOPS" in figure


def test_the_table_has_the_share_of_the_ceiling() -> None:
    half = measure("gemm/fp32[512]", 1.0, "TFLOPS", flops=2 * 512**3, bytes=12 * 512**2)
    (figure,) = figures([("", Run(info(), [PRODUCT, half, COPY]))])
    assert re.search(r"gemm/fp32\[512\]</th><td>fp32</td>.*?1 TFLOPS.*?2 TFLOPS.*?50 %", figure)


def test_several_runs_share_a_chart_of_each_dtype() -> None:
    int8 = measure("gemm/int8[64]", 3.0, "TOPS", dtype="int8", flops=8, bytes=2)
    first, second = Run(info(), [PRODUCT, int8]), Run(info(), [PRODUCT, COPY])
    fp32, whole = figures([("one", first), ("two", second)])
    assert "Roofline, fp32" in fp32
    assert re.findall("</svg>(one|two): ", fp32) == ["one", "two"]
    assert re.findall("</svg>(one|two): ", whole) == ["one"]


def test_a_run_with_such_measures_has_the_section_and_others_do_not() -> None:
    assert "<h2>Roofline</h2>" in render(Run(info(), [PRODUCT, COPY]))
    assert "<h2>Roofline</h2>" not in render(Run(info(), [measure("a/b", 1.0, "GB/s")]))


def test_a_lone_point_on_a_power_of_ten_has_axes() -> None:
    result = measure("a/b", 1.0, "TFLOPS", flops=10, bytes=1)
    (figure,) = figures([("", Run(info(), [result]))])
    assert figure.count('class="point"') == 2, "the measure and its sample in the legend"


@pytest.mark.parametrize(
    ("value", "unit", "base"),
    [
        (2.5, "GB/s", (2.5e9, "B/s")),
        (3.0, "TFLOPS", (3e12, "FLOPS")),
        (1.0, "TOPS", (1e12, "OPS")),
        (2.0, "MiB", (2097152, "B")),
        (5.0, "us", (5e-6, "s")),
        (4.0, "products", (4.0, "products")),
    ],
)
def test_units_without_their_prefix(value: float, unit: str, base: tuple[float, str]) -> None:
    assert units.to_base(value, unit) == (pytest.approx(base[0]), base[1])
