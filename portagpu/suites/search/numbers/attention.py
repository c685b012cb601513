"""Attention with masks, beside float64.

Scores are within ``gamma_(d+2)`` of their absolute terms, rounded to the dtype where it is a half
one, and the mask is added with one more rounding: together at most s. A weight then is off by
``exp(2 s) - 1`` and by exponentials of 20 ULPs (``exp_u20``, aten/src/ATen/cpu/vec); the weights
are rounded to the dtype, and their sum over the values is a product of matrices
(:mod:`portagpu.suites.search.numbers.products`).

A row whose mask leaves nothing is 0 since torch 2.5 and NaN in other kernels: no number but these.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.numbers.compare import Right, Within, wrong_result
from portagpu.suites.search.numbers.formats import rounded, roundoff, smallest_normal
from portagpu.suites.search.numbers.sums import accumulator, gamma
from portagpu.suites.search.numbers.tensors import WRITABLE, place

if TYPE_CHECKING:
    from portagpu.devices.contract import Backend

MASKS: Final = ("none", "bool", "float", "causal", "infinite", "empty row")
QUERIES: Final = (4, 1, 7, 9)
KEYS: Final = (5, 1, 4, 9)
WIDTHS: Final = (4, 1, 8, 16)
SCALES: Final = (None, 0.5, 2.0)


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
    elif mask in ("float", "infinite"):
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
        added = [[0.0 if each else -math.inf for each in line] for line in allowed]
    return allowed, added


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
        if math.isfinite(plus):
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


LAYOUTS: Final = WRITABLE
