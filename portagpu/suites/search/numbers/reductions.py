"""Sums, products, extremes and running sums over dimensions, in every form and layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.numbers.compare import Right, wrong_elements, wrong_result
from portagpu.suites.search.numbers.formats import (
    kind_of,
)
from portagpu.suites.search.numbers.tensors import (
    WRITABLE,
    Placed,
    Shape,
    dtype_of,
    listed,
    place,
    rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.contract import Backend

from portagpu.suites.search.numbers.sums import (
    extreme,
    mean_of,
    norm_of,
    place_of,
    product_of,
    running_sums,
    softmax_of,
    sum_of,
)

KINDS: Final = ("integers", "mixed", "special", "wide", "ones", "ordinary", "denormal")
DIMS: Final = ((), (0,), (-1,), (0, 1), (1,))
"""The dimensions that are reduced; () is all of them."""
SHAPES: Final = (
    *((7,), (), (1,), (3, 5), (2, 3, 4), (33,), (65,), (0, 3), (3, 0), (9, 7), (300,), (2, 131)),
    *((1031,), (4099,)),
)
FORMS: Final = ("function", "method", "out", "keepdim", "again", "wider")
WIDER: Final = {"float16": "float32", "bfloat16": "float32", "float32": "float64"}


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


ALL: Final = "bool int float complex"
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
OF_ALL: Final = ("max of all", "min of all")
NO_KEEPDIM: Final = ("count_nonzero", "cumsum", "softmax", *OF_ALL)
NO_OUT: Final = ("softmax", "count_nonzero", "max", "min", "prod", "any", "all", *OF_ALL)
NO_METHOD: Final = ("linalg.vector_norm",)
WITH_DTYPE: Final = ("sum", "mean", "prod", "cumsum")


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
        return f"{what} {wrong}{_why(found, values, placed, size, over, dtype, form)}"
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
        return f"wrote beside its elements: {changed}" if changed else found
    if form == "method":
        function, x = getattr(x, name), None
    given = () if x is None else (x,)
    found = function(*given, **named)
    return function(*given, **named) if form == "again" else found


def _why(
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
