"""Gradients of operations on matrices, as ``backward`` adds them up and ``grad`` returns them.

``pull(x, y, g)`` of an operation gives the right gradients of both operands for the gradient g of
its result, as rows. Operands are whole numbers, so that most gradients are exact. Where an
operation has no derivative the right one is what torch documents (amax shares it among the equal
ones) or has in tools/autograd/derivatives.yaml (pytorch v2.13.0: clamp passes it at its ends, abs
and relu have 0 at 0); where two operands of maximum are equal nothing is claimed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.numbers.formats import rounded, roundoff, smallest
from portagpu.suites.search.numbers.products import finished_product
from portagpu.suites.search.numbers.reductions import softmax_of, sum_of
from portagpu.suites.search.numbers.tensors import WRITABLE, Right, Within, place, wrong_result

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.contract import Backend


Rows = list[list[Any]]
Pulled = tuple[Rows, Rows | None]
INDEX: Final = (0, -1, 0, 1)
"""The rows that index_select takes, from a matrix of two rows or more; of fewer the first."""
SIZES: Final = ((3, 5), (1, 7), (5, 1), (9, 7), (1, 1), (0, 4), (33, 8))
FORMS: Final = ("backward", "accumulate", "grad", "retain", "detached")
OPS: Final = (
    *("add", "sub", "mul", "where", "maximum", "square", "neg", "abs", "relu", "clamp", "exp"),
    *("tanh", "sigmoid", "masked_fill", "sum", "mean", "amax", "max", "prod", "cumsum", "softmax"),
    *("gather", "index_select", "transpose", "flip", "cat", "slice", "expand", "add a row"),
    *("multiply by a row", "matmul", "linear", "cast", "chain"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """An operation: how it is made of two leaves, and what it hands back."""

    make: Callable[[torch.Tensor, torch.Tensor, Any], torch.Tensor]
    pull: Callable[[Rows, Rows, Rows, str], Pulled]
    other: str = "same"
    """The shape of the second operand: "same", "row", "square" (n by 3) or "none"."""
    wide: bool = False
    """For float32 and float64 alone: its steps in between are not exact in half precision."""
    ordinary: bool = False
    """The first operand may be any numbers."""
    empty: bool = True


def _each(function: Callable[..., tuple[Any, Any]]) -> Callable[..., Pulled]:
    """The gradients element by element, of ``function(x, y, g)``."""

    def pull(x: Rows, y: Rows, g: Rows, dtype: str) -> Pulled:
        pairs = [
            [_settled(function(*each), dtype) for each in zip(*lines, strict=True)]
            for lines in zip(x, y, g, strict=True)
        ]
        return [[p[0] for p in line] for line in pairs], [[p[1] for p in line] for line in pairs]

    return pull


def _settled(pair: tuple[Any, Any], dtype: str) -> tuple[Any, Any]:
    return tuple(  # type: ignore[return-value]
        rounded(each, dtype) if isinstance(each, float) else each for each in pair
    )


def _one(function: Callable[[Any, Any], Any]) -> Callable[..., Pulled]:
    """The gradient of one operand, element by element, of ``function(x, g)``."""

    def pull(x: Rows, _y: Rows, g: Rows, dtype: str) -> Pulled:
        return [
            [_settled((function(a, b), None), dtype)[0] for a, b in zip(*lines, strict=True)]
            for lines in zip(x, g, strict=True)
        ], None

    return pull


def _library(slope: Callable[[float], float]) -> Callable[..., Pulled]:
    """g times a slope made of a function of a library: 20 ULPs of float32, and of the format 6."""

    def pull(x: Rows, _y: Rows, g: Rows, dtype: str) -> Pulled:
        u = 40 * roundoff("float64" if dtype == "float64" else "float32") + 6 * roundoff(dtype)

        def near(a: float, b: float) -> Within:
            # 1 - y^2 and y (1 - y): the error of y counts fully where they vanish
            return Within(slope(a) * b, u * (abs(slope(a)) + 1) * abs(b) + 4 * smallest(dtype))

        return [
            [near(a, b) for a, b in zip(*lines, strict=True)] for lines in zip(x, g, strict=True)
        ], None

    return pull


def _turned(rows: Rows) -> Rows:
    return [list(each) for each in zip(*rows, strict=True)]


def _summed(rows: Rows, dtype: str) -> Rows:
    """The gradient of a row that was broadcast."""
    return [[sum_of(column, dtype) for column in _turned(rows)]] if rows else []


def _row_plus(x: Rows, y: Rows, g: Rows, dtype: str) -> Pulled:
    zero = [[0.0] * len(y[0])]
    return g, _summed(g, dtype) or zero


def _row_times(x: Rows, y: Rows, g: Rows, dtype: str) -> Pulled:
    first = [[rounded(b * c, dtype) for b, c in zip(y[0], line, strict=True)] for line in g]
    parts = [[a * c for a, c in zip(*lines, strict=True)] for lines in zip(x, g, strict=True)]
    return first, _summed(parts, dtype) or [[0.0] * len(y[0])]


def _product(x: Rows, y: Rows, g: Rows, dtype: str) -> Pulled:
    columns = _turned(x) if x else [[] for _ in y]
    back = _turned(g) if g else [[] for _ in y[0]]
    return (
        [[finished_product(line, row, dtype) for row in y] for line in g],
        [[finished_product(column, each, dtype) for each in back] for column in columns],
    )


def _mean(x: Rows, _y: Rows, g: Rows, dtype: str) -> Pulled:
    n = len(x[0]) if x else 1
    near = [Within(line[0] / n, 2 * roundoff(dtype) * abs(line[0] / n)) for line in g]
    return [[each] * n for each in near], None


def _amax(x: Rows, _y: Rows, g: Rows, dtype: str) -> Pulled:
    found = []
    for line, (back,) in zip(x, g, strict=True):
        most = max(line)
        share = line.count(most)
        value = Within(back / share, 2 * roundoff(dtype) * abs(back / share))
        found.append([value if each == most else 0.0 for each in line])
    return found, None


def _max(x: Rows, _y: Rows, g: Rows, _dtype: str) -> Pulled:
    found = []
    for line, (back,) in zip(x, g, strict=True):
        first = line.index(max(line))
        found.append([back if at == first else 0.0 for at in range(len(line))])
    return found, None


def _prod(x: Rows, _y: Rows, g: Rows, dtype: str) -> Pulled:
    """Without dividing by the operand, which may be 0."""
    found = []
    for line, (back,) in zip(x, g, strict=True):
        right: list[Right] = []
        for at in range(len(line)):
            others = [*line[:at], *line[at + 1 :]]
            size = math.prod(max(1.0, abs(each)) for each in line) * max(1, abs(back))
            exact = size <= 1 / roundoff(dtype)
            zeros = sum(each == 0 for each in line)
            # with no zero torch divides the product by the operand
            value = back * math.prod(others)
            plain = rounded(value, dtype)
            bound = 4 * len(line) * roundoff(dtype) * abs(value)
            right.append(plain if exact and zeros > 1 else Within(value, bound) if exact else None)
        found.append(right)
    return found, None


def _cumsum(_x: Rows, _y: Rows, g: Rows, dtype: str) -> Pulled:
    return [[sum_of(line[at:], dtype, dtype) for at in range(len(line))] for line in g], None


def _index_select(x: Rows, _y: Rows, g: Rows, dtype: str) -> Pulled:
    found: Rows = [[[] for _ in line] for line in x]
    for at, line in zip(rows_taken(len(x)), g, strict=True):
        for column, back in enumerate(line):
            found[at][column].append(back)
    return [[sum_of(each, dtype) for each in line] for line in found], None


def rows_taken(m: int) -> list[int]:
    """The rows that index_select takes of m."""
    return [each % m if m > 1 else 0 for each in INDEX] if m else []


def _softmax(x: Rows, _y: Rows, g: Rows, dtype: str) -> Pulled:
    """p (g - sum(p g)): the error of p counts in both, and the sum's own."""
    found = []
    for line, back in zip(x, g, strict=True):
        weights = softmax_of(line, dtype)
        if any(each is None for each in weights):
            return [[None] * len(each) for each in x], None
        p = [each.value for each in weights]
        e = max(
            (each.bound / max(each.value, 1e-300) for each in weights if each.value > 1e-30),
            default=0,
        )
        mean = sum(a * b for a, b in zip(p, back, strict=True))
        most = max(map(abs, back))
        u = (len(line) + 4) * roundoff("float32" if dtype != "float64" else dtype) + 2 * roundoff(
            dtype
        )
        found.append(
            [
                Within(a * (b - mean), 4 * (e + u) * a * most + 4 * max(smallest(dtype), 2.0**-126))
                for a, b in zip(p, back, strict=True)
            ]
        )
    return found, None


def _is_inside(a: float) -> bool:
    return -2 <= a <= 3


def _positions(x: Rows) -> list[list[int]]:
    """For gather: the same place twice in each row, and one from the end."""
    return [[(i + 2 * (j // 2)) % len(line) for j in range(len(line))] for i, line in enumerate(x)]


def _gather(x: Rows, _y: Rows, g: Rows, dtype: str) -> Pulled:
    found = []
    for line, places, back in zip(x, _positions(x), g, strict=True):
        right = [
            sum_of([b for p, b in zip(places, back, strict=True) if p == at], dtype)
            for at in range(len(line))
        ]
        found.append(right)
    return found, None


def _make_gather(x: torch.Tensor, _y: torch.Tensor, _gpu: Any) -> torch.Tensor:
    import torch

    rows = [[0] * x.shape[1]] * x.shape[0]
    return x.gather(
        1, torch.tensor(_positions(rows), dtype=torch.int64).reshape(x.shape).to(x.device)
    )


def _make_index_select(x: torch.Tensor, _y: torch.Tensor, _gpu: Any) -> torch.Tensor:
    import torch

    index = torch.tensor(rows_taken(x.shape[0]), dtype=torch.int64).to(x.device)
    return x.index_select(0, index)


@cache
def steps() -> dict[str, Step]:
    """All operations, by name."""
    import torch

    functional: Any = torch.nn.functional
    return {
        "add": Step(lambda x, y, _: x + y, _each(lambda a, b, g: (g, g))),
        "sub": Step(lambda x, y, _: x - y, _each(lambda a, b, g: (g, -g))),
        "mul": Step(lambda x, y, _: x * y, _each(lambda a, b, g: (g * b, g * a))),
        "where": Step(
            lambda x, y, _: torch.where(x > y, x, y),
            _each(lambda a, b, g: (g if a > b else 0.0, 0.0 if a > b else g)),
        ),
        "maximum": Step(
            torch_maximum,
            _each(lambda a, b, g: (None, None) if a == b else (g * (a > b), g * (a < b))),
        ),
        "square": Step(lambda x, y, _: x * x, _one(lambda a, g: 2 * a * g), "none"),
        "neg": Step(lambda x, y, _: -x, _one(lambda a, g: -g), "none"),
        "abs": Step(lambda x, y, _: x.abs(), _one(lambda a, g: g * ((a > 0) - (a < 0))), "none"),
        "relu": Step(lambda x, y, _: x.relu(), _one(lambda a, g: g if a > 0 else 0.0), "none"),
        "clamp": Step(
            lambda x, y, _: x.clamp(-2, 3), _one(lambda a, g: g if _is_inside(a) else 0.0), "none"
        ),
        "exp": Step(lambda x, y, _: x.exp(), _library(math.exp), "none"),
        "tanh": Step(lambda x, y, _: x.tanh(), _library(lambda a: 1 - math.tanh(a) ** 2), "none"),
        "sigmoid": Step(
            lambda x, y, _: x.sigmoid(),
            _library(lambda a: math.exp(-abs(a)) / (1 + math.exp(-abs(a))) ** 2),
            "none",
        ),
        "masked_fill": Step(
            lambda x, y, _: x.masked_fill(x > 1, 7), _one(lambda a, g: 0.0 if a > 1 else g), "none"
        ),
        "sum": Step(
            lambda x, y, _: x.sum(1, keepdim=True),
            lambda x, y, g, t: ([line * len(x[0]) for line in g], None),
            "none",
        ),
        "mean": Step(lambda x, y, _: x.mean(1, keepdim=True), _mean, "none"),
        "amax": Step(lambda x, y, _: x.amax(1, keepdim=True), _amax, "none"),
        "max": Step(lambda x, y, _: x.max(1, keepdim=True).values, _max, "none"),
        "prod": Step(lambda x, y, _: x.prod(1, keepdim=True), _prod, "none"),
        "cumsum": Step(lambda x, y, _: x.cumsum(1), _cumsum, "none"),
        "softmax": Step(lambda x, y, _: x.softmax(1), _softmax, "none"),
        "gather": Step(_make_gather, _gather, "none"),
        "index_select": Step(_make_index_select, _index_select, "none"),
        "transpose": Step(
            lambda x, y, _: x.t().contiguous(),
            lambda x, y, g, t: (_turned(g), None),
            "none",
            empty=False,
        ),
        "flip": Step(
            lambda x, y, _: x.flip(1), lambda x, y, g, t: ([line[::-1] for line in g], None), "none"
        ),
        "cat": Step(
            lambda x, y, _: torch.cat([x, y], 1),
            lambda x, y, g, t: (
                [each[: len(x[0])] for each in g],
                [each[len(x[0]) :] for each in g],
            ),
        ),
        "slice": Step(
            lambda x, y, _: x[:, ::2],
            lambda x, y, g, t: (
                [[line[at // 2] if at % 2 == 0 else 0.0 for at in range(len(x[0]))] for line in g],
                None,
            ),
            "none",
        ),
        "expand": Step(
            lambda x, y, _: y.expand(x.shape[0], x.shape[1]) + 0 * x,
            lambda x, y, g, t: ([[0.0] * len(each) for each in x], _row_plus(x, y, g, t)[1]),
            "row",
        ),
        "add a row": Step(lambda x, y, _: x + y, _row_plus, "row"),
        "multiply by a row": Step(lambda x, y, _: x * y, _row_times, "row"),
        "matmul": Step(lambda x, y, _: x @ y, _product, "square"),
        "linear": Step(lambda x, y, _: functional.linear(x, y.t()), _product, "square"),
        "cast": Step(lambda x, y, _: x.to(torch.float32) * 2, _one(lambda a, g: 2 * g), "none"),
        "chain": Step(
            lambda x, y, _: x * x * y + x,
            _each(lambda a, b, g: (2 * a * b * g + g, a * a * g)),
            wide=True,
        ),
    }


def torch_maximum(x: torch.Tensor, y: torch.Tensor, _gpu: Any) -> torch.Tensor:
    """torch.maximum, which is imported late."""
    import torch

    return torch.maximum(x, y)


def gradient_difference(
    gpu: Backend, op: str, dtype: str, shape: list[int], layout: str, form: str, seed: int
) -> str:
    """The first difference of the gradients of one operation, as a clause."""
    import torch

    step = steps()[op]
    if (step.wide and dtype not in ("float32", "float64")) or (not step.empty and 0 in shape):
        return ""
    m, n = shape
    if m == 0 and op in ("max", "amax", "prod", "gather", "index_select"):
        return ""
    first = place(gpu, dtype, (m, n), layout, "integers", seed)
    sizes = {"same": (m, n), "row": (1, n), "square": (n, 3), "none": (1, 1)}[step.other]
    second = place(gpu, dtype, sizes, "plain", "integers", seed + 1)
    x, y = (each.tensor.detach().requires_grad_() for each in (first, second))
    result = step.make(x, y, gpu)
    back = place(
        gpu,
        str(result.dtype).removeprefix("torch."),
        tuple(result.shape),
        WRITABLE[seed % len(WRITABLE)],
        "integers",
        seed + 2,
    )
    a, b, g = (_rows(each.values, tuple(each.tensor.shape)) for each in (first, second, back))
    wanted = step.pull(a, b, g, dtype)
    leaves = [x] if step.other == "none" else [x, y]
    gradients, times = _gradients(step, form, leaves, (x, y), result, back.tensor, gpu)
    what = f"of {op} of {dtype} ({form}, {(m, n)}, {layout})"
    for number, (leaf, got, right) in enumerate(zip(leaves, gradients, wanted, strict=False), 1):
        name = f"the gradient {number} {what}"
        if got is None:
            return f"{name} is missing"
        flat = [_times(each, times, dtype) for line in right or [] for each in line]
        wrong = wrong_result(got, flat, tuple(leaf.shape), dtype, signs=False)
        if wrong:
            return f"{name} {wrong}{_explanation(got, right, times, dtype)}"
    operands = [("operand 1", first), ("operand 2", second)]
    if times == 1:
        # a leaf may keep a view of the gradient given, and add the next one into it
        # (pytorch v2.13.0, torch/csrc/autograd/functions/accumulate_grad.h, case 1.2)
        operands.append(("the gradient given", back))
    for name, each in operands:
        if changed := each.changed():
            return f"the gradient {what} wrote {name}: {changed}"
    if form == "detached" and torch.is_grad_enabled() and x.detach().requires_grad:
        return f"what was detached {what} still asks for a gradient"
    return ""


def _rows(values: list[Any], shape: tuple[int, ...]) -> Rows:
    m, n = shape
    return [values[i * n : (i + 1) * n] for i in range(m)]


def _gradients(
    step: Step,
    form: str,
    leaves: list[torch.Tensor],
    operands: tuple[torch.Tensor, torch.Tensor],
    result: torch.Tensor,
    back: torch.Tensor,
    gpu: Backend,
) -> tuple[list[Any], int]:
    """(the gradients, how often they are added up)."""
    import torch

    if form == "grad":
        return list(torch.autograd.grad(result, leaves, back)), 1
    if form == "accumulate":
        result.backward(back)
        step.make(*operands, gpu).backward(back)
        return [each.grad for each in leaves], 2
    if form == "retain":
        result.backward(back, retain_graph=True)
        result.backward(back)
        return [each.grad for each in leaves], 2
    if form == "detached":
        with torch.no_grad():
            step.make(*operands, gpu)
        step.make(operands[0].detach(), operands[1].detach(), gpu)
    result.backward(back)
    return [each.grad for each in leaves], 1


def _times(right: Right, times: int, dtype: str) -> Right:
    """The sum of equal gradients."""
    if right is None or times == 1:
        return right
    if isinstance(right, Within):
        value = times * right.value
        return Within(value, times * right.bound + 2 * roundoff(dtype) * abs(value))
    return rounded(float(times * right), dtype)


def _explanation(got: torch.Tensor, right: Rows | None, times: int, dtype: str) -> str:
    """Whether it was added up too often or too seldom."""
    from portagpu.suites.search.numbers.tensors import listed, wrong_elements

    for other, reason in ((1, "it was not added to the first"), (2, "it was added twice")):
        flat = [_times(each, other, dtype) for line in right or [] for each in line]
        if other != times and not wrong_elements(listed(got), flat, dtype, signs=False):
            return f": {reason}"
    return ": all of it is 0" if not any(listed(got)) else ""
