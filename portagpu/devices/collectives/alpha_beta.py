"""The straight line through measured times: ``time = alpha + bytes * beta``, for any library.

``alpha`` is what an empty call takes and ``1 / beta`` the bandwidth of a long one. Both are at
least 0. The fit minimises the squares of relative errors, so that 8 B and 8 GiB count the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.base.text import one_line
from portagpu.base.units import size

if TYPE_CHECKING:
    from collections.abc import Iterable

FEWEST_POINTS: Final = 4
FEWEST_SIZES: Final = 3
_LEAST_US, _MOST_US = 1e-6, 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The line of one operation on so many ranks, and how far its points are from it.

    ``error_p50`` and ``error_p95`` are relative errors of the ``points`` times. The line was
    measured from ``low_bytes`` to ``high_bytes``.
    """

    operation: str
    ranks: int
    alpha_us: float
    beta_us_per_byte: float
    points: int
    low_bytes: int
    high_bytes: int
    error_p50: float
    error_p95: float

    def __post_init__(self) -> None:
        if min(self.alpha_us, self.beta_us_per_byte, self.error_p50, self.error_p95) < 0:
            raise ValueError("a line's alpha, beta and errors are at least 0")
        if not 0 < self.time_us(1 << 62) < math.inf:
            raise ValueError("the times on a line are above 0")
        if not (self.points > 0 and 0 < self.low_bytes <= self.high_bytes):
            raise ValueError("a line has points, from a size above 0 on")

    def time_us(self, size_bytes: int) -> float:
        """The time of that size on the line, in microseconds."""
        return self.alpha_us + size_bytes * self.beta_us_per_byte

    def remarks(self, size_bytes: int) -> tuple[str, ...]:
        """What to know of the time of that size: whether it is outside of what was measured."""
        if self.low_bytes <= size_bytes <= self.high_bytes:
            return ()
        measured = f"{size(self.low_bytes)} to {size(self.high_bytes)}"
        return (f"{size(size_bytes)} is outside of the measured sizes, {measured}",)

    def __str__(self) -> str:
        return (
            f"measured on {self.points} points, error p50 {self.error_p50:.0%}, "
            f"p95 {self.error_p95:.0%}"
        )


def fit_line(operation: str, ranks: int, points: Iterable[tuple[int, float]]) -> Fit:
    """The line through ``points``, pairs of bytes and microseconds; a size may come often.

    Raises ValueError for fewer than 4 points or 3 different sizes, for sizes without a distance
    between them, and for a point that is not above 0 or no time at all.
    """
    measured = sorted(points)
    if wrong := next((each for each in measured if not _is_point(*each)), None):
        raise ValueError(one_line(f"{wrong} is no pair of bytes and microseconds above 0"))
    sizes = {x for x, _ in measured}
    if wrong := next((each for each in measured if not _LEAST_US <= each[1] <= _MOST_US), None):
        raise ValueError(f"a time of {wrong[1]:g} us is none that was measured")
    if len(measured) < FEWEST_POINTS or len(sizes) < FEWEST_SIZES:
        raise ValueError(
            f"{len(measured)} times of {len(sizes)} sizes of {operation} on {ranks} ranks are too "
            f"few: a fit needs {FEWEST_POINTS} times of {FEWEST_SIZES} sizes"
        )
    alpha, beta = _least_squares(measured)
    errors = sorted(abs(alpha + x * beta - y) / y for x, y in measured)
    return Fit(
        operation=operation,
        ranks=ranks,
        alpha_us=alpha,
        beta_us_per_byte=beta,
        points=len(measured),
        low_bytes=measured[0][0],
        high_bytes=measured[-1][0],
        error_p50=percentile(errors, 0.50),
        error_p95=percentile(errors, 0.95),
    )


def percentile(ordered: list[float], share: float) -> float:
    """The least of the ``ordered`` values that is not below that share of them (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _is_point(size_bytes: int, time_us: float) -> bool:
    return size_bytes > 0 and math.isfinite(time_us) and time_us > 0


def _least_squares(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Alpha and beta, both at least 0, with the least sum of ``((alpha + x * beta - y) / y)**2``.

    The sum is convex: its least value is where both slopes are 0, or else on an edge, where one of
    the two is 0.
    """
    # in units of the largest size, so that sums of squares are of like magnitude
    unit = max(x for x, _ in points)
    a = [1 / y for _, y in points]
    b = [x / unit / y for x, y in points]
    aa, ab, bb = (sum(map(float.__mul__, p, q)) for p, q in ((a, a), (a, b), (b, b)))
    ta, tb = sum(a), sum(b)
    determinant = aa * bb - ab * ab
    if not determinant > 0:
        raise ValueError("the measured sizes are too close to each other for a line")
    alpha, beta = (ta * bb - tb * ab) / determinant, (tb * aa - ta * ab) / determinant
    if alpha < 0:
        alpha, beta = 0.0, tb / bb
    elif beta < 0:
        alpha, beta = ta / aa, 0.0
    return alpha, beta / unit
