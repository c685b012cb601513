"""Factors, statistics, comparisons and versions of the performance suite, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from portagpu.base.stats import mad, median_interval, summarise
from portagpu.base.units import worse_side
from portagpu.facts.nccl_tests.model import bus_factor
from portagpu.facts.targets import load_target
from portagpu.runs.judges.peers import compare_peers
from portagpu.suites.performance.cases import plan
from portagpu.suites.performance.device import MeasuredDevice
from portagpu.suites.performance.judge import within
from portagpu.suites.performance.load import drift_percent
from portagpu.suites.performance.timing import Effort


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_reduce", 8, 1.75),
        ("reduce_scatter", 2, 0.5),
        ("reduce_scatter", 8, 0.875),
        ("all_gather", 4, 0.75),
        ("all_to_all", 8, 0.875),
        ("broadcast", 8, 1.0),
        ("reduce", 2, 1.0),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(operation: str, ranks: int, factor: float) -> None:
    assert bus_factor(operation, ranks) == factor


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "broadcast", "reduce"])
def test_one_rank_has_no_bus_bandwidth(operation: str) -> None:
    assert bus_factor(operation, 1) is None, f"{operation} moves nothing with one rank"


@pytest.mark.parametrize(("operation", "ranks"), [("barrier", 2), ("all_reduce", 0)])
def test_a_factor_that_does_not_exist_is_an_error(operation: str, ranks: int) -> None:
    with pytest.raises(ValueError, match=r"factor|at least one rank"):
        bus_factor(operation, ranks)


def test_the_spread_is_the_median_absolute_deviation() -> None:
    # median 3; distances 2, 1, 0, 1, 97; their median 1
    summary = summarise([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (summary.n, summary.median, summary.spread) == (5, 3.0, 1.0)
    assert (summary.mean, summary.low, summary.high) == (22.0, 1.0, 100.0)


def test_an_even_number_of_samples_takes_the_middle_of_two() -> None:
    # median 2.5; distances 1.5, 0.5, 0.5, 5.5; their median 1.0
    summary = summarise([1.0, 2.0, 3.0, 8.0])
    assert (summary.median, summary.spread) == (2.5, 1.0)


def test_the_interval_of_a_median_is_that_of_order_statistics() -> None:
    # 101 samples 0..100: a resample's median is below x where most draws are; the exact 95 %
    # interval from the binomial distribution (n = 101, p = 1/2) is from the 41st to the 61st
    low, high = median_interval([float(value) for value in range(101)])
    assert low == pytest.approx(40, abs=2)
    assert high == pytest.approx(60, abs=2)


def test_an_interval_is_the_same_again_and_needs_a_sample() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]
    assert median_interval(values) == median_interval(values)
    assert median_interval([7.0]) == (7.0, 7.0)
    with pytest.raises(ValueError, match="needs samples"):
        median_interval([])


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_there_is_no_summary_of_what_is_not_a_number(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite samples"):
        summarise(values)


@pytest.mark.parametrize(
    ("name", "value"), [("median", 2.0), ("mean", 3.0), ("min", 1.0), ("max", 6.0), ("p99", None)]
)
def test_a_summary_gives_the_statistic_that_is_asked_for(name: str, value: float | None) -> None:
    assert summarise([1.0, 2.0, 6.0]).statistic(name) == value


def test_an_outlier_among_eight_is_named() -> None:
    values = dict(zip("abcdefgh", [100, 101, 99, 100, 102, 98, 100, 70], strict=True))
    found = compare_peers(values)
    # sorted 70 98 99 100 100 100 101 102: median 100, distances 0 1 1 0 2 2 0 30, MAD 1
    assert (found.median, found.mad, found.judged) == (100, 1, True)
    assert [(each.name, each.relative) for each in found.outliers] == [("h", -0.3)]
    assert found.sentence == "h is 30% below the median of its peers"


def test_a_spread_as_wide_as_the_difference_has_no_outlier() -> None:
    # median 100, distances 20 10 10 20 40, MAD 20: 40 is 1.35 deviations
    found = compare_peers({"a": 80, "b": 90, "c": 110, "d": 120, "e": 60, "f": 100})
    assert found.judged
    assert found.outliers == (), f"{found.outliers} are within the spread of their peers"


def test_a_small_difference_is_not_an_outlier_however_well_the_others_agree() -> None:
    found = compare_peers({"a": 100.0, "b": 100.0, "c": 100.0, "d": 96.0})
    assert found.mad == 0
    assert found.outliers == (), "4 % is below the threshold of 5 %"


def test_where_the_others_are_equal_the_relative_difference_decides() -> None:
    found = compare_peers({"rank 0": 100.0, "rank 1": 100.0, "rank 2": 90.0, "rank 3": 100.0})
    assert found.mad == 0
    assert [each.name for each in found.outliers] == ["rank 2"]


def test_outliers_on_both_sides_are_named_worst_first() -> None:
    values = {"a": 10.0, "b": 10.0, "c": 10.0, "d": 10.0, "e": 10.0, "f": 12.0, "g": 2.0}
    found = compare_peers(values)
    assert [each.name for each in found.outliers] == ["g", "f"]
    assert "g is 80% below" in found.sentence
    assert "f is 20% above" in found.sentence


def test_three_values_are_not_judged() -> None:
    found = compare_peers({"a": 100.0, "b": 100.0, "c": 1.0})
    assert not found.judged
    assert found.outliers == ()
    assert "too few" in found.sentence


def test_a_value_that_is_not_a_number_is_an_outlier() -> None:
    found = compare_peers({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": math.nan})
    assert [each.name for each in found.outliers] == ["e"]
    assert found.sentence == "e gave no number"


def test_peers_without_any_number_are_all_outliers() -> None:
    found = compare_peers(dict.fromkeys("abcd", math.nan))
    assert found.median is None
    assert len(found.outliers) == 4


def test_a_median_of_zero_does_not_divide() -> None:
    found = compare_peers({"a": 0.0, "b": 0.0, "c": 0.0, "d": 5.0})
    assert [each.relative for each in found.outliers] == [math.inf]
    assert found.sentence == "d is far above the median of its peers"


def test_thresholds_can_be_widened() -> None:
    values = {"a": 100.0, "b": 100.0, "c": 100.0, "d": 60.0}
    assert compare_peers(values).outliers
    assert not compare_peers(values, relative=0.5).outliers


def test_mad_of_one_value_is_zero() -> None:
    assert mad([7.0]) == 0.0


@pytest.mark.parametrize(
    ("rates", "percent"),
    [
        ([10.0, 10.0, 8.0], -20.0),
        ([10.0, 12.0, 99.0, 1.0, 11.0, 11.0], 0.0),
        ([10.0, 10.0], None),
        ([], None),
    ],
)
def test_drift_compares_the_last_third_with_the_first(
    rates: list[float], percent: float | None
) -> None:
    assert drift_percent(rates) == (None if percent is None else pytest.approx(percent))


@pytest.mark.parametrize(
    ("version", "specifier", "inside"),
    [
        ("2.13.0+cpu", ">=2.9,<3", True),
        ("2.13.0+cpu", "==2.7.1", False),
        ("6.3.42", "==6.3.*", True),
        ("6.30.1", "==6.3.*", False),
        ("2.7", "==2.7.0", True),
        ("2.10.0", ">2.9", True),
        ("2.8.1", "!=2.8.1", False),
        ("2.8", "<=2.8.0", True),
        ("unknown", ">=1", False),
        ("1.0", "about 1", False),
    ],
)
def test_versions_are_compared_as_numbers(version: str, specifier: str, inside: bool) -> None:
    assert within(version, specifier) is inside


@pytest.mark.parametrize(
    "values", [[], [math.nan], [1.0, math.nan], [math.nan, 1.0], [math.inf, 1.0], [1.7e308] * 2]
)
def test_what_has_no_summary_is_a_value_error(values: list[float]) -> None:
    with pytest.raises(ValueError, match="a summary needs finite samples"):
        summarise(values)


def test_history_knows_of_every_measure_but_a_count_which_side_is_worse() -> None:
    target = load_target("amd-mi300x")
    device = replace(MeasuredDevice.from_target(target), tuners=("TunableOp",))
    cases = plan(None, device, Effort.FULL, 8, target)
    assert {each.metric for each in cases if not worse_side(each.unit)} == {"tuning/triton_cache"}
    of_ratios = {each.area for each in cases if each.unit == "ratio"}
    assert of_ratios == {"kernels", "launch", "training", "tuning"}
