"""The right result of operations element by element: one function of Python's numbers each.

What is correctly rounded (IEEE 754-2019, 5.4.1) is computed in float64 and rounded. For +, -, *, /
and the square root of formats of at most 24 bits that is the nearest number: 53 >= 2 * 24 + 2
(Figueroa, "When is double rounding innocuous?", SIGNUM Newsletter 30(3), 1995), and so it is by way
of float32 for formats of 8 and 11 bits. Products of denormals are exact in float64.

Functions of libraries are right within the ULPs that OpenCL asks of single precision (OpenCL C 3.0,
7.4, full profile), and twice those where the model's own libm adds its own. Below the smallest
normal number they may give anything as small: OpenCL lets them flush there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.numbers.formats import (
    COMPLEX,
    INTEGERS,
    kind_of,
    largest,
    rounded,
    roundoff,
    smallest,
    smallest_normal,
    whole_to_dtype,
)
from portagpu.suites.search.numbers.tensors import Within

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Pointwise:
    """One operation. ``right(a, b, c, dtype)`` gives what is right of numbers of ``dtype``.

    ``kinds`` are those of its dtypes. ``result`` is "same", "bool" or "float" (of integers
    float32). ``divisor``: the second operand is never 0. ``count``: it is a number of bits.
    """

    arity: int
    kinds: str
    right: Callable[..., Any]
    result: str = "same"
    signs: bool = True
    divisor: bool = False
    count: bool = False
    classes: tuple[str, ...] = ()
    """The classes of numbers for which something is claimed; all where it is empty."""

    @property
    def is_limited(self) -> bool:
        """Whether not every number of the dtype may be the second operand."""
        return self.divisor or self.count


def finish(value: Any, dtype: str) -> Any:
    """A result of exact or float64 arithmetic as a number of ``dtype``."""
    if value is None or isinstance(value, tuple):
        return value
    if isinstance(value, Within):
        size = max(abs(value.value.real), abs(value.value.imag)) + value.bound
        return None if size > largest(dtype) else value
    if dtype in INTEGERS:
        return whole_to_dtype(int(value), dtype)
    if dtype in COMPLEX:
        part = COMPLEX[dtype]
        value = complex(value)
        value = complex(rounded(value.real, part), rounded(value.imag, part))
        # C99, annex G: one infinite part makes a number infinite, whatever the other one is
        return value if math.isfinite(value.real) and math.isfinite(value.imag) else None
    return bool(value) if dtype == "bool" else rounded(float(value), dtype)


def quotient(a: float, b: float) -> float:
    """a / b as IEEE 754 has it, also by zero."""
    if b:
        return a / b
    if a == 0 or a != a:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _divide(a: Any, b: Any, _c: Any, t: str) -> Any:
    if t in INTEGERS or t == "bool":
        return quotient(rounded(float(a), "float32"), rounded(float(b), "float32"))
    return quotient(a, b)


def _sqrt(a: float) -> float:
    return math.sqrt(a) if a >= 0 else math.nan


def _complex_product(a: Any, b: Any, _c: Any, t: str) -> Any:
    """Exact for whole numbers; else each part within gamma_2 of its two products.

    Each product and the sum are rounded, or fused (Higham, Accuracy and Stability, 3.6).
    """
    if kind_of(t) != "complex":
        return a * b
    parts = (a.real * b.real, a.imag * b.imag, a.real * b.imag, a.imag * b.real)
    if not all(map(math.isfinite, parts)):
        return None
    value = complex(parts[0] - parts[1], parts[2] + parts[3])
    if all(each.is_integer() and abs(each) < 2**20 for each in parts):
        return Within(value, 0.0)
    size = max(abs(parts[0]) + abs(parts[1]), abs(parts[2]) + abs(parts[3]))
    return Within(value, 3 * roundoff(t) * size + 2 * smallest(t))


def _nan_either(pick: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def right(a: Any, b: Any, *_: Any) -> Any:
        return a if a != a else b if b != b else pick(a, b)

    return right


def _nan_neither(pick: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def right(a: Any, b: Any, *_: Any) -> Any:
        return b if a != a else a if b != b else pick(a, b)

    return right


def _fmod(a: Any, b: Any, _c: Any, t: str) -> Any:
    if t in INTEGERS:
        return int(math.copysign(abs(a) % abs(b), a)) if t != "int64" else a - b * _quotient(a, b)
    if a != a or b != b or math.isinf(a) or b == 0:
        return math.nan
    # a vector library's own algorithm may divide: the quotient has to be a number
    return None if abs(a) > abs(b) * largest(t) / 4 else math.fmod(a, b)


def _quotient(a: int, b: int) -> int:
    """a / b toward zero."""
    found = abs(a) // abs(b)
    return found if (a < 0) == (b < 0) else -found


def _remainder(a: Any, b: Any, c: Any, t: str) -> Any:
    """Of the sign of the divisor, as torch and Python have it."""
    if t in INTEGERS:
        return a % b
    found = _fmod(a, b, c, t)
    if found is None or not math.isfinite(b):
        return None
    return found + b if found and (b < 0) != (found < 0) else found


def _floor_divide(a: Any, b: Any, _c: Any, t: str) -> Any:
    if t in INTEGERS:
        # the lowest number by -1 has no quotient in its dtype
        return None if b == -1 and t != "uint8" and a == -(2 ** (INTEGERS[t] - 1)) else a // b
    if a != a or b != b:
        return math.nan
    # of other numbers than small whole ones the quotient may be rounded to the next one
    small = all(abs(each) <= 2**8 and each.is_integer() for each in (a, b))
    return float(a // b) if b and small else None


def _round(a: Any, *_: Any) -> Any:
    return math.copysign(float(round(a)), a) if _has_fraction(a) else a


def _has_fraction(a: Any) -> bool:
    return isinstance(a, float) and math.isfinite(a) and abs(a) < 2**53


def _toward(pick: Callable[[float], int]) -> Callable[..., Any]:
    def right(a: Any, *_: Any) -> Any:
        return math.copysign(float(pick(a)), a) if _has_fraction(a) else a

    return right


def _clamp(a: Any, b: Any, c: Any, _t: str) -> Any:
    for each in (a, b, c):
        if each != each:
            return each
    return min(max(a, b), c)


def _triple(sign: int) -> Callable[..., Any]:
    """a + b * c: exact for whole numbers, else with a rounding of the product, or without one.

    Nothing is claimed where the rounded product is not a number, though the sum may be one.
    """

    def right(a: Any, b: Any, c: Any, t: str) -> Any:
        if t in INTEGERS:
            return a + sign * b * c
        product = b * c * sign
        value = a + product
        if not (math.isfinite(value) and math.isfinite(rounded(product, t))):
            return None
        # in float64 the model rounds too
        bound = (
            (1 + (t == "float64"))
            * roundoff(t)
            * (1 + 2 * roundoff(t))
            * (abs(product) + abs(value))
        )
        exact = value.is_integer() and abs(value) + abs(product) < 2**8
        return value if exact and product.is_integer() else Within(value, bound + smallest(t))

    return right


def _library(function: Callable[[float], float], ulps: int, most: float) -> Callable[..., Any]:
    """A function of a library where abs(x) <= most, infinity and NaN."""

    def right(a: float, _b: Any, _c: Any, t: str) -> Any:
        if a != a or (math.isinf(a) and function in (math.sin, math.cos)):
            return math.nan
        if abs(a) > most and not (math.isinf(a) and function in (math.exp, math.tanh, _sqrt)):
            return None
        value = function(a)
        if math.isinf(value) or abs(value) * (1 + 2.0**-7) > _most(t):
            return None if math.isfinite(a) else value
        single = roundoff("float32" if t != "float64" else t) * 2 * (ulps + (t == "float64"))
        bound = (single + (roundoff(t) if t in ("float16", "bfloat16") else 0)) * abs(value)
        return Within(value, bound * (1 + 2.0**-7) + 2 * _tiny(t, value))

    return right


def _most(t: str) -> float:
    return {"float16": 65504.0, "bfloat16": 2.0**127, "float32": 2.0**127}.get(t, 1e308)


def _tiny(t: str, value: float) -> float:
    """What may be lost of a number that is not normal, or of the half format's last bit."""
    normal = smallest_normal(t)
    near = abs(value) < 2 * normal
    return normal if near and t != "float16" else smallest(t) if near else 0.0


def _log(a: float) -> float:
    return math.nan if a < 0 else -math.inf if a == 0 else math.log(a)


def _right_log(a: float, b: Any, c: Any, t: str) -> Any:
    if a == 0 or a == math.inf:
        return -math.inf if a == 0 else a
    if 0 < a < smallest_normal("float32"):
        return None
    return _library(_log, 3, math.inf)(a, b, c, t)


def _sigmoid(a: float) -> float:
    return 1 / (1 + math.exp(-a)) if a > -700 else 0.0


def _logical(pick: Callable[[bool, bool], bool]) -> Callable[..., Any]:
    return lambda a, b, *_: pick(bool(a), bool(b))


def _ordered(pick: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    return lambda a, b, *_: pick(a, b)


def _bits(pick: Callable[[int, int], int]) -> Callable[..., Any]:
    return lambda a, b, *_: pick(a, b)


def _negative(a: Any, *_: Any) -> Any:
    return complex(-a.real, -a.imag) if isinstance(a, complex) else -a


def _sum_of(a: Any, b: Any, _c: Any, t: str) -> Any:
    return (a or b) if t == "bool" else a + b


def _difference_of(a: Any, b: Any, *_: Any) -> Any:
    return a - b


def _nan_to_num(a: float, _b: Any, _c: Any, t: str) -> float:
    return 0.0 if a != a else math.copysign(largest(t), a) if math.isinf(a) else a


def _modulus(a: Any, _b: Any, _c: Any, t: str) -> Any:
    if kind_of(t) != "complex":
        return abs(a)
    # OpenCL's hypot: 4 ULPs; the square of a small part may vanish
    value = math.hypot(a.real, a.imag)
    if not math.isfinite(value) or not 2.0**-40 < value < 2.0**40:
        return None if value else 0.0
    return Within(value, 2 * 5 * roundoff(t) * value)


ALL_KINDS: Final = "bool int float complex"
PLAIN: Final = ("integers", "ordinary", "ones", "distinct")
SMALL: Final = ("integers", "ones")
OPS: Final[dict[str, Pointwise]] = {
    "add": Pointwise(2, ALL_KINDS, _sum_of),
    "sub": Pointwise(2, "int float complex", _difference_of),
    "mul": Pointwise(2, ALL_KINDS, _complex_product),
    "div": Pointwise(2, "int float", _divide, "float"),
    "neg": Pointwise(1, "int float complex", _negative),
    "abs": Pointwise(1, "int float complex", _modulus, "real"),
    "square": Pointwise(1, "int float", lambda a, *_: a * a),
    "reciprocal": Pointwise(1, "float", lambda a, *_: quotient(1.0, a)),
    "sqrt": Pointwise(1, "float", _library(_sqrt, 3, math.inf)),
    "floor": Pointwise(1, "float", _toward(math.floor)),
    "ceil": Pointwise(1, "float", _toward(math.ceil)),
    "trunc": Pointwise(1, "float", _toward(math.trunc)),
    "round": Pointwise(1, "float", _round),
    "relu": Pointwise(1, "int float", lambda a, *_: a if a != a or a > 0 else 0, signs=False),
    "maximum": Pointwise(2, "bool int float", _nan_either(max), signs=False),
    "minimum": Pointwise(2, "bool int float", _nan_either(min), signs=False),
    "fmax": Pointwise(2, "int float", _nan_neither(max), signs=False),
    "fmin": Pointwise(2, "int float", _nan_neither(min), signs=False),
    "fmod": Pointwise(2, "int float", _fmod, signs=False, divisor=True),
    "remainder": Pointwise(2, "int float", _remainder, signs=False, divisor=True),
    "floor_divide": Pointwise(2, "int float", _floor_divide, signs=False, divisor=True),
    "clamp": Pointwise(3, "int float", _clamp, signs=False),
    "addcmul": Pointwise(3, "int float", _triple(1)),
    "copysign": Pointwise(2, "float", lambda a, b, *_: None if b != b else math.copysign(a, b)),
    "nan_to_num": Pointwise(1, "float", _nan_to_num),
    "eq": Pointwise(2, ALL_KINDS, lambda a, b, *_: a == b, "bool"),
    "ne": Pointwise(2, ALL_KINDS, lambda a, b, *_: a != b, "bool"),
    "lt": Pointwise(2, "bool int float", _ordered(lambda a, b: a < b), "bool"),
    "le": Pointwise(2, "bool int float", _ordered(lambda a, b: a <= b), "bool"),
    "gt": Pointwise(2, "bool int float", _ordered(lambda a, b: a > b), "bool"),
    "ge": Pointwise(2, "bool int float", _ordered(lambda a, b: a >= b), "bool"),
    "isnan": Pointwise(1, "float", lambda a, *_: a != a, "bool"),
    "isinf": Pointwise(1, "float", lambda a, *_: math.isinf(a), "bool"),
    "isfinite": Pointwise(1, "float", lambda a, *_: math.isfinite(a), "bool"),
    "signbit": Pointwise(
        1, "int float", lambda a, *_: None if a != a else math.copysign(1, a) < 0, "bool"
    ),
    "logical_and": Pointwise(2, ALL_KINDS, _logical(lambda a, b: a and b), "bool"),
    "logical_or": Pointwise(2, ALL_KINDS, _logical(lambda a, b: a or b), "bool"),
    "logical_xor": Pointwise(2, ALL_KINDS, _logical(lambda a, b: a != b), "bool"),
    "logical_not": Pointwise(1, ALL_KINDS, lambda a, *_: not a, "bool"),
    "bitwise_and": Pointwise(2, "bool int", _bits(lambda a, b: a & b)),
    "bitwise_or": Pointwise(2, "bool int", _bits(lambda a, b: a | b)),
    "bitwise_xor": Pointwise(2, "bool int", _bits(lambda a, b: a ^ b)),
    "bitwise_not": Pointwise(1, "bool int", lambda a, *_: not a if isinstance(a, bool) else ~a),
    "bitwise_left_shift": Pointwise(2, "int", _bits(lambda a, b: a << b), count=True),
    "bitwise_right_shift": Pointwise(2, "int", _bits(lambda a, b: a >> b), count=True),
    "exp": Pointwise(1, "float", _library(math.exp, 3, 700)),
    "log": Pointwise(1, "float", _right_log),
    "sin": Pointwise(1, "float", _library(math.sin, 4, 100)),
    "cos": Pointwise(1, "float", _library(math.cos, 4, 100)),
    "tanh": Pointwise(1, "float", _library(math.tanh, 5, 2**60)),
    # the exponential with 3 ULPs, a sum and a quotient: 3 * 2u + 2u, and 2u of its argument's sign
    "sigmoid": Pointwise(1, "float", _library(_sigmoid, 5, 80)),
    "conj_physical": Pointwise(1, "complex", lambda a, *_: complex(a.real, -a.imag)),
}
