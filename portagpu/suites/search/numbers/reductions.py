"""Sums, products, extremes and running sums: of one row, and over dimensions in every form.

A sum of n numbers in any order is within ``gamma_(n-1) sum(abs(x))``, ``gamma_n = n u / (1 - n u)``
(Higham, Accuracy and Stability of Numerical Algorithms, 4.2), where u is that of the accumulator:
float32 for float16 and bfloat16 (pytorch v2.13.0, aten/src/ATen/AccumulateType.h), and the dtype
itself for running sums, which some devices add up in it. Whole numbers whose absolute sum has no
more bits than the accumulator are added exactly in any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
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
from portagpu.suites.search.numbers.tensors import (
    WRITABLE,
    Placed,
    Right,
    Shape,
    Within,
    dtype_of,
    listed,
    place,
    rows,
    wrong_elements,
    wrong_result,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from portagpu.devices.contract import Backend

KINDS: Final = ("integers", "mixed", "special", "wide", "ones", "ordinary", "denormal")
DIMS: Final = ((), (0,), (-1,), (0, 1), (1,))
"""The dimensions that are reduced; () is all of them."""
SHAPES: Final = (
    *((7,), (), (1,), (3, 5), (2, 3, 4), (33,), (65,), (0, 3), (3, 0), (9, 7), (300,), (2, 131)),
    *((1031,), (4099,)),
)
FORMS: Final = ("function", "method", "out", "keepdim", "again", "wider")
WIDER: Final = {"float16": "float32", "bfloat16": "float32", "float32": "float64"}
ALL: Final = "bool int float complex"
OF_ALL: Final = ("max of all", "min of all")
NO_KEEPDIM: Final = ("count_nonzero", "cumsum", "softmax", *OF_ALL)
NO_OUT: Final = ("softmax", "count_nonzero", "max", "min", "prod", "any", "all", *OF_ALL)
NO_METHOD: Final = ("linalg.vector_norm",)
WITH_DTYPE: Final = ("sum", "mean", "prod", "cumsum")


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


@dataclass(frozen=True, slots=True)
class Reduction:
    """One operation over dimensions. ``right(values, dtype)`` is of one row.

    ``dims``: "any" number of dimensions, "one" or none, or exactly one ("each"), for which the
    result has as many elements as the row if ``running``, or "all", which are not named.
    """

    kinds: str
    right: Callable[..., Any]
    dims: str = "any"
    result: str = "same"
    empty: bool = True
    running: bool = False
    classes: tuple[str, ...] = ()


OPS: Final[dict[str, Reduction]] = {
    "sum": Reduction(ALL, sum_of, result="sum"),
    "mean": Reduction("float", mean_of),
    "prod": Reduction("int float", product_of, "one", "sum", classes=("integers", "ones")),
    "amax": Reduction("bool int float", extreme(max), empty=False),
    "amin": Reduction("bool int float", extreme(min), empty=False),
    "argmax": Reduction("int float", place_of(max), "one", "int64", empty=False),
    "argmin": Reduction("int float", place_of(min), "one", "int64", empty=False),
    "max": Reduction("bool int float", extreme(max), "each", empty=False),
    "min": Reduction("bool int float", extreme(min), "each", empty=False),
    "max of all": Reduction("bool int float", extreme(max), "all", empty=False),
    "min of all": Reduction("bool int float", extreme(min), "all", empty=False),
    "any": Reduction(ALL, lambda values, _: any(values), "one", "bool"),
    "all": Reduction(ALL, lambda values, _: all(values), "one", "bool"),
    "count_nonzero": Reduction(ALL, lambda values, _: sum(map(bool, values)), result="int64"),
    "cumsum": Reduction("int float complex", running_sums, "each", "sum", running=True),
    "softmax": Reduction("float", softmax_of, "each", running=True, empty=False),
    "linalg.vector_norm": Reduction("float", norm_of, empty=False),
}


def reduction_difference(
    gpu: Backend,
    op: str,
    dtype: str,
    kind: str,
    shape: list[int],
    dims: list[int],
    layout: str,
    form: str,
    seed: int,
) -> str:
    """The first difference of one reduction, as a clause."""
    found = OPS[op]
    if kind_of(dtype) not in found.kinds.split():
        return ""
    size = tuple(shape)
    over = _dims(found, len(size), tuple(dims))
    if found.classes and kind not in found.classes and kind_of(dtype) != "int":
        kind = found.classes[seed % len(found.classes)]
    lengths = [size[each] for each in over]
    if (not found.empty and 0 in (lengths or [1])) or (found.dims == "each" and not size):
        return ""
    placed = place(gpu, dtype, size, layout, kind, seed)
    form = _form(gpu, op, dtype, form)
    what = f"{op} of {dtype} ({form}, {size}, over {over or 'nothing'}, {layout}, {kind})"
    wanted, shape_out, result = _right(found, placed, size, over, dtype, form)
    got = _run(
        gpu,
        op,
        placed,
        dims=over,
        ndim=len(size),
        form=form,
        result=result,
        out=shape_out,
        seed=seed,
    )
    if isinstance(got, str):
        return f"{what} {got}"
    values = got
    if op in ("max", "min"):
        places = [
            place_of(max if op == "max" else min)(row, dtype) for row in _picked(placed, size, over)
        ]
        values = got[0]
        wrong = wrong_result(got[1], places, shape_out, "int64")
        if wrong:
            return f"the index of {what} {wrong}"
    wrong = wrong_result(values, wanted, shape_out, result, signs=False)
    if wrong:
        return f"{what} {wrong}{_explanation(found, values, placed, size, over, dtype, form)}"
    changed = placed.changed()
    return f"{what} wrote its input: {changed}" if changed else ""


def _dims(op: Reduction, ndim: int, dims: Shape) -> Shape:
    """The dimensions, from 0, that exist and that the operation takes."""
    valid = sorted({each % ndim for each in dims if -ndim <= each < ndim}) if ndim else []
    if op.dims == "all":
        return tuple(range(ndim))
    if op.dims != "any":
        valid = valid[:1]
    if op.dims == "each":
        return tuple(valid or range(min(1, ndim)))
    return tuple(valid or range(ndim))


def _form(gpu: Backend, op: str, dtype: str, form: str) -> str:
    import torch

    wider = WIDER.get(dtype, "")
    if form == "wider" and (
        op not in WITH_DTYPE
        or not wider
        or str(gpu.precision.support(getattr(torch, wider))) in ("none", "storage")
    ):
        return "function"
    barred = {"keepdim": NO_KEEPDIM, "out": NO_OUT, "method": NO_METHOD}.get(form, ())
    return "again" if op in barred else form


def _picked(placed: Placed, shape: Shape, over: Shape) -> list[list[Any]]:
    return [[placed.values[each] for each in row] for row in rows(shape, over)]


def _right(
    op: Reduction, placed: Placed, shape: Shape, over: Shape, dtype: str, form: str
) -> tuple[list[Right], Shape, str]:
    """(the elements, the shape, the dtype) of the result."""
    result = dtype if op.result == "same" else op.result
    if op.result == "sum":
        result = "int64" if kind_of(dtype) in ("bool", "int") else dtype
    if op.result == "bool" and dtype == "uint8":
        # torch keeps the masks of old
        result = "uint8"
    if form == "wider":
        result = WIDER[dtype]
    inside = result if op.result in ("same", "sum") else dtype
    each = [op.right(row, inside) for row in _picked(placed, shape, over)]
    if op.running:
        flat: list[Right] = [None] * len(placed.values)
        for row, found in zip(rows(shape, over), each, strict=True):
            for index, right in zip(row, found, strict=True):
                flat[index] = right
        return flat, shape, result
    if form == "keepdim":
        return each, tuple(1 if d in over else n for d, n in enumerate(shape)), result
    return each, tuple(n for d, n in enumerate(shape) if d not in over), result


def _run(
    gpu: Backend,
    op: str,
    placed: Placed,
    *,
    dims: Shape,
    ndim: int,
    form: str,
    result: str,
    out: Shape,
    seed: int,
) -> Any:
    """The result, or a clause on what was written wrongly."""
    import torch

    x: Any = placed.tensor
    name = op.partition(" ")[0]
    function: Any = torch.linalg.vector_norm if "norm" in op else getattr(torch, name)
    named: dict[str, Any] = {}
    one = OPS[op].dims != "any"
    if (
        OPS[op].dims != "all"
        and dims
        and not (len(dims) == ndim and seed % 2 and OPS[op].dims != "each" and form != "keepdim")
    ):
        # a negative dimension is counted from the end
        shifted = tuple(each - ndim if seed % 3 == 0 else each for each in dims)
        if not (one and len(dims) > 1):
            named["dim"] = shifted[0] if one else shifted
    if form == "keepdim" and "dim" in named:
        named["keepdim"] = True
    elif form == "keepdim":
        x = x.reshape(-1)
        return function(x, dim=0, keepdim=True).reshape(out)
    if form == "wider":
        named["dtype"] = getattr(torch, result)
    if form == "out" and "dim" in named:
        into = place(gpu, result, out, WRITABLE[seed % len(WRITABLE)], "integers", seed + 5)
        found = function(x, out=into.tensor, **named)
        changed = into.changed(written=True)
        return f"wrote outside its elements: {changed}" if changed else found
    if form == "method":
        function, x = getattr(x, name), None
    given = () if x is None else (x,)
    found = function(*given, **named)
    return function(*given, **named) if form == "again" else found


def _explanation(
    op: Reduction,
    found: torch.Tensor,
    placed: Placed,
    shape: Shape,
    over: Shape,
    dtype: str,
    form: str,
) -> str:
    """Whether ignored strides explain the result, or a number that was left out."""
    got = listed(found)
    if not placed.tensor.is_contiguous():
        n = len(placed.values)
        if len(placed.storage) < n:
            return ""
        fake = Placed(placed.tensor, list(placed.storage[:n]), placed.whole, placed.before, (), ())
        wanted = _right(op, fake, shape, over, dtype, form)[0]
        if len(wanted) == len(got) and not wrong_elements(
            got, wanted, dtype_of(found), signs=False
        ):
            return "; the strides were ignored"
    return ""
