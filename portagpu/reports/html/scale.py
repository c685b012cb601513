"""Axes: the coordinate of a value, and round ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.base.units import number

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST: Final = 1e-200
"""Of the length of an axis: less has no round steps."""
_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """A map from values ``low`` to ``high`` onto coordinates ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def linear(values: Sequence[float], start: float, end: float, *, from_zero: bool) -> Scale:
    """A scale with round ticks around ``values``; with ``from_zero`` it includes 0.

    Heights can be compared only from 0, so measures that cannot be negative start there.
    """
    low, high = min(values), max(values)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < _LEAST:
        room = max(1.0, 1e-6 * abs(low))
        low, high = (low, low + room) if low >= 0 else (low - room, low)
    step = _round_step((high - low) / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(index * step for index in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], start, end, log=False, ticks=ticks)


def span(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale from the lowest to the highest of ``values``, with round ticks inside: for time."""
    wide = linear(values, start, end, from_zero=False)
    low, high = min(values), max(values)
    if high - low < _LEAST:
        return wide
    ticks = tuple(tick for tick in wide.ticks if low <= tick <= high)
    return Scale(low, high, start, end, log=False, ticks=ticks)


def logarithmic(values: Sequence[float], start: float, end: float, *, base: int) -> Scale:
    """A logarithmic scale over positive ``values`` with at most six ticks at powers of ``base``."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low / base, high * base
    first = math.ceil(math.log(low, base) - 1e-9)
    last = math.floor(math.log(high, base) + 1e-9)
    if first > last:  # no power of the base lies inside
        return Scale(low, high, start, end, log=True, ticks=(low, high))
    stride = max(1, math.ceil((last - first + 1) / 6))
    ticks = tuple(float(base) ** power for power in range(first, last + 1, stride))
    return Scale(low, high, start, end, log=True, ticks=ticks)


def compact(value: float) -> str:
    """A number short enough for a tick: "7,500", "40k", "2.5M", "1e-4"."""
    if 0 < value < 1e-3 and (power := math.log10(value)).is_integer():
        return f"1e{power:.0f}"
    for least, factor, suffix in ((1e10, 1e9, "G"), (1e7, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return number(value / factor) + suffix
    return number(value)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step for step in _STEPS if step * power >= rough * (1 - 1e-9)) * power
