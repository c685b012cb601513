"""Moving elements: gather, scatter, masks, sorts, joins. All of it is exact, in every dtype.

Matrices of shape (m, n). Where several numbers go to one place only sums of whole numbers are
judged, for whose order nothing matters; which one a plain ``scatter`` keeps is not documented, so
its places differ. ``sort`` is stable where asked; topk says nothing of which equal one it takes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.numbers.formats import kind_of
from portagpu.suites.search.numbers.pointwise import finish
from portagpu.suites.search.numbers.tensors import WRITABLE, Placed, place, wrong_result

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.contract import Backend


Rows = list[list[Any]]
SIZES: Final = ((3, 5), (1, 17), (7, 1), (9, 7), (0, 4), (4, 0), (1, 1), (2, 131), (19, 5))
KINDS: Final = ("distinct", "special", "integers", "mixed", "wide")


@dataclass(frozen=True, slots=True)
class Given:
    """The operands of one call, on the device and as rows of Python's numbers."""

    gpu: Backend
    x: torch.Tensor
    rows: Rows
    other: torch.Tensor
    others: Rows
    dtype: str
    dim: int
    seed: int
    chance: random.Random

    @property
    def m(self) -> int:
        return len(self.rows)

    @property
    def n(self) -> int:
        return int(self.x.shape[1])

    @property
    def length(self) -> int:
        """The elements along ``dim``."""
        return self.m if self.dim == 0 else self.n

    def indices(self, count: int, *, different: bool = False, negative: bool = False) -> list[int]:
        """Positions along ``dim``."""
        if different:
            return self.chance.sample(range(self.length), min(count, self.length))
        found = [self.chance.randrange(self.length) for _ in range(count if self.length else 0)]
        return [each - self.length if negative and each % 2 else each for each in found]

    def tensor(self, values: Any, dtype: str = "int64") -> torch.Tensor:
        """A tensor on the device."""
        import torch

        return torch.tensor(values, dtype=getattr(torch, dtype)).to(self.gpu.device)

    def whole(self, rows: Rows) -> torch.Tensor:
        """Indices or masks of the operand's shape."""
        dtype = "bool" if rows and rows[0] and isinstance(rows[0][0], bool) else "int64"
        return self.tensor(rows, dtype).reshape(self.m, self.n)

    def mask(self) -> Rows:
        """A mask of the operand's shape."""
        share = (0.5, 0.1, 0.9, 1.0, 0.0)[self.seed % 5]
        return [[self.chance.random() < share for _ in range(self.n)] for _ in range(self.m)]

    def every_index(self) -> Rows:
        """A position along ``dim`` for each element."""
        return [[self.chance.randrange(self.length) for _ in range(self.n)] for _ in range(self.m)]

    def permutations(self) -> Rows:
        """Positions along ``dim``, all different in each line."""
        if self.dim == 1:
            return [self.chance.sample(range(self.n), self.n) for _ in range(self.m)]
        return turned([self.chance.sample(range(self.m), self.m) for _ in range(self.n)], self.m)


def turned(rows: Rows, m: int) -> Rows:
    """The transposed rows, m of them."""
    return [list(each) for each in zip(*rows, strict=True)] if rows else [[] for _ in range(m)]


def copied(rows: Rows) -> Rows:
    return [list(each) for each in rows]


def lines_of(rows: Rows, dim: int, n: int) -> Rows:
    return copied(rows) if dim == 0 else turned(rows, n)


def from_lines(lines: Rows, dim: int, m: int) -> Rows:
    return lines if dim == 0 else turned(lines, m)


def _gather(g: Given) -> tuple[torch.Tensor, Rows]:
    index = g.every_index()
    right = [
        [g.rows[i][at] if g.dim else g.rows[at][j] for j, at in enumerate(line)]
        for i, line in enumerate(index)
    ]
    return g.x.gather(g.dim, g.whole(index)), right


def _take_along_dim(g: Given) -> tuple[torch.Tensor, Rows]:
    import torch

    index = g.every_index()
    right = [
        [g.rows[i][at] if g.dim else g.rows[at][j] for j, at in enumerate(line)]
        for i, line in enumerate(index)
    ]
    return torch.take_along_dim(g.x, g.whole(index), dim=g.dim), right


def _scattered(g: Given, index: Rows, add: bool) -> Rows:
    right = copied(g.rows)
    for i, line in enumerate(index):
        for j, at in enumerate(line):
            row, column = (i, at) if g.dim else (at, j)
            new = g.others[i][j]
            right[row][column] = finish(right[row][column] + new, g.dtype) if add else new
    return right


def _scatter(g: Given) -> tuple[torch.Tensor, Rows]:
    index = g.permutations()
    return g.x.scatter(g.dim, g.whole(index), g.other), _scattered(g, index, add=False)


def _scatter_in_place(g: Given) -> tuple[torch.Tensor, Rows]:
    index = g.permutations()
    found = g.x.clone(memory_format=_preserved())
    return found.scatter_(g.dim, g.whole(index), g.other), _scattered(g, index, add=False)


def _preserved() -> Any:
    import torch

    return torch.preserve_format


def _scatter_add(g: Given) -> tuple[torch.Tensor, Rows]:
    index = g.every_index()
    return g.x.scatter_add(g.dim, g.whole(index), g.other), _scattered(g, index, add=True)


def _index_select(g: Given) -> tuple[torch.Tensor, Rows]:
    index = g.indices(g.length + 1)
    lines = lines_of(g.rows, g.dim, g.n)
    right = from_lines([lines[each] for each in index], g.dim, g.m)
    return g.x.index_select(g.dim, g.tensor(index)), right


def _index_add(g: Given) -> tuple[torch.Tensor, Rows]:
    index = g.indices(g.length)
    alpha = 1 if g.dtype in ("bool", "uint8") else (1, 2, -1)[g.seed % 3]
    lines, new = lines_of(g.rows, g.dim, g.n), lines_of(g.others, g.dim, g.n)
    for at, line in zip(index, new, strict=True):
        lines[at] = [finish(a + alpha * b, g.dtype) for a, b in zip(lines[at], line, strict=True)]
    found = g.x.index_add(g.dim, g.tensor(index), g.other, alpha=alpha)
    return found, from_lines(lines, g.dim, g.m)


def _index_copy(g: Given) -> tuple[torch.Tensor, Rows]:
    index = g.indices(g.length, different=True)
    lines, new = lines_of(g.rows, g.dim, g.n), lines_of(g.others, g.dim, g.n)
    for at, line in zip(index, new, strict=True):
        lines[at] = line
    return g.x.index_copy(g.dim, g.tensor(index), g.other), from_lines(lines, g.dim, g.m)


def _index_fill(g: Given) -> tuple[torch.Tensor, Rows]:
    index = g.indices(2)
    one = finish(1, g.dtype)
    lines = lines_of(g.rows, g.dim, g.n)
    for at in index:
        lines[at] = [one] * len(lines[at])
    return g.x.index_fill(g.dim, g.tensor(index), one), from_lines(lines, g.dim, g.m)


def _advanced(g: Given) -> tuple[torch.Tensor, Rows]:
    index = g.indices(5, negative=True)
    lines = lines_of(g.rows, g.dim, g.n)
    right = from_lines([lines[each] for each in index], g.dim, g.m)
    at = g.tensor(index)
    return (g.x[:, at] if g.dim else g.x[at]), right


def _put(g: Given) -> tuple[torch.Tensor, Rows]:
    index = g.indices(g.length, different=True)
    found = g.x.clone(memory_format=_preserved())
    lines, new = lines_of(g.rows, g.dim, g.n), lines_of(g.others, g.dim, g.n)
    for at, line in zip(index, new, strict=True):
        lines[at] = line
    if g.dim:
        found[:, g.tensor(index)] = g.other
    else:
        found[g.tensor(index)] = g.other
    return found, from_lines(lines, g.dim, g.m)


def _masked_fill(g: Given) -> tuple[torch.Tensor, Rows]:
    mask, one = g.mask(), finish(1, g.dtype)
    right = [
        [one if hit else old for old, hit in zip(*pair, strict=True)]
        for pair in zip(g.rows, mask, strict=True)
    ]
    return g.x.masked_fill(g.whole(mask).bool(), one), right


def _masked_select(g: Given) -> tuple[torch.Tensor, Rows]:
    mask = g.mask()
    kept = [
        old
        for pair in zip(g.rows, mask, strict=True)
        for old, hit in zip(*pair, strict=True)
        if hit
    ]
    return g.x.masked_select(g.whole(mask).bool()), [kept]


def _masked_scatter(g: Given) -> tuple[torch.Tensor, Rows]:
    mask = g.mask()
    new = iter([each for line in g.others for each in line])
    right = [
        [next(new) if hit else old for old, hit in zip(*pair, strict=True)]
        for pair in zip(g.rows, mask, strict=True)
    ]
    return g.x.masked_scatter(g.whole(mask).bool(), g.other), right


def _where(g: Given) -> tuple[torch.Tensor, Rows]:
    import torch

    mask = g.mask()
    right = [
        [old if hit else new for old, new, hit in zip(*three, strict=True)]
        for three in zip(g.rows, g.others, mask, strict=True)
    ]
    return torch.where(g.whole(mask).bool(), g.x, g.other), right


def _order(a: Any, b: Any) -> int:
    """NaN is above all numbers, as torch documents for sort."""
    lost = (bool(a != a), bool(b != b))
    return lost[0] - lost[1] if any(lost) else bool(a > b) - bool(a < b)


def _sorted_line(line: list[Any], descending: bool) -> list[int]:
    def order(i: int, j: int) -> int:
        return _order(line[i], line[j]) * (-1 if descending else 1)

    return sorted(range(len(line)), key=cmp_to_key(order))


def _sort(g: Given) -> tuple[torch.Tensor, Rows]:
    down = g.seed % 2 == 1
    lines = lines_of(g.rows, 1 - g.dim, g.n)
    orders = [_sorted_line(line, down) for line in lines]
    values = [[line[at] for at in order] for line, order in zip(lines, orders, strict=True)]
    found = g.x.sort(dim=g.dim, descending=down, stable=True)
    wrong = wrong_result(
        found.indices,
        [each for line in from_lines(orders, 1 - g.dim, g.m) for each in line],
        (g.m, g.n),
        "int64",
    )
    if wrong:
        raise WrongIndexError(wrong)
    return found.values, from_lines(values, 1 - g.dim, g.m)


class WrongIndexError(ValueError):
    """The indices of sorted values are wrong; the message is a clause."""


def _topk(g: Given) -> tuple[torch.Tensor, Rows]:
    down = g.seed % 2 == 0
    count = (g.length + 1) // 2
    lines = lines_of(g.rows, 1 - g.dim, g.n)
    values = [[line[at] for at in _sorted_line(line, down)[:count]] for line in lines]
    found = g.x.topk(count, dim=g.dim, largest=down, sorted=True)
    again = g.x.gather(g.dim, found.indices)
    right = from_lines(values, 1 - g.dim, count)
    flat = [each for line in right for each in line]
    wrong = wrong_result(again, flat, tuple(again.shape), g.dtype, signs=False)
    if wrong:
        raise WrongIndexError(f"what they point at {wrong}")
    return found.values, right


def _flip(g: Given) -> tuple[torch.Tensor, Rows]:
    right = g.rows[::-1] if g.dim == 0 else [line[::-1] for line in g.rows]
    return g.x.flip(g.dim), right


def _roll(g: Given) -> tuple[torch.Tensor, Rows]:
    by = (1, -1, 2, 7)[g.seed % 4]
    lines = lines_of(g.rows, g.dim, g.n)
    count = max(1, len(lines))
    right = [lines[(at - by) % count] for at in range(len(lines))]
    return g.x.roll(by, g.dim), from_lines(right, g.dim, g.m)


def _cat(g: Given) -> tuple[torch.Tensor, Rows]:
    import torch

    found = torch.cat([g.x, g.other, g.x], dim=g.dim)
    if g.dim == 0:
        return found, [*g.rows, *g.others, *g.rows]
    return found, [[*a, *b, *a] for a, b in zip(g.rows, g.others, strict=True)]


def _stack(g: Given) -> tuple[torch.Tensor, Rows]:
    import torch

    found = torch.stack([g.x, g.other], dim=g.dim).reshape(2 * g.m, g.n)
    if g.dim == 0:
        return found, [*g.rows, *g.others]
    return found, [line for pair in zip(g.rows, g.others, strict=True) for line in pair]


def _triangle(g: Given) -> tuple[torch.Tensor, Rows]:
    zero, by = finish(0, g.dtype), (0, 1, -1, 3)[g.seed % 4]
    upper = bool(g.dim)
    right = [
        [old if (j - i >= by if upper else j - i <= by) else zero for j, old in enumerate(line)]
        for i, line in enumerate(g.rows)
    ]
    return (g.x.triu(by) if upper else g.x.tril(by)), right


def _repeat_interleave(g: Given) -> tuple[torch.Tensor, Rows]:
    lines = lines_of(g.rows, g.dim, g.n)
    right = [line for line in lines for _ in range(2)]
    return g.x.repeat_interleave(2, dim=g.dim), from_lines(right, g.dim, g.m)


def _nonzero(g: Given) -> tuple[torch.Tensor, Rows]:
    right = [[i, j] for i, line in enumerate(g.rows) for j, each in enumerate(line) if each]
    return g.x.nonzero(), right


def _contiguous(g: Given) -> tuple[torch.Tensor, Rows]:
    return g.x.t().contiguous(), turned(g.rows, g.n)


def _step(g: Given) -> tuple[torch.Tensor, Rows]:
    return g.x[1::2, ::3].clone(), [line[::3] for line in g.rows[1::2]]


def _pad(g: Given) -> tuple[torch.Tensor, Rows]:
    import torch

    zero = finish(0, g.dtype)
    found = torch.nn.functional.pad(g.x, (1, 2))
    return found, [[zero, *line, zero, zero] for line in g.rows]


def _fill_copy(g: Given) -> tuple[torch.Tensor, Rows]:
    found = g.x.clone(memory_format=_preserved())
    found[: g.m // 2].copy_(g.other[: g.m // 2])
    return found, [*copied(g.others)[: g.m // 2], *copied(g.rows)[g.m // 2 :]]


@dataclass(frozen=True, slots=True)
class Move:
    """One operation: ``run(given)`` gives its result and the right rows of it."""

    run: Callable[[Given], tuple[torch.Tensor, Rows]]
    sums: bool = False
    """It adds: only whole numbers are judged."""
    ordered: bool = False
    """It compares: complex numbers have no order."""
    result: str = ""
    needs: bool = False
    """It takes positions, of which an empty dimension has none."""


OPS: Final[dict[str, Move]] = {
    "gather": Move(_gather, needs=True),
    "take_along_dim": Move(_take_along_dim, needs=True),
    "scatter": Move(_scatter),
    "scatter_": Move(_scatter_in_place),
    "scatter_add": Move(_scatter_add, sums=True, needs=True),
    "index_select": Move(_index_select),
    "index_add": Move(_index_add, sums=True),
    "index_copy": Move(_index_copy),
    "index_fill": Move(_index_fill),
    "x[index]": Move(_advanced),
    "x[index] =": Move(_put),
    "masked_fill": Move(_masked_fill),
    "masked_select": Move(_masked_select),
    "masked_scatter": Move(_masked_scatter),
    "where": Move(_where),
    "sort": Move(_sort, ordered=True),
    "topk": Move(_topk, ordered=True, needs=True),
    "flip": Move(_flip),
    "roll": Move(_roll),
    "cat": Move(_cat),
    "stack": Move(_stack),
    "tril or triu": Move(_triangle),
    "repeat_interleave": Move(_repeat_interleave),
    "nonzero": Move(_nonzero, result="int64"),
    "contiguous": Move(_contiguous),
    "x[1::2, ::3]": Move(_step),
    "pad": Move(_pad),
    "copy_ into rows": Move(_fill_copy),
}


def indexing_difference(
    gpu: Backend,
    op: str,
    dtype: str,
    kind: str,
    shape: list[int],
    dim: int,
    layout: str,
    seed: int,
) -> str:
    """The first difference of one operation that moves elements, as a clause."""
    found = OPS[op]
    m, n = shape
    unordered = kind_of(dtype) == "complex" or (op, dtype) == ("topk", "bool")
    if (found.ordered and unordered) or (found.needs and 0 in shape):
        return ""
    if found.sums:
        kinds = {"int": {"wide": "wide"}, "float": {"special": "whole", "mixed": "whole"}}
        kind = kinds.get(kind_of(dtype), {}).get(kind, "integers")
        if dtype == "bool":
            return ""
    x: Placed = place(gpu, dtype, (m, n), layout, kind, seed)
    other = place(gpu, dtype, (m, n), WRITABLE[seed % len(WRITABLE)], kind, seed + 1)
    rows = [x.values[i * n : (i + 1) * n] for i in range(m)]
    others = [other.values[i * n : (i + 1) * n] for i in range(m)]
    chance = random.Random(seed)  # noqa: S311 - test data, no secret
    given = Given(gpu, x.tensor, rows, other.tensor, others, dtype, dim, seed, chance)
    what = f"{op} of {dtype} (dim {dim}, {(m, n)}, {layout}, {kind})"
    try:
        got, right = found.run(given)
    except WrongIndexError as error:
        return f"the indices of {what}: {error}"
    shape_out = tuple(got.shape)
    size = (len(right), len(right[0]) if right else 0)
    if len(shape_out) == 2 and 0 not in size and shape_out != size:
        return f"{what} gave the shape {shape_out}, not {size}"
    flat = [each for line in right for each in line]
    wrong = wrong_result(
        got, flat, shape_out, found.result or dtype, signs=not (found.sums or found.ordered)
    )
    if wrong:
        return f"{what} {wrong}"
    for number, each in enumerate((x, other), 1):
        if changed := each.changed():
            return f"{what} wrote operand {number}: {changed}"
    return ""
