"""Moving elements: gather, scatter, masks, sorts, joins. All of it is exact, in every dtype.

Matrices of shape (m, n). Where several numbers go to one place only sums of whole numbers are told,
for whose order nothing matters; which one a plain ``scatter`` keeps is not documented, so its
places differ. ``sort`` is stable where asked; topk says nothing of which equal one it takes.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from portagpu.suites.search.numbers.compare import wrong_result
from portagpu.suites.search.numbers.formats import kind_of
from portagpu.suites.search.numbers.tensors import WRITABLE, Placed, place

if TYPE_CHECKING:
    from portagpu.devices.contract import Backend

from portagpu.suites.search.numbers.moves import OPS, WrongIndexError
from portagpu.suites.search.numbers.operands import Given

SIZES: Final = ((3, 5), (1, 17), (7, 1), (9, 7), (0, 4), (4, 0), (1, 1), (2, 131), (19, 5))
KINDS: Final = ("distinct", "special", "integers", "mixed", "wide")


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
        told = {"int": {"wide": "wide"}, "float": {"special": "whole", "mixed": "whole"}}
        kind = told.get(kind_of(dtype), {}).get(kind, "integers")
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
