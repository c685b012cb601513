"""Numbers that no machine gives, and times that no clock shows, break no page."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from hypothesis import strategies as st

from portagpu.reports.html import render_runs
from portagpu.runs.results.run import Result, Run
from portagpu.runs.results.verdicts import Verdict
from tests.support.html_page import Page
from tests.support.result_samples import info

TINY, HUGE = sys.float_info.min * sys.float_info.epsilon, sys.float_info.max
ODD = st.sampled_from([0, 1, -1, TINY, -TINY, HUGE, -HUGE, 1e-300, 1e300, 10**30, 0.1, 7])
UNITS = st.sampled_from(["TFLOPS", "GB/s", "us", "B", "GiB", "%", "1"])


@st.composite
def results(draw: st.DrawFn) -> Result:
    points = draw(st.lists(st.tuples(ODD | st.none(), ODD | st.none()), max_size=4))
    curve = {
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "x_label": "size",
        "y_label": "rate",
        "x_unit": draw(UNITS),
        "y_unit": draw(UNITS),
        "x_log": draw(st.booleans()),
        "series": "a",
    }
    extra: dict[str, Any] = {"curve": curve}
    for key in draw(st.sets(st.sampled_from(["flops", "bytes", "seconds"]))):
        extra[key] = draw(ODD)
    return Result(
        id=draw(st.sampled_from(["memory/copy", "gemm/a", "b/c"])),
        suite="performance",
        area="a",
        verdict=Verdict.UNVERIFIED,
        value=draw(ODD),
        unit=draw(UNITS),
        statistic="median",
        spread=abs(draw(ODD)),
        shape={"dtype": draw(st.sampled_from(["fp32", "int8"]))},
        extra=extra,
    )


def checked(text: str) -> None:
    Page(text)
    drawn = "".join(re.findall("<svg.*?</svg>", text))
    assert not re.search(r'(?<=[" ,ML(])-?(nan|inf)\b', drawn), "a place that is not a number"


@pytest.mark.parametrize(
    "started",
    ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2025-01-01T00:00:00.000001Z"],
)
def test_any_start_can_be_compared(started: str) -> None:
    results = [
        Result(id="a/b", suite="s", area="a", verdict=Verdict.UNVERIFIED, value=1.0, unit="s")
    ]
    runs = [
        Run(info(id="a", started=started), results),
        Run(info(id="b", started="2025-01-01T00:00:00Z"), results),
        Run(info(id="c", started="2025-01-01T02:00:00+02:00"), results),
    ]
    checked(render_runs(runs))
