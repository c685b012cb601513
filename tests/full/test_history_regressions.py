"""Change points: what is found in simulated series, and how often there is a false alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from portagpu.reports.history.regressions import RATE, change_points
from tests.unit.reports.test_history_regressions import np

if TYPE_CHECKING:
    from collections.abc import Callable


NOISES: dict[str, Callable[[Any, int], Any]] = {
    "normal": lambda random, count: random.normal(size=count),
    "heavy tails": lambda random, count: random.standard_cauchy(size=count),
    "skewed": lambda random, count: random.lognormal(size=count),
    "few values": lambda random, count: random.integers(0, 3, size=count).astype(float),
    "two modes": lambda random, count: random.normal(size=count) + 9 * random.integers(0, 2, count),
}


def test_series_of_unlike_lengths_have_no_more_false_alarms() -> None:
    random = np.random.default_rng(17)
    alarms = sum(
        bool(change_points([random.normal(size=count) for count in range(2, 50)]))
        for _ in range(200)
    )
    assert alarms <= 21, f"{alarms} of 200, whose 99.9th percentile is 21"


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize(("number", "count"), [(1, 12), (1, 60), (40, 30)])
def test_false_alarms_are_no_more_than_stated(name: str, number: int, count: int) -> None:
    """Stores of series that never changed: at most RATE of them have an alarm.

    The binomial distribution of 400 stores with a rate of 0.05 has its 99.9th percentile at 34.
    """
    random = np.random.default_rng(16)
    alarms = sum(
        bool(change_points([NOISES[name](random, count) for _ in range(number)]))
        for _ in range(400)
    )
    assert RATE == 0.05
    assert alarms <= 34, f"{alarms} of 400"
