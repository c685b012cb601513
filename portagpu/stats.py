"""Statistics of samples: the median, its spread, and the extremes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    if not values or not all(math.isfinite(value) for value in values):
        raise ValueError(f"a summary needs finite samples, not {list(values)[:5]}")
    return Summary(
        n=len(values),
        median=float(median(values)),
        spread=float(mad(values)),
        mean=fmean(values),
        low=min(values),
        high=max(values),
    )
