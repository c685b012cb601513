"""Change points: what is found in simulated series, and how often there is a false alarm."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

np: Any = pytest.importorskip("numpy")

from portagpu.reports.history.regressions import RATE, best_cuts, change_points, level_changes
from tests.unit.reports.test_history_analysis import series, stored


def test_what_is_found_among_series_without_change_is_mostly_true() -> None:
    """Ten of 200 series changed; of what is found, at most RATE is false on average."""
    random = np.random.default_rng(18)
    false = true = 0
    for _ in range(30):
        stores = [random.normal(size=40) for _ in range(200)]
        for changed in stores[:10]:
            changed[20:] += 5
        found = change_points(stores)
        true += len({each.series for each in found if each.series < 10})
        false += sum(each.series >= 10 for each in found)
    assert true == 300
    assert false <= 2 * RATE * true


@pytest.mark.parametrize("after", [5, 8, 20])
def test_a_change_of_5_percent_is_found_after_five_runs(after: int) -> None:
    """The noise is 1 %, one series of 60 + ``after`` runs."""
    random = np.random.default_rng(19)
    near = 0
    for _ in range(100):
        values = 100 + random.normal(size=60 + after)
        values[60:] *= 1.05
        near += any(abs(each.at - 60) <= 1 for each in change_points([values]))
    assert near >= 95


def test_every_change_of_a_series_is_found() -> None:
    random = np.random.default_rng(20)
    values = random.normal(size=150)
    values[50:] += 10
    values[100:] -= 20
    found = change_points([random.normal(size=150), values])
    assert [(each.series, each.at) for each in found] == [(1, 50), (1, 100)]


def test_the_statistic_is_the_one_of_the_definition() -> None:
    """The mean and the variance over every way to choose the values before the cut."""
    values = np.array([[3.0, 1.0, 2.0, 2.0, 7.0, 9.0, 8.0, 9.0]])
    ranks = [4.0, 1.0, 2.5, 2.5, 5.0, 7.5, 6.0, 7.5]
    sums = [sum(chosen) for chosen in combinations(ranks, 4)]
    mean, variance = np.mean(sums), np.var(sums)
    (cut,), (standard,) = best_cuts(values)
    assert cut == 4
    assert standard == pytest.approx((abs(sum(ranks[:4]) - mean) - 0.5) / variance**0.5)


def test_short_and_constant_series_have_no_change() -> None:
    assert change_points([]) == []
    assert change_points([np.array([]), np.arange(7.0), np.full(50, 3.0)]) == []


def test_an_outlier_is_not_a_change_of_level() -> None:
    random = np.random.default_rng(21)
    values = 100 + random.normal(size=60)
    values[[20, 21, 40]] = 1e9
    assert change_points([values]) == []


def test_a_regression_names_the_runs_and_the_software() -> None:
    runs = [
        stored(day, host, torch="2.13" if day >= 20 else "2.12")
        for day in range(40)
        for host in ("a", "b")
    ]
    random = np.random.default_rng(22)

    def level(at: int, factor: float) -> float:
        return float(100 * (factor if at >= 40 and at % 2 == 0 else 1) + random.normal() / 2)

    found = level_changes(
        [
            series("slower/rate", {at: level(at, 0.8) for at in range(80)}),
            series("slower/time", {at: level(at, 1.2) for at in range(80)}, "us"),
            series("faster/time", {at: level(at, 0.8) for at in range(80)}, "us"),
            series("hotter", {at: level(at, 1.2) for at in range(80)}, "°C"),
            series("small", {at: level(at, 1.03) for at in range(80)}, "us"),
            series("steady", {at: level(at, 1.0) for at in range(80)}, "us"),
            series("new", dict.fromkeys(range(70, 80), 1.0), "us"),
        ],
        runs,
    )
    words = {each.what.id: each.word for each in found.changes}
    assert words == {
        "slower/rate": "worse",
        "slower/time": "worse",
        "faster/time": "better",
        "hotter": "different",
    }
    assert {each.machine.host for each in found.changes} == {"a"}
    assert (found.searched, found.short) == (12, 2)
    for each in found.changes:
        assert (each.last.id, each.first.id) == ("run-19", "run-20")
        assert each.versions == {"torch": ("2.12", "2.13")}
        assert each.before == pytest.approx(100, abs=1)
    assert [each.what.id for each in found.worse] == ["slower/rate", "slower/time"]
    everything = level_changes([series("small", {0: 1.0})], runs, least=0.0)
    assert everything.changes == ()


@pytest.mark.parametrize(
    ("before", "after", "unit", "word", "ratio"),
    [
        (0.0, 4.0, "us", "worse", None),
        (4.0, 0.0, "us", "better", 0.0),
        (-10.0, -5.0, "us", "worse", 0.5),
        (-1.0, 1.0, "GB/s", "better", -1.0),
        (5e-324, 1e150, "GB/s", "better", None),
    ],
)
def test_levels_around_zero_change_as_their_values_do(
    before: float, after: float, unit: str, word: str, ratio: float | None
) -> None:
    values = {day: before if day < 6 else after for day in range(12)}
    (found,) = level_changes(
        [series("a/b", values, unit)], [stored(day) for day in range(12)]
    ).changes
    assert (found.word, found.ratio) == (word, ratio)


@pytest.mark.parametrize("level", [0.0, 5.0, -1.0])
def test_a_constant_series_never_changes(level: float) -> None:
    values = dict.fromkeys(range(40), level)
    runs = [stored(day) for day in range(40)]
    assert level_changes([series("a/b", values)], runs, least=0.0).changes == ()
