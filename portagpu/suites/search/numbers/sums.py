"""What is right for sums, products, extremes and running sums of one row.

A sum of n numbers in any order is within ``gamma_(n-1) sum(abs(x))``, ``gamma_n = n u / (1 - n u)``
(Higham, Accuracy and Stability of Numerical Algorithms, 4.2), where u is that of the accumulator:
float32 for float16 and bfloat16 (pytorch v2.13.0, aten/src/ATen/AccumulateType.h), and the dtype
itself for running sums, which some devices add up in it. Whole numbers whose absolute sum has no
more bits than the accumulator are added exactly in any order.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from portagpu.suites.search.numbers.compare import Right, Within
from portagpu.suites.search.numbers.formats import (
    COMPLEX,
    INTEGERS,
    largest,
    rounded,
    roundoff,
    smallest,
    smallest_normal,
    whole_to_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def gamma(n: int, u: float) -> float:
    """n u / (1 - n u): n roundings; infinite where nothing follows any more."""
    return n * u / (1 - n * u) if n * u < 1 else math.inf


def accumulator(dtype: str) -> str:
    """The dtype in which numbers of a floating-point or complex dtype are added."""
    return "float32" if dtype in ("float16", "bfloat16") else COMPLEX.get(dtype, dtype)


def sum_of(values: Sequence[Any], dtype: str, within: str = "", terms: int = 0) -> Right:
    """What is right for their sum in ``dtype``, added in ``within`` in any order."""
    if dtype in INTEGERS:
        return whole_to_dtype(sum(map(int, values)), dtype)
    if dtype in COMPLEX:
        part = COMPLEX[dtype]
        return _joined(*(sum_of([getattr(v, p) for v in values], part) for p in ("real", "imag")))
    within = within or accumulator(dtype)
    if not all(map(math.isfinite, values)):
        return _sum_with_specials(values, dtype)
    size = sum(map(abs, values))
    if size > min(largest(dtype), largest(within)) / 2:
        return None
    total = math.fsum(values)
    whole = all(each.is_integer() for each in values)
    if whole and size <= 1 / roundoff(within):
        return rounded(total, dtype) + 0.0
    bound = gamma(max(1, (terms or len(values)) - 1), roundoff(within)) * size
    bound += 2 * roundoff(dtype) * (abs(total) + bound) + smallest(dtype)
    return Within(total, bound)


def _sum_with_specials(values: Sequence[float], dtype: str) -> Right:
    """NaN, or the infinity of one sign; nothing where finite numbers alone might overflow."""
    if any(each != each for each in values) or {math.inf, -math.inf} <= set(values):
        return math.nan
    finite = sum(abs(each) for each in values if math.isfinite(each))
    infinite = next(each for each in values if math.isinf(each))
    return infinite if finite <= largest(dtype) / 2 else None


def mean_of(values: Sequence[Any], dtype: str) -> Right:
    """A sum, rounded to the dtype on some devices, and a quotient."""
    if not values:
        return math.nan
    total = sum_of(values, dtype)
    if isinstance(total, Within):
        return Within(total.value / len(values), _mean_bound(total, len(values), dtype))
    if total is None or not math.isfinite(total):
        return total
    exact = math.fsum(values)
    if exact == total and (exact / len(values)).is_integer():
        return exact / len(values)
    return Within(
        exact / len(values), 3 * roundoff(dtype) * abs(exact / len(values)) + smallest(dtype)
    )


def _mean_bound(total: Within, n: int, dtype: str) -> float:
    value = abs(float(total.value)) / n
    return total.bound / n + 3 * roundoff(dtype) * value + smallest(dtype)


def product_of(values: Sequence[Any], dtype: str) -> Right:
    """Of whole numbers: n roundings of the product; nothing where it leaves the dtype."""
    if dtype in INTEGERS:
        return whole_to_dtype(math.prod(map(int, values)), dtype)
    if not all(each.is_integer() for each in values):
        return None
    size = math.prod(max(1, abs(int(each))) for each in values)
    if size > min(largest(dtype), 2.0**120):
        return None
    value = math.prod(map(int, values))
    if size <= 1 / roundoff(dtype):
        return float(value)
    return Within(float(value), gamma(len(values) + 1, roundoff(dtype)) * abs(value))


def extreme(pick: Callable[[Sequence[Any]], Any]) -> Callable[..., Right]:
    def right(values: Sequence[Any], _dtype: str) -> Right:
        lost = next((each for each in values if each != each), None)
        return pick(values) if lost is None else lost

    return right


def place_of(pick: Callable[[Sequence[Any]], Any]) -> Callable[..., Right]:
    """The first of the extreme ones, as torch documents for argmax and max; any of the NaNs."""

    def right(values: Sequence[Any], _dtype: str) -> Right:
        lost = tuple(index for index, each in enumerate(values) if each != each)
        return lost or values.index(pick(values))

    return right


def norm_of(values: Sequence[float], dtype: str) -> Right:
    """The square root of a sum of squares: the sum's error counts half, the root has 3 ULPs."""
    if not all(map(math.isfinite, values)) or any(abs(v) > 2.0**6 for v in values):
        return None
    value = math.sqrt(math.fsum(each * each for each in values))
    tiny = smallest(dtype) + len(values) * math.sqrt(
        smallest_normal("float32" if dtype != "float64" else dtype)
    )
    relative = gamma(len(values) + 8, roundoff(accumulator(dtype))) + 2 * roundoff(dtype)
    return Within(value, relative * value + tiny)


def running_sums(values: Sequence[Any], dtype: str) -> list[Right]:
    """All running sums, which some devices add in the dtype itself; the model's own error too."""
    if dtype in INTEGERS:
        return [whole_to_dtype(each, dtype) for each in accumulate(map(int, values))]
    if dtype in COMPLEX:
        parts = [
            running_sums([getattr(v, p) for v in values], COMPLEX[dtype]) for p in ("real", "imag")
        ]
        return list(map(_joined, *parts)) if values else []
    u = roundoff(dtype)
    found: list[Right] = []
    whole = all(each.is_integer() for each in values if math.isfinite(each))
    sizes = accumulate(abs(each) if math.isfinite(each) else 0.0 for each in values)
    for n, (total, size) in enumerate(zip(accumulate(values), sizes, strict=True)):
        if size > largest(dtype) / 2:
            found.append(None)
        elif not math.isfinite(total) or (whole and size <= 1 / u):
            found.append(total)
        else:
            bound = (gamma(max(1, n), u) + gamma(n + 1, 2.0**-53)) * size
            found.append(Within(total, bound + 2 * u * (abs(total) + bound) + smallest(dtype)))
    return found


def _joined(real: Right, imag: Right) -> Right:
    """What is right for a complex number of those parts."""
    if real is None or imag is None:
        return None
    values = [each.value if isinstance(each, Within) else each for each in (real, imag)]
    bounds = [each.bound if isinstance(each, Within) else 0.0 for each in (real, imag)]
    return Within(complex(*values), max(bounds))


def softmax_of(values: Sequence[float], dtype: str) -> list[Right]:
    """Each weight is within the error of its exponent, an exponential, a sum and a quotient.

    The exponent x - max is rounded once: abs(x - max) u. Exponentials of some devices are within 20
    ULPs (``exp_u20``, aten/src/ATen/cpu/vec), 40 u. The sum is within gamma_n, all twice: in the
    weight and in the sum of the weights.
    """
    if any(each != each or each == math.inf for each in values) or max(values) == -math.inf:
        return [math.nan] * len(values)
    most = max(values)
    if any(math.isfinite(each) and abs(each) > 2.0**12 for each in values):
        return [None] * len(values)
    weights = [math.exp(each - most) for each in values]
    total, u = math.fsum(weights), roundoff(accumulator(dtype))
    spread = max(most - each for each in values if math.isfinite(each))
    relative = 2 * (spread + 40 + len(values) + 4) * u * 1.01 + 2 * roundoff(dtype)
    tiny = smallest_normal(dtype) if dtype != "float16" else 2 * smallest(dtype)
    return [Within(each / total, relative * each / total + tiny) for each in weights]
