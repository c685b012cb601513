"""Products of matrices and vectors, with alpha and beta, and attention with masks.

An element is a sum of k products: within ``gamma_k sum(abs(a) abs(b))`` in any order (Higham, 3.5),
u of the accumulator, which is float32 for float16 and bfloat16. There torch lets a library add
partial sums that it rounded to the format ("Reduced Precision Reduction in FP16 GEMMs", notes on
CUDA semantics): at most one for each ``TILE`` terms, the shortest dimension that a matrix unit adds
up. Whole numbers whose absolute sum is exact in the format are right exactly.

Attention is compared with float64. Scores are within ``gamma_(d+2)`` of their absolute terms,
rounded to the dtype where it is a half one, and the mask is added with one more rounding: together
at most s. A weight then is off by ``exp(2 s) - 1`` and by exponentials of 20 ULPs (``exp_u20``,
aten/src/ATen/cpu/vec); the weights are rounded to the dtype, and their sum over the values is a
product of matrices. A row whose mask leaves nothing is 0 since torch 2.5 and NaN in other kernels:
no number but these.
"""

from __future__ import annotations

import math
import operator
from operator import mul
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.numbers.formats import (
    COMPLEX,
    kind_of,
    largest,
    rounded,
    roundoff,
    smallest,
    smallest_normal,
)
from portagpu.suites.search.numbers.reductions import accumulator, gamma
from portagpu.suites.search.numbers.tensors import (
    WRITABLE,
    Placed,
    Right,
    Shape,
    Within,
    listed,
    place,
    wrong_elements,
    wrong_result,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from portagpu.devices.contract import Backend


TILE: Final = 16
SIZES: Final = (3, 1, 5, 8, 2, 17, 0, 20)
INNER: Final = (4, 1, 3, 0, 16, 33, 67)
ALPHAS: Final = (1, 2, -1)
"""Not 0: with it torch 2.13 on a CPU returns the input of baddbmm in half precision as it is,
without beta (seen on a CPU with AMX), and its documentation says nothing of it."""
BETAS: Final = (1, 0, 2, -1)
FORMS: Final = ("function", "method", "out", "in place", "again", "gradless", "@", "conj")
"""With "conj" the first operand is a conjugate view, whose numbers a library conjugates itself."""
OPS: Final = ("mm", "matmul", "bmm", "mv", "dot", "addmm", "baddbmm", "linear", "outer", "addmv")
KINDS: Final = ("integers", "mixed", "ordinary", "special", "distinct")
_ADDS: Final = ("addmm", "baddbmm", "addmv", "linear")
Raw = tuple[Any, float, int, float]
"""A value, its error before the last rounding, the whole size of its terms, and that of flushes."""
MASKS: Final = (
    *("none", "bool", "float", "causal", "infinite", "empty row"),
    *("lowest", "lowest row", "lowest block", "infinite block"),
)
"""With "lowest" keys are hidden by the dtype's lowest number, which is finite: where all keys of a
row are, each has the same weight. A block is the first half of the keys."""
FINITE: Final = ("lowest", "lowest row", "lowest block")
QUERIES: Final = (4, 1, 7, 9, 40)
KEYS: Final = (5, 1, 4, 9, 131, 1030)
"""More than 128 and 1,024, from which on kernels have blocks and passes of their own."""
WIDTHS: Final = (4, 1, 8, 16)
SCALES: Final = (None, 0.5, 2.0)
LAYOUTS: Final = WRITABLE


def product_difference(
    gpu: Backend,
    op: str,
    dtype: str,
    kind: str,
    m: int,
    k: int,
    n: int,
    layout: str,
    other_layout: str,
    alpha: int,
    beta: int,
    form: str,
    seed: int,
) -> str:
    """The first difference of one product, as a clause."""
    import torch

    if dtype in COMPLEX and kind not in ("integers", "ones"):
        kind = "integers"
    if op == "linear":
        alpha = beta = 1
    batched = op in ("bmm", "baddbmm") or (op == "matmul" and seed % 2)
    batch = 1 + seed // 2 % 4 if batched else 0
    left, right, out = _shapes(op, batch, m, k, n)
    a = place(gpu, dtype, left, layout, kind, seed)
    b = place(gpu, dtype, right, other_layout, kind, seed + 1)
    x, y = a.tensor, b.tensor
    if form == "conj" and dtype in COMPLEX:
        x, a.values = x.conj(), [each.conjugate() for each in a.values]
    wanted = _wanted(gpu, op, dtype, a, b, (batch, m, k, n))
    if accumulator(dtype) != dtype and kind in ("mixed", "special"):
        wanted = _certain(wanted, [*a.storage, *b.storage])
    operands, extra = [a, b], None
    if op in _ADDS:
        size = (
            (n,) if op == "linear" or (op == "addmm" and seed % 2 and form != "in place") else out
        )
        lay = WRITABLE[seed % len(WRITABLE)]
        extra = place(gpu, dtype, size, lay, "special" if beta == 0 else "integers", seed + 2)
        operands.append(extra)
        added = extra.values if size == out else extra.values * max(1, math.prod(out[:-1]))
        wanted = [
            _plus(each, other, alpha, beta, dtype)
            for each, other in zip(wanted, added, strict=False)
        ]
    what = f"{op} of {dtype} ({form}, {left} by {right}, {layout} and {other_layout}, {kind}"
    what += f", alpha {alpha}, beta {beta})" if op in _ADDS else ")"
    named: dict[str, Any] = {}
    given: tuple[Any, ...] = (x, y)
    function: Any = getattr(torch, op, None)
    into: Placed | None = None
    if op == "linear":
        function, given = torch.nn.functional.linear, (x, y, extra.tensor if extra else None)
    elif extra is not None:
        given, named = (extra.tensor, x, y), {"alpha": alpha, "beta": beta}
        if form == "in place":
            function, into = getattr(torch.Tensor, f"{op}_"), extra
    if form == "@" and op in ("mm", "mv", "bmm", "matmul", "dot"):
        function = operator.matmul
    if form == "method" and op != "linear":
        function = getattr(torch.Tensor, op)
    if form == "out" and op != "linear":
        # torch folds a batch into rows, and then writes no tensor of another layout
        lay = "plain" if op == "matmul" and batch else WRITABLE[seed % len(WRITABLE)]
        into = place(gpu, dtype, out, lay, "special", seed + 5)
        named["out"] = into.tensor
    found = function(*given, **named)
    if form == "again":
        found = function(*given, **named)
    wrong = wrong_result(found, [finished(each, dtype) for each in wanted], out, dtype, signs=False)
    if wrong:
        sizes = (batch, m, k, n)
        lost = (
            _plain(gpu, op, dtype, a, b, sizes, found)
            if dtype in COMPLEX and form == "conj"
            else ""
        )
        return f"{what} {wrong}{lost}"
    if into is not None and (changed := into.changed(written=True)):
        return f"{what} wrote outside its elements: {changed}"
    for number, each in enumerate(operands, 1):
        if each is not into and (changed := each.changed()):
            return f"{what} wrote operand {number}: {changed}"
    return ""


def _plain(
    gpu: Backend,
    op: str,
    dtype: str,
    a: Placed,
    b: Placed,
    sizes: tuple[int, int, int, int],
    found: torch.Tensor,
) -> str:
    """Whether the product of a conjugate view is that of the numbers as they lie in memory."""
    if op in _ADDS:
        return ""
    a.values = [each.conjugate() for each in a.values]
    plain = [finished(each, dtype) for each in _wanted(gpu, op, dtype, a, b, sizes)]
    same = not wrong_elements(listed(found), plain, dtype, signs=False)
    return "; the conjugate view was read as it is" if same else ""


def _shapes(op: str, batch: int, m: int, k: int, n: int) -> tuple[Shape, Shape, Shape]:
    """Of both operands and of the result."""
    if op in ("mv", "addmv"):
        return (m, k), (k,), (m,)
    if op == "dot":
        return (k,), (k,), ()
    if op == "outer":
        return (m,), (n,), (m, n)
    if op == "linear":
        return (m, k), (n, k), (m, n)
    if op == "matmul" and batch:
        # a matrix for each of the batch
        return (batch, m, k), (k, n), (batch, m, n)
    first = (batch,) if batch else ()
    return (*first, m, k), (*first, k, n), (*first, m, n)


def finished_product(line: Sequence[Any], column: Sequence[Any], dtype: str) -> Right:
    """What is right for the product of two vectors."""
    return finished(_product(line, column, dtype, False), dtype)


def _wanted(
    gpu: Backend, op: str, dtype: str, a: Placed, b: Placed, sizes: tuple[int, int, int, int]
) -> list[Any]:
    """The elements before the last rounding, row by row."""
    import torch

    batch, m, k, n = sizes
    flushes = getattr(torch, dtype) in gpu.precision.flushes
    tame = kind_of(dtype) == "float" and not flushes and _are_tame([*a.storage, *b.storage])
    found: list[Any] = []
    if op == "outer":
        return [_product([x], [y], dtype, flushes, tame) for x in a.values for y in b.values]
    if op in ("mv", "dot", "addmv"):
        n = 1
    for each in range(max(1, batch)):
        lines = [a.values[(each * m + i) * k :][:k] for i in range(1 if op == "dot" else m)]
        start = each * k * n if batch and op != "matmul" else 0
        if op == "linear":
            columns = [b.values[j * k : (j + 1) * k] for j in range(n)]
        else:
            columns = [b.values[start + j : start + k * n : n] if k else [] for j in range(n)]
        found += [
            _product(line, column, dtype, flushes, tame) for line in lines for column in columns
        ]
    return found


def _certain(wanted: list[Raw | None], values: list[float]) -> list[Raw | None]:
    """Of half precision with NaN or infinity in an operand: only what has to be NaN.

    oneDNN on a CPU with AMX pads an odd k with the next row's number times 0: a NaN there is one in
    the row before too (torch 2.13.0, bfloat16, 17x33 by 33x17).
    """
    if all(map(math.isfinite, values)):
        return wanted
    return [each if each and each[0] != each[0] else None for each in wanted]


def _product(
    line: Sequence[Any], column: Sequence[Any], dtype: str, flushes: bool, tame: bool = False
) -> Raw | None:
    terms = list(map(mul, line, column))
    if kind_of(dtype) == "complex":
        return sum(terms, 0j), 0.0, 0, 0.0
    # a library may scale an operand by alpha before it multiplies: twice the largest number is
    # infinite, and NaN times 0
    most = largest(dtype) / 8
    near_end = not tame and any(most < abs(each) < math.inf for each in (*line, *column))
    if not tame and not all(map(math.isfinite, terms)):
        total = sum(terms)
        finite = sum(abs(each) for each in terms if math.isfinite(each))
        certain = total != total or finite < largest(dtype) / 4
        # a product that overflows in float64 is not an infinity that was given
        given = not all(map(math.isfinite, line)) or not all(map(math.isfinite, column))
        certain = certain and given and not near_end and _is_certain(line, column)
        return (total, 0.0, 0, 0.0) if certain else None
    size = sum(map(abs, terms))
    if near_end or (not tame and size > most):
        return None
    lost = 0.0
    if flushes:
        pairs = zip(line, column, terms, strict=True)
        low = smallest_normal(dtype)
        lost = sum(abs(t) for x, y, t in pairs if abs(x) < low or abs(y) < low) + low
    total, u = math.fsum(terms), roundoff(accumulator(dtype))
    whole = all(each.is_integer() for each in terms)
    if whole and 0.0 in terms:
        # nor has any product become 0 that a library may scale by alpha first
        whole = all(t or not (x and y) for x, y, t in zip(line, column, terms, strict=True))
    if whole and size <= 1 / roundoff(dtype):
        return total, 0.0, int(size), lost
    k, bound = len(terms), 0.0
    if not (whole and size <= 1 / u):
        # the model's own products and sum round in float64
        bound = (gamma(max(1, k), u) + 2 * 2.0**-53) * size
    if u != roundoff(dtype):
        bound += gamma(math.ceil(k / TILE), roundoff(dtype)) * size if k > TILE else 0.0
    return total, bound, -1, lost + k * smallest(accumulator(dtype))


def _are_tame(values: Sequence[float]) -> bool:
    """Whether all are so small that no product of them is near the end of a dtype."""
    return all(abs(each) <= 2.0**4 for each in values)


def _is_certain(line: Sequence[float], column: Sequence[float]) -> bool:
    """Whether no product of two finite numbers is too large."""
    return all(
        abs(x * y) < 2.0**15
        for x, y in zip(line, column, strict=True)
        if math.isfinite(x) and math.isfinite(y)
    )


def _plus(raw: Raw | None, other: Any, alpha: int, beta: int, dtype: str) -> Raw | None:
    """beta * other + alpha * product; with beta = 0 the other one is not read (torch.addmm)."""
    if raw is None:
        return None
    value, bound, size, lost = raw
    if value != value or (kind_of(dtype) != "complex" and math.isinf(value)):
        return alpha * value, 0.0, 0, 0.0
    total = alpha * value + (beta * other if beta else 0)
    if size >= 0:
        return total, 0.0, abs(alpha) * size + (int(abs(beta * other)) if beta else 0), lost
    # the product, alpha times it and beta times the other may each be rounded before the sum
    steps = 3 * roundoff(dtype) * (abs(alpha * value) + (abs(beta * other) if beta else 0))
    return total, abs(alpha) * bound + steps, -1, abs(alpha) * lost


def finished(raw: Raw | None, dtype: str) -> Right:
    """The last rounding."""
    if raw is None:
        return None
    value, bound, size, lost = raw
    if kind_of(dtype) == "complex":
        return Within(value, 0.0)
    if value != value or math.isinf(value):
        return value
    if abs(value) + bound + lost > largest(dtype):
        return None
    if size >= 0 and size <= 1 / roundoff(dtype):
        return Within(rounded(float(value), dtype), lost) if lost else rounded(float(value), dtype)
    last = 2 * roundoff(dtype) * (abs(value) + bound) + smallest(dtype)
    return Within(float(value), bound + last + lost)


def attention_difference(
    gpu: Backend,
    dtype: str,
    mask: str,
    queries: int,
    keys: int,
    width: int,
    scale: float | None,
    heads: int,
    layout: str,
    seed: int,
) -> str:
    """The first difference of one scaled_dot_product_attention, as a clause."""
    import torch

    sizes = [(1, heads, length, width) for length in (queries, keys, keys)]
    placed = [
        place(gpu, dtype, size, layout, "ordinary", seed + number)
        for number, size in enumerate(sizes)
    ]
    allowed, added = _mask(mask, queries, keys, dtype, seed)
    given: Any = None
    if mask in ("bool", "empty row"):
        given = torch.tensor(allowed).to(gpu.device)
    elif mask not in ("none", "causal"):
        given = torch.tensor(added, dtype=getattr(torch, dtype)).to(gpu.device)
    query, key, value = (each.tensor for each in placed)
    found = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=given, is_causal=mask == "causal", scale=scale
    )
    factor = scale if scale is not None else 1 / math.sqrt(width)
    wanted: list[Right] = []
    for head in range(heads):
        q, k, v = (
            [each.values[(head * length + i) * width :][:width] for i in range(length)]
            for each, length in zip(placed, (queries, keys, keys), strict=True)
        )
        for i in range(queries):
            if mask in FINITE and not any(allowed[i]):
                wanted += _hidden_row(v, keys, dtype)
            else:
                wanted += _row(q[i], k, v, allowed[i], added[i], factor, dtype)
    what = f"attention of {dtype} (mask {mask}, {queries} queries, {keys} keys, width {width}, "
    what += f"{heads} heads, scale {scale}, {layout})"
    wrong = wrong_result(found, wanted, (1, heads, queries, width), dtype, signs=False)
    if wrong:
        return f"{what} {wrong}"
    for name, each in zip(("query", "key", "value"), placed, strict=True):
        if changed := each.changed():
            return f"{what} wrote the {name}: {changed}"
    return ""


def _mask(
    mask: str, queries: int, keys: int, dtype: str, seed: int
) -> tuple[list[list[bool]], list[list[float]]]:
    """(where a key counts, what is added to the score), for each query."""
    lines = range(queries)
    allowed = [[True] * keys for _ in lines]
    added = [[0.0] * keys for _ in lines]
    if mask == "causal":
        allowed = [[j <= i for j in range(keys)] for i in lines]
    elif mask in ("bool", "empty row"):
        allowed = [
            [(i * 5 + j * 3 + seed) % 4 != 0 or j == i % keys for j in range(keys)] for i in lines
        ]
        if mask == "empty row":
            allowed[seed % queries] = [False] * keys
    elif mask == "float":
        added = [
            [rounded(((i * 7 + j * 3 + seed) % 9 - 4) / 2, dtype) for j in range(keys)]
            for i in lines
        ]
    elif mask == "infinite":
        allowed = [[(i + j + seed) % 3 != 0 or j == i % keys for j in range(keys)] for i in lines]
    elif mask in ("lowest block", "infinite block"):
        hidden = min(-(-keys // 2), keys - 1)
        allowed = [[j >= hidden for j in range(keys)] for _ in lines]
    elif mask in FINITE:
        allowed = [
            [(i + 2 * j + seed) % 3 != 0 or j == i % keys for j in range(keys)] for i in lines
        ]
        if mask == "lowest row":
            allowed[seed % queries] = [False] * keys
    if mask in ("infinite", "infinite block", *FINITE):
        low = -largest(dtype) if mask in FINITE else -math.inf
        added = [[0.0 if each else low for each in line] for line in allowed]
    return allowed, added


def _hidden_row(values: list[list[float]], keys: int, dtype: str) -> list[Right]:
    """What is right for a query whose keys are all hidden by the lowest number.

    Added to it, scores vanish, and all keys have one weight. Those of float16 do not vanish in a
    kernel that adds in float32: then the weights are not known, and nothing is outside the values.
    """
    found: list[Right] = []
    for column in zip(*values, strict=True):
        low, high, mean = min(column), max(column), math.fsum(column) / keys
        bound = (gamma(keys + 48, roundoff(accumulator(dtype))) + 6 * roundoff(dtype)) * max(
            map(abs, column)
        )
        if dtype == "float16":
            found.append(Within((low + high) / 2, (high - low) / 2 + bound))
        else:
            found.append(Within(mean, bound))
    return found


def _row(
    q: list[float],
    keys: list[list[float]],
    values: list[list[float]],
    allowed: list[bool],
    added: list[float],
    factor: float,
    dtype: str,
) -> list[Right]:
    """What is right for one query: one number for each column of the values."""
    if not any(allowed):
        return [(0.0, math.nan)] * len(values[0])
    u, own = roundoff(accumulator(dtype)), roundoff(dtype)
    scores, worst = [], 0.0
    for key, plus in zip(keys, added, strict=True):
        size = sum(abs(a * b) for a, b in zip(q, key, strict=True)) * factor
        scores.append(factor * math.fsum(a * b for a, b in zip(q, key, strict=True)) + plus)
        if abs(plus) < largest(dtype):
            # with half scores: operands scaled by the root of the factor, a product and a mask
            worst = max(worst, (gamma(len(q) + 4, u) + 5 * own) * (size + abs(plus)))
    kept = [each if ok else -math.inf for each, ok in zip(scores, allowed, strict=True)]
    most = max(kept)
    weights = [math.exp(each - most) for each in kept]
    total = math.fsum(weights)
    spread = max(most - each for each in kept if math.isfinite(each))
    n = len(keys)
    relative = math.expm1(2 * worst) + 2 * (spread + 44 + n) * u * 1.01 + 3 * own + gamma(n + 2, u)
    found: list[Right] = []
    for column in range(len(values[0])):
        terms = [w / total * line[column] for w, line in zip(weights, values, strict=True)]
        size, value = sum(map(abs, terms)), math.fsum(terms)
        most_value = max(abs(line[column]) for line in values)
        bound = relative * size + 2 * own * abs(value) + n * smallest_normal(dtype) * most_value
        found.append(Within(value, bound + smallest_normal(dtype)))
    return found
