"""The model: what is in every buffer of every rank, before a call and after it.

It knows lists of numbers and positions in a group, and neither tensors nor torch. A position is a
rank's number within the group. ``x[p][k]`` below is the k-th part of the input of position p.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.collectives.values import (
    INTEGER_BITS,
    SIGNIFICAND,
    integer_range,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.suites.search.collectives.values import Pattern

STALE: Final = 77
"""What is in an output before the call, or True of booleans."""
BITWISE: Final[dict[str, Callable[[int, int], int]]] = {
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
}
OPS: Final = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", *BITWISE)


@dataclass(frozen=True, slots=True)
class Part:
    """``count`` elements that repeat a pattern; ``bounds``, how far each may be off, if rounded.

    Without a pattern they may be anything.
    """

    pattern: Pattern | None
    count: int
    bounds: list[float] | None = None

    def at(self, place: int) -> Any:
        """The element at that place; None where it may be anything."""
        return self.pattern[place % len(self.pattern)] if self.pattern else None


@dataclass(frozen=True, slots=True)
class Content:
    """One buffer: its parts one after the other, before the call and after it."""

    what: str
    before: tuple[Part, ...]
    after: tuple[Part, ...]
    clues: Callable[[], dict[str, Pattern]] = dict
    """Wrong patterns that have a name, for the sentence: "the sum without rank 2"."""


@dataclass(frozen=True, slots=True)
class Sum:
    """Which reduction of which format; ``ranks`` names the positions in clues."""

    op: str
    dtype: str
    ranks: Sequence[int]
    way: str = ""
    """"" for the library's own; "wider" and "nan" for the helpers of these names."""


def reduced(kind: Sum, rows: Sequence[Pattern]) -> tuple[Pattern, list[float] | None]:
    """The reduction of the ranks' patterns, and how far each may be off; None where it is exact."""
    columns = list(zip(*rows, strict=True))
    found = [_fold(kind, column) for column in columns]
    rounds = _roundings(kind, len(rows), columns)
    return found, None if not rounds else [_bound(kind, rounds, each) for each in columns]


def _fold(kind: Sum, column: Sequence[Any]) -> Any:
    """The reduction of one number of each rank."""
    op, n = kind.op, len(column)
    if kind.dtype == "bool":
        return int((max if op in ("MAX", "BOR", "SUM") else min)(column))
    if op in BITWISE:
        return reduce(BITWISE[op], column)
    if op in ("MIN", "MAX"):
        if any(number != number for number in column):
            return math.nan
        # -0.0 is below 0.0
        return (min if op == "MIN" else max)(column, key=lambda x: (x, math.copysign(1, x)))
    if kind.dtype in INTEGER_BITS:
        whole = math.prod(column) if op == "PRODUCT" else sum(column)
        return wrapped(whole // n if op == "AVG" else whole, kind.dtype)
    if kind.dtype == "complex64":
        return sum(column[1:], column[0])
    if op == "PRODUCT":
        return reduce(operator.mul, column)
    # no 0 to begin with: it would take the sign of -0.0. fsum rounds once
    plain = not all(map(math.isfinite, column)) or not any(column)
    try:
        total = reduce(operator.add, column) if plain else math.fsum(column)
    except OverflowError:
        total = reduce(operator.add, column)
    return total / n if op == "AVG" else total


def _roundings(kind: Sum, n: int, columns: Sequence[Sequence[Any]]) -> int:
    """How often the library may round, at most, where the result need not be exact; else 0.

    n - 1 additions, and for an average a division, or a multiplication with 1 / n that was rounded.
    """
    if kind.dtype not in SIGNIFICAND or kind.op not in ("SUM", "AVG") or n == 1:
        return 0
    if kind.op == "AVG" and n & (n - 1):
        return n + 1
    whole = 2 ** SIGNIFICAND[kind.dtype]
    exact = all(_is_exact(column, whole) for column in columns)
    return 0 if exact else n + (kind.op == "AVG")


def _is_exact(column: Sequence[float], whole: int) -> bool:
    """Whether no order rounds: multiples of one power of two, of which the sum has not too many."""
    if not all(map(math.isfinite, column)):
        return True
    ratios = [each.as_integer_ratio() for each in column if each]
    unit = max((below for _, below in ratios), default=1)
    magnitude = sum(abs(above) * (unit // below) for above, below in ratios)
    step = reduce(math.gcd, [above * (unit // below) for above, below in ratios], 0) or 1
    return magnitude <= whole * (step & -step)


def _bound(kind: Sum, rounds: int, column: Sequence[Any]) -> float:
    """``k u / (1 - k u) sum|x|`` for k roundings of unit u, over n for an average.

    Higham, Accuracy and Stability of Numerical Algorithms, 4.2. The model itself rounds to 53 bits.
    In the helper's wider format the unit is smaller, and one rounding to the own format is added.
    """
    if not all(map(math.isfinite, column)):
        return 0.0
    share = 1 / len(column) if kind.op == "AVG" else 1.0
    magnitude = share * math.fsum(map(abs, column))
    own = 2.0 ** -SIGNIFICAND[kind.dtype]
    unit = own
    if kind.way == "wider":
        unit = 2.0**-24 if kind.dtype != "float32" else 2.0**-53
    most = rounds * unit / (1 - rounds * unit) * magnitude + 2.0**-52 * magnitude
    if kind.way == "wider":
        most += own * (share * abs(math.fsum(column)) + most)
    return most


def _reduction_clues(kind: Sum, rows: Sequence[Pattern], own: int) -> dict[str, Pattern]:
    """Patterns that a wrong reduction gives."""
    ranks = kind.ranks
    clues = {"this rank's own input: nothing was reduced": rows[own]}
    clues |= {f"the input of rank {ranks[p]} alone": row for p, row in enumerate(rows)}
    if len(rows) > 1:
        for p, rank in enumerate(ranks):
            rest = [row for q, row in enumerate(rows) if q != p]
            clues[f"the {kind.op} without rank {rank}"] = reduced(kind, rest)[0]
            clues[f"the {kind.op} with rank {rank} twice"] = reduced(kind, [*rows, rows[p]])[0]
    for op in OPS:
        integers = kind.dtype in INTEGER_BITS
        ordered = op not in ("MIN", "MAX") or kind.dtype != "complex64"
        if op != kind.op and (integers or op not in BITWISE) and ordered and kind.dtype != "bool":
            other = Sum(op, kind.dtype, ranks)
            clues[f"the {op}"] = reduced(other, rows)[0]
    if kind.dtype in INTEGER_BITS and kind.op in ("SUM", "PRODUCT"):
        low, high = integer_range(kind.dtype)
        fold = math.prod if kind.op == "PRODUCT" else sum
        exact = [fold(column) for column in zip(*rows, strict=True)]
        clues["held at the end of the format instead of wrapping around"] = [
            min(max(each, low), high) for each in exact
        ]
    return clues


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the positions of a group have, and how many elements go from each to each.

    ``x[p][k]`` has ``counts[p][k]`` elements. ``root`` is a position.
    """

    x: Sequence[Sequence[Pattern]]
    counts: Sequence[Sequence[int]]
    ranks: Sequence[int]
    root: int = 0
    kind: Sum | None = None
    in_place: bool = False

    @property
    def n(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)

    def part(self, p: int, k: int) -> Part:
        """The k-th part of position p."""
        return Part(self.x[p][k], self.counts[p][k])

    def total(self, k: int) -> Part:
        """The reduction of the k-th parts."""
        if self.kind is None:
            raise TypeError("what is moved has no reduction")
        found, bounds = reduced(self.kind, [row[k] for row in self.x])
        return Part(found, self.counts[0][k], bounds)

    def clues(self, p: int, k: int) -> dict[str, Pattern]:
        """What a wrong k-th part at position p may be."""
        if self.kind is not None:
            found = _reduction_clues(self.kind, [row[k] for row in self.x], p)
            others = range(len(self.x[0]))
            return found | {
                f"what belongs to rank {self.ranks[j]}": self.total(j).pattern or []
                for j in others
                if j != k and len(self.x[0]) == self.n
            }
        return {
            f"{'the input' if len(row) == 1 else f'part {j}'} of rank {self.ranks[q]}": pattern
            for q, row in enumerate(self.x)
            for j, pattern in enumerate(row)
        }


def _stale(count: int) -> Part:
    return Part([STALE], count)


def _kept(what: str, *parts: Part) -> Content:
    """A buffer that the call only reads."""
    return Content(what, parts, parts)


def _written(what: str, after: Part, clues: Callable[[], dict[str, Pattern]]) -> Content:
    return Content(what, (_stale(after.count),), (after,), clues)


def all_reduce(e: Exchange, p: int) -> list[Content]:
    """Everyone gets the reduction, in place."""
    return [Content("the result", (e.part(p, 0),), (e.total(0),), lambda: e.clues(p, 0))]


def reduce_to(e: Exchange, p: int) -> list[Content]:
    """The root gets the reduction; what the others' buffers hold is not specified by torch."""
    after = e.total(0) if p == e.root else Part(None, e.counts[p][0])
    return [Content("the result", (e.part(p, 0),), (after,), lambda: e.clues(p, 0))]


def broadcast(e: Exchange, p: int) -> list[Content]:
    """Everyone gets the root's."""
    return [Content("the result", (e.part(p, 0),), (e.part(e.root, 0),), lambda: e.clues(p, 0))]


def all_gather(e: Exchange, p: int) -> list[Content]:
    """Everyone gets everyone's, each in a tensor of its own."""
    every = [_written(f"output {q}", e.part(q, 0), lambda: e.clues(p, 0)) for q in range(e.n)]
    return [_kept("the input", e.part(p, 0)), *every]


def all_gather_single(e: Exchange, p: int) -> list[Content]:
    """Everyone gets everyone's in one tensor, of which the input may be its own part."""
    after = tuple(e.part(q, 0) for q in range(e.n))
    if e.in_place:
        before = tuple(
            e.part(p, 0) if q == p else _stale(part.count) for q, part in enumerate(after)
        )
        return [Content("the output", before, after, lambda: e.clues(p, 0))]
    before = tuple(_stale(part.count) for part in after)
    return [
        _kept("the input", e.part(p, 0)),
        Content("the output", before, after, lambda: e.clues(p, 0)),
    ]


def gather(e: Exchange, p: int) -> list[Content]:
    """The root gets everyone's, of which its own may be its input."""
    if p != e.root:
        return [_kept("the input", e.part(p, 0))]
    given, *every = all_gather(e, p)
    if e.in_place:
        every[p] = _kept(every[p].what, e.part(p, 0))
        return every
    return [given, *every]


def scatter(e: Exchange, p: int) -> list[Content]:
    """Position p gets the p-th part of the root."""
    output = _written("the output", e.part(e.root, p), lambda: e.clues(p, p))
    parts = range(e.n) if p == e.root else ()
    return [output, *(_kept(f"input {k}", e.part(p, k)) for k in parts)]


def reduce_scatter(e: Exchange, p: int) -> list[Content]:
    """Position p gets the reduction of all p-th parts, which are tensors of their own."""
    inputs = [_kept(f"input {k}", e.part(p, k)) for k in range(e.n)]
    return [_written("the output", e.total(p), lambda: e.clues(p, p)), *inputs]


def reduce_scatter_single(e: Exchange, p: int) -> list[Content]:
    """Position p gets the reduction of all p-th parts of one tensor, in place perhaps.

    In place, the other parts of the input are not specified by torch.
    """
    parts = tuple(e.part(p, k) for k in range(e.n))
    if e.in_place:
        after = tuple(
            e.total(p) if k == p else Part(None, part.count) for k, part in enumerate(parts)
        )
        return [Content("the output", parts, after, lambda: e.clues(p, p))]
    return [_written("the output", e.total(p), lambda: e.clues(p, p)), _kept("the input", *parts)]


def all_to_all(e: Exchange, p: int) -> list[Content]:
    """Position p gets the p-th part of everyone, each in a tensor of its own."""
    inputs = [_kept(f"input {k}", e.part(p, k)) for k in range(e.n)]
    return [
        *inputs,
        *(_written(f"output {q}", e.part(q, p), lambda: e.clues(p, p)) for q in range(e.n)),
    ]


def all_to_all_single(e: Exchange, p: int) -> list[Content]:
    """Position p gets the p-th part of everyone, in one tensor."""
    after = tuple(e.part(q, p) for q in range(e.n))
    before = tuple(_stale(part.count) for part in after)
    inputs = _kept("the input", *(e.part(p, k) for k in range(e.n)))
    return [inputs, Content("the output", before, after, lambda: e.clues(p, p))]


def message(e: Exchange, p: int) -> list[Content]:
    """The root sends to the next position, which is ``x[root]`` of an exchange of two."""
    if p == e.root:
        return [_kept("the message", e.part(p, 0))]
    return [_written("the message", e.part(e.root, 0), dict)]


def ring(e: Exchange, p: int) -> list[Content]:
    """Everyone sends to the position ``root`` further on."""
    source = (p - e.root) % e.n
    return [
        _kept("the input", e.part(p, 0)),
        _written("the output", e.part(source, 0), lambda: e.clues(p, 0)),
    ]
