"""Statistics of samples: the median, its spread and interval, and the extremes."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERVAL_LEVEL: Final = 0.95
_RESAMPLES: Final = 1000
_INTERVAL_SEED: Final = 20240306


@dataclass(frozen=True, slots=True)
class Summary:
    """``spread`` is the median absolute deviation (MAD) of the ``n`` samples from ``median``."""

    n: int
    median: float
    spread: float
    mean: float
    low: float
    high: float

    def statistic(self, name: str) -> float | None:
        """The value of "median", "mean", "min" or "max"; None for another statistic."""
        return {
            "median": self.median,
            "mean": self.mean,
            "min": self.low,
            "max": self.high,
        }.get(name)


def mad(values: Sequence[float]) -> float:
    """The median absolute deviation from the median; raises ValueError without a value."""
    middle = median(values)
    return median(abs(value - middle) for value in values)


def summarise(values: Sequence[float]) -> Summary:
    """The summary of ``values``; raises ValueError if there is none, or one is not finite."""
    # the sum too: that of finite values can be too large for a number
    largest = len(values) * max(values, key=abs, default=math.inf)
    if not all(math.isfinite(value) for value in (*values, largest)):
        raise ValueError(f"a summary needs finite samples, not {list(values)[:5]}")
    return Summary(
        n=len(values),
        median=float(median(values)),
        spread=float(mad(values)),
        mean=fmean(values),
        low=min(values),
        high=max(values),
    )


def median_interval(
    values: Sequence[float], *, level: float = INTERVAL_LEVEL, seed: int = _INTERVAL_SEED
) -> tuple[float, float]:
    """(low, high) of the median: a percentile bootstrap interval of 1000 seeded resamples.

    Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13. With few samples it
    is hardly wider than their range. Raises ValueError without a value.
    """
    if not values:
        raise ValueError("an interval needs samples")
    draw = random.Random(seed)  # noqa: S311 - resampling, not a secret
    found = sorted(median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    beyond = round((1 - level) / 2 * _RESAMPLES)
    return found[beyond], found[_RESAMPLES - 1 - beyond]
