"""Numbers by class and seed, tensors of them in every layout, and comparison with what is right.

The numbers of a class and a seed are the same at each call, and each is a number of its dtype.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.numbers.formats import (
    COMPLEX,
    INTEGERS,
    SMALL,
    fp8_codes,
    fp8_values,
    kind_of,
    largest,
    pattern_values,
    rounded,
    smallest,
    smallest_normal,
    whole_to_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from portagpu.devices.contract import Backend


CLASSES: Final = (
    "integers",
    "ordinary",
    "special",
    "ends",
    "wide",
    "ones",
    "mixed",
    "distinct",
    "denormal",
    "last",
)
MAX_WHOLE: Final = 8
"""The largest of the class "integers"."""
SHORT: Final = 32
LONG: Final = 512
"""Up to this many numbers are drawn in powers of two."""
Shape = tuple[int, ...]
WRITABLE: Final = ("plain", "every second", "transposed", "offset", "rows apart")
LAYOUTS: Final = (*WRITABLE, "expanded", "overlapping")
"""How elements lie: row by row, every second one, column by column, from the fourth on, with three
unused elements between rows; one row for all (stride 0), and rows that begin one element apart."""
_BITS: Final = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
Right = Any
"""A number that is right exactly, :class:`Within`, a tuple of which each is right, or None where
nothing is claimed."""


def numbers(dtype: str, kind: str, n: int, seed: int) -> tuple[Any, ...]:
    """``n`` numbers.

    integers: whole, at most ``MAX_WHOLE``; negative ones too. ones: all 1. distinct: whole and all
    different as far as the dtype goes, in no order. ordinary: 2^-4 to 2^4 with all bits of the
    mantissa. denormal: below the smallest normal number or little above, integers for others. wide:
    any bits of the dtype. whole: integers with a few NaN and infinities, for which their sums need
    no order. last: ordinary with NaN of either sign in every third place, any bits for integers.
    special: NaN, infinities, -0.0, denormals, the largest
    number, and for integers the ends. ends: those alone that two operands have to meet in pairs,
    infinities, zeros, NaN, 1 and the largest. mixed: ordinary with a few special ones.
    """
    return _stored(dtype, kind, _length(kind, n), seed)[:n]


def _length(kind: str, n: int) -> int:
    """How many are drawn for ``n``: few lengths, since drawing takes longer than what uses them."""
    return n if kind == "distinct" or n > LONG else max(SHORT, 1 << (n - 1).bit_length())


@lru_cache(maxsize=8192)
def _stored(dtype: str, kind: str, n: int, seed: int) -> tuple[Any, ...]:
    chance = random.Random(f"{dtype} {kind} {n} {seed}")  # noqa: S311 - test data, no secret
    if dtype in COMPLEX:
        parts = [_draw(COMPLEX[dtype], kind, n, chance) for _ in range(2)]
        return tuple(map(complex, *parts))
    return tuple(_draw(dtype, kind, n, chance))


def _draw(dtype: str, kind: str, n: int, chance: random.Random) -> list[Any]:
    if kind == "ones":
        return [True if dtype == "bool" else 1 if dtype in INTEGERS else 1.0] * n
    if dtype == "bool":
        return chance.choices((False, True), k=n)
    if kind == "distinct":
        return _distinct(dtype, n, chance)
    if kind == "mixed":
        ends = (
            _wholes(dtype, "special", n, chance) if dtype in INTEGERS else _ends(dtype, n, chance)
        )
        others = _draw(dtype, "ordinary", n, chance)
        return [
            end if chance.random() < 0.15 else each for end, each in zip(ends, others, strict=True)
        ]
    return (_wholes if dtype in INTEGERS else _floats)(dtype, kind, n, chance)


def _distinct(dtype: str, n: int, chance: random.Random) -> list[Any]:
    low = 0 if dtype == "uint8" else -n // 2
    found = [low + each for each in range(n)]
    chance.shuffle(found)
    if dtype in INTEGERS:
        return [whole_to_dtype(each, dtype) for each in found]
    most = 2 ** (3 if kind_of(dtype) == "fp8" else 8)
    return [float(each if abs(each) <= most else each % most) for each in found]


def _wholes(dtype: str, kind: str, n: int, chance: random.Random) -> list[int]:
    bits = INTEGERS[dtype]
    if kind in ("wide", "last"):
        return [whole_to_dtype(chance.getrandbits(bits), dtype) for _ in range(n)]
    low, high = (0, 2**bits - 1) if dtype == "uint8" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if kind in ("special", "ends"):
        ends = [low, high, low + 1, high - 1, 0, 1, 3, whole_to_dtype(-1, dtype)]
        ends += [e for e in (2**24 + 1, -(2**24) - 1, 2**31, 2**53 + 1) if low <= e <= high]
        return chance.choices(ends, k=n)
    return chance.choices(range(max(low, -MAX_WHOLE), MAX_WHOLE + 1), k=n)


def _floats(dtype: str, kind: str, n: int, chance: random.Random) -> list[float]:
    if kind == "special":
        rare = specials(dtype)
        # NaN and the infinities are few among them
        found = _ends(dtype, n, chance)
        return [each if chance.random() < 0.3 else chance.choice(rare) for each in found]
    if kind == "ends":
        few = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, largest(dtype), -largest(dtype))
        return chance.choices([rounded(each, dtype) for each in few], k=n)
    if kind == "last":
        lost = (math.nan, -math.nan)
        others = _floats(dtype, "ordinary", n, chance)
        return [lost[k % 2] if k % 3 == 0 else each for k, each in enumerate(others)]
    if kind == "integers":
        most = MAX_WHOLE if largest(dtype) >= MAX_WHOLE else 4
        return [float(each) for each in chance.choices(range(-most, most + 1), k=n)]
    if kind == "whole":
        rare = (math.nan, math.inf, -math.inf)
        others = _floats(dtype, "integers", n, chance)
        return [chance.choice(rare) if chance.random() < 0.05 else each for each in others]
    if kind == "wide" and dtype in SMALL:
        return chance.choices(pattern_values(dtype), k=n)
    exponents: Any = range(-4, 5)
    if kind == "denormal":
        lowest = math.frexp(smallest_normal(dtype))[1]
        exponents = range(lowest - 4, lowest + 2)
    elif kind == "wide":
        # all exponents, down to those of denormals
        exponents = range(math.frexp(smallest(dtype))[1], math.frexp(largest(dtype))[1] + 1)
    sizes = [chance.uniform(0.5, 1) if kind == "wide" else chance.random() for _ in range(n)]
    signs = chance.choices((-1, 1), k=n)
    powers = chance.choices(exponents, k=n)
    return [
        rounded(math.ldexp(sign * size, power), dtype)
        for sign, size, power in zip(signs, sizes, powers, strict=True)
    ]


def _ends(dtype: str, n: int, chance: random.Random) -> list[float]:
    """Infinities, minus zero, a denormal and the largest numbers, and NaN twice as often."""
    ends = (math.nan, math.nan, math.inf, -math.inf, -0.0, -3 * smallest(dtype), largest(dtype))
    return chance.choices([rounded(each, dtype) for each in (*ends, -largest(dtype))], k=n)


@lru_cache
def specials(dtype: str) -> tuple[float, ...]:
    """NaN, infinities, zeros, denormals, the ends, and what is near the limits of casts."""
    found = {
        str(rounded(each, dtype)): rounded(each, dtype)
        for each in (
            *(math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0),
            *(smallest(dtype), -smallest(dtype), 3 * smallest(dtype), smallest_normal(dtype)),
            *(largest(dtype), -largest(dtype), largest(dtype) / 2, smallest_normal(dtype) / 2),
            *(
                88.0,
                89.0,
                -88.0,
                2.0**24 + 1,
                2.0**24 + 2,
                2.0**24 + 3,
                2.0**31,
                2.0**-126,
                2.0**-140,
                2.0**-25,
            ),
            *(448.0, 464.0, 466.0, 240.0, 57344.0, 61440.0, 65504.0, 65520.0, 65519.0, 2.0**-24),
            # the largest float32, and the first number that is infinite there
            *(2.0**128 - 2.0**104, 2.0**128 - 2.0**103, -(2.0**128)),
            *(
                1 + 2.0**-8,
                1 + 2.0**-11,
                1 + 3 * 2.0**-11,
                1 + 3 * 2.0**-8,
                1 + 2.0**-4,
                1 + 2.0**-3,
                255.0,
                127.0,
            ),
        )
    }
    return tuple(found.values())


def on_host(dtype: str, kind: str, n: int, seed: int) -> torch.Tensor:
    """:func:`numbers` as a tensor of shape (n,) on the CPU; nobody writes into it."""
    return _stored_on_host(dtype, kind, _length(kind, n), seed)[:n]


@lru_cache(maxsize=8192)
def _stored_on_host(dtype: str, kind: str, n: int, seed: int) -> torch.Tensor:
    return host_tensor(_stored(dtype, kind, n, seed), dtype)


def host_tensor(values: tuple[Any, ...] | list[Any], dtype: str) -> torch.Tensor:
    """A tensor of one dimension on the CPU of numbers of that dtype, without rounding."""
    import torch

    kind = getattr(torch, dtype)
    if kind_of(dtype) == "fp8":
        codes = fp8_codes(dtype)
        return torch.tensor([codes[str(each)] for each in values], dtype=torch.uint8).view(kind)
    return torch.tensor(values, dtype=kind)


@lru_cache(maxsize=1024)
def strides_of(shape: Shape, layout: str) -> tuple[tuple[int, ...], int, int]:
    """(strides, offset, elements of storage) of a layout."""
    sizes = list(shape)
    steps = [1] * len(shape)
    order = range(len(shape)) if layout == "transposed" else range(len(shape) - 1, -1, -1)
    step = 2 if layout == "every second" else 1
    for each in order:
        steps[each] = step
        step *= max(1, sizes[each]) + (3 if layout == "rows apart" and step == 1 else 0)
    if steps and layout in ("expanded", "overlapping"):
        steps[0] = 0 if layout == "expanded" else 1
    offset = {"offset": 3, "rows apart": 1}.get(layout, 0)
    last = sum((max(1, size) - 1) * step for size, step in zip(sizes, steps, strict=True))
    return tuple(steps), offset, offset + last + 3


@lru_cache(maxsize=1024)
def positions(shape: Shape, strides: tuple[int, ...], offset: int) -> tuple[int, ...]:
    """Where in the storage each element lies, row by row."""
    found = [offset]
    for size, step in zip(shape, strides, strict=True):
        found = [start + step * each for start in found for each in range(size)]
    return tuple(found)


@dataclass(slots=True)
class Placed:
    """A tensor on the device, its elements row by row, and the storage around them."""

    tensor: torch.Tensor
    values: list[Any]
    whole: torch.Tensor
    before: torch.Tensor
    where: tuple[int, ...]
    storage: tuple[Any, ...]

    def changed(self, written: bool = False) -> str:
        """What has changed of it, as a clause; ``written`` leaves out the elements themselves."""
        now, then = self.whole.cpu(), self.before
        if same_bits(now, then):
            return ""
        found, old = listed(now), listed(then)
        mine = set(self.where)
        for index, (new, former) in enumerate(zip(found, old, strict=True)):
            if str(new) == str(former) or (written and index in mine):
                continue
            which = (
                f"element {self.where.index(index)}" if index in mine else "a number between them"
            )
            return f"{which} became {new} and was {former}"
        return ""


def place(gpu: Backend, dtype: str, shape: Shape, layout: str, kind: str, seed: int) -> Placed:
    """A tensor of numbers of that class."""
    strides, offset, length = strides_of(shape, layout)
    host = on_host(dtype, kind, length, seed)
    storage = numbers(dtype, kind, length, seed)
    whole = host.clone().to(gpu.device)
    where = positions(shape, strides, offset)
    tensor = whole.as_strided(shape, strides, offset)
    return Placed(tensor, [storage[each] for each in where], whole, host, where, storage)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one dtype on the CPU have the same bits."""
    import torch

    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    bits = getattr(torch, _BITS[one.element_size()])
    return bool(torch.equal(one.view(bits), other.view(bits)))


def listed(tensor: torch.Tensor) -> list[Any]:
    """The elements row by row, as Python's numbers."""
    import torch

    flat = tensor.detach().cpu().reshape(-1)
    dtype = dtype_of(tensor)
    if kind_of(dtype) == "fp8":
        known = fp8_values(dtype)
        return [known[code] for code in flat.contiguous().view(torch.uint8).tolist()]
    found: list[Any] = flat.tolist()
    return found


def dtype_of(tensor: torch.Tensor) -> str:
    """The name of its dtype."""
    return str(tensor.dtype).removeprefix("torch.")


def size_of(shape: Sequence[int]) -> int:
    """The number of elements."""
    found = 1
    for each in shape:
        found *= each
    return found


@lru_cache(maxsize=1024)
def broadcast_index(shape: Shape, to: Shape) -> tuple[int, ...]:
    """For each element of ``to``, which one of ``shape`` it is, both row by row."""
    small = (1,) * (len(to) - len(shape)) + shape
    steps, step = [0] * len(small), 1
    for each in range(len(small) - 1, -1, -1):
        steps[each] = 0 if small[each] == 1 else step
        step *= small[each]
    return positions(to, tuple(steps), 0)


@lru_cache(maxsize=1024)
def rows(shape: Shape, dims: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The elements of each row over ``dims``, one row for each element of the other dimensions."""
    steps = strides_of(shape, "plain")[0]
    others = [each for each in range(len(shape)) if each not in dims]
    starts = positions(tuple(shape[d] for d in others), tuple(steps[d] for d in others), 0)
    sizes, strides = tuple(shape[d] for d in dims), tuple(steps[d] for d in dims)
    return tuple(positions(sizes, strides, start) for start in starts)


@dataclass(frozen=True, slots=True)
class Within:
    """A number that is right within a bound; for a complex one the bound is of each part."""

    value: Any
    bound: float


def is_right(got: Any, right: Right, signs: bool = True) -> bool:
    """Whether ``got`` is right; without ``signs`` -0.0 is 0.0."""
    if right is None:
        return True
    if isinstance(right, Within):
        return _is_near(got, right.value, right.bound)
    if isinstance(right, tuple):
        return any(is_right(got, each, signs) for each in right)
    if isinstance(right, complex):
        return is_right(got.real, right.real, signs) and is_right(got.imag, right.imag, signs)
    if got == right:
        return (
            bool(right)
            or not signs
            or not isinstance(right, float)
            or math.copysign(1, got) == math.copysign(1, right)
        )
    return bool(got != got and right != right)


def _is_near(got: Any, value: Any, bound: float) -> bool:
    if isinstance(value, complex):
        return _is_near(got.real, value.real, bound) and _is_near(got.imag, value.imag, bound)
    if value != value:
        return bool(got != got)
    return bool(got == value or abs(got - value) <= bound)


def wrong_result(
    got: torch.Tensor, wanted: Sequence[Right], shape: Shape, dtype: str, *, signs: bool = True
) -> str:
    """A clause on the first difference of a result: dtype, shape or an element."""
    if dtype_of(got) != dtype:
        return f"gave {dtype_of(got)}, not {dtype}"
    if tuple(got.shape) != tuple(shape):
        return f"gave the shape {tuple(got.shape)}, not {tuple(shape)}"
    return wrong_elements(listed(got), wanted, dtype, signs=signs)


def wrong_elements(
    found: Sequence[Any], wanted: Sequence[Right], dtype: str, *, signs: bool = True
) -> str:
    """A clause on the first element that is not right; empty if all are."""
    if len(found) != len(wanted):
        return f"gave {len(found)} elements, not {len(wanted)}"
    for index, (value, right) in enumerate(zip(found, wanted, strict=True)):
        if value == right and value and not isinstance(right, complex):
            continue
        if not is_right(value, right, signs):
            last = ", the last" if index == len(wanted) - 1 and index else ""
            kind = nature(value, right, dtype)
            return f"gave {value} at element {index}{last}, not {shown(right)}{kind}"
    return ""


def shown(right: Right) -> str:
    """What is right, for people."""
    if isinstance(right, Within):
        return f"{right.value} within {right.bound:.2g}"
    if isinstance(right, tuple):
        return " or ".join(map(str, right))
    return str(right)


def nature(got: Any, right: Right, dtype: str) -> str:
    """What the difference is, where one value shows it; begins with ": "."""
    value = right.value if isinstance(right, Within) else right
    if isinstance(value, tuple) or isinstance(got, bool) or isinstance(value, bool):
        return ""
    if isinstance(value, complex):
        return _complex_nature(got, value)
    if not isinstance(value, float) or not isinstance(got, float):
        return ": it is the negative" if got == -value and value else ""
    return _float_nature(got, value, dtype)


def _complex_nature(got: complex, value: complex) -> str:
    if got == value.conjugate():
        return ": the imaginary part has the other sign"
    if got.real == value.real and got.imag == 0:
        return ": the imaginary part was lost"
    return ": it is the negative" if got == -value else ""


def _float_nature(got: float, value: float, dtype: str) -> str:
    if value != value:
        return ": the NaN was lost"
    if got != got:
        return ": a NaN came from numbers"
    if value == 0 == got:
        return ": the sign of zero was lost"
    if got == 0:
        tiny = abs(value) < smallest_normal(dtype)
        return ": the denormal became 0" if tiny else ""
    if got == -value:
        return ": it is the negative"
    if math.isinf(value) and not math.isinf(got):
        return ": it was saturated"
    if math.isinf(got) and not math.isinf(value):
        return ": a number became infinite"
    if value == rounded(value, dtype) and rounded((got + value) / 2, dtype) in (got, value):
        return ": it is the next number, rounded to the wrong side"
    return ""
