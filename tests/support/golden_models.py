"""Golden files of the models that random programs are judged by. They need torch."""

from __future__ import annotations

import inspect
from fractions import Fraction
from itertools import islice, product
from typing import TYPE_CHECKING, Any, Final

from tests.support.golden import Golden, answer_of, digest_of
from tests.support.golden_numbers import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NUMBERS: Final = (
    *(0.0, -0.0, 1.0, -1.5, 2.5, 3.5, 0.1, 447.0, 449.0, 464.0, 480.0, 65504.0, 65519.9, 65520.0),
    *(6e-8, 2.9e-8, 1e-45, 3.4e38, 1e39, float("inf"), float("-inf"), 2.0**-10, 2.0**63, -129.0),
)
_SHAPES: Final = ((), (0,), (1,), (5,), (2, 3), (3, 1, 4))


def _numbers(_: Path) -> Iterator[str]:
    """Formats as the search has them: rounding, conversion, promotion, drawn numbers, layouts."""
    from portagpu.suites.search.numbers import formats, reductions, tensors

    for dtype in formats.FLOATS + formats.FP8:
        limits = (formats.roundoff, formats.smallest, formats.smallest_normal, formats.largest)
        yield f"{dtype}: {[answer_of(each, dtype) for each in limits]}"
        yield f"  rounded {[answer_of(formats.rounded, each, dtype) for each in _NUMBERS]}"
        yield f"  overflow {[answer_of(formats.overflow, each, dtype) for each in (448.5, 1e6)]}"
    yield f"thirds {[formats.rounded(Fraction(1, 3), dtype) for dtype in formats.FLOATS]}"
    yield from lines_of(formats.whole_to_dtype, (0, 127, 128, 255, 256, -1, -129), formats.INTEGERS)
    for source in ("float32", "float16", "int8", "uint8", "bool", "complex64", "float8_e4m3fn"):
        values = {"bool": [True, False], "complex64": [1 + 2j]}.get(source, [0, 1, -1, 3, 100, 127])
        for target in formats.ALL:
            found = [answer_of(formats.converted, each, source, target) for each in values]
            yield f"{source} to {target}: {found}"
    for first in formats.ALL:
        yield f"{first} and: {[answer_of(formats.promoted, first, each) for each in formats.ALL]}"
    for dtype in ("float32", "bfloat16", "int8", "bool", "complex64", "float8_e5m2"):
        for kind in tensors.CLASSES:
            drawn = answer_of(tensors.numbers, dtype, kind, 24, 3)
            yield f"{dtype} {kind}: {digest_of(str(drawn))} {str(drawn)[:70]}"
    for shape, layout in product(_SHAPES, tensors.LAYOUTS):
        strides, offset, size = tensors.strides_of(shape, layout)
        places = tensors.positions(shape, strides, offset)
        yield f"{shape} {layout}: {strides} {offset} {size} {places}"
    yield from lines_of(reductions.gamma, (0, 1, 100, 10**6), (2.0**-24, 2.0**-8))
    lines = ([], [1.0], [1.0, 2.0, -3.5], [1e30, 1.0, -1e30], [float("inf"), 1.0], [0.1] * 9)
    for dtype, values in product(("float32", "float16", "float64"), lines):
        for each in (reductions.sum_of, reductions.mean_of, reductions.product_of):
            yield f"{each.__name__} {dtype} {values} -> {answer_of(each, values, dtype)}"
        for each in (reductions.norm_of, reductions.running_sums, reductions.softmax_of):
            yield f"{each.__name__} {dtype} {values} -> {answer_of(each, values, dtype)}"
    right: tuple[Any, ...] = (1.0, -0.0, float("nan"), None, tensors.Within(1.0, 0.01), (1.0, 2.0))
    found = (1.0, 0.0, -0.0, 1.01, 1.0101, 2.0, float("nan"), float("inf"))
    for one in right:
        yield f"{one}: {[answer_of(tensors.is_right, each, one) for each in found]}"
        yield f"  {[answer_of(tensors.nature, each, one, 'float32') for each in found]}"
        yield f"  {answer_of(tensors.shown, one)}"


def _collectives(_: Path) -> Iterator[str]:
    """What collectives should leave, and the numbers that they are given."""
    from portagpu.suites.search.collectives import model, values

    for dtype in ("float32", "bfloat16", "int8", "uint8", "int64", "bool", "float64"):
        yield f"{dtype}: {answer_of(values.integer_range, dtype)}"
        bitwise = model.BITWISE if dtype in values.INTEGER_BITS else ()
        for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", *bitwise):
            found = []
            for kind in ("small", "exact", "random", "extreme", "special", "zeros"):
                rows = answer_of(values.addends, kind, op, dtype, 5, 3, 1, 4)
                for way in ("", "wider", "nan") if not isinstance(rows, str) else ():
                    asked = model.Sum(op, dtype, (0, 1, 2), way)
                    found.append((rows, model.reduced(asked, [each[0] for each in rows])))
            yield f"  {op}: {digest_of(str(found))} {str(found[:1])[:150]}"


_PAIRS: Final = (
    *((0.0, 1.0), (-0.0, 2.0), (3.0, 2.0), (-7.0, 2.0), (7.0, -2.0), (0.1, 0.3), (-2.5, 3.0)),
    *((1e30, 1e-30), (65504.0, 2.0), (float("inf"), 1.0), (1.0, float("-inf"))),
    *((float("nan"), 1.0), (1e-7, 1e-7), (2.0, float("nan")), (0.0, 0.0), (5.0, 5.0), (-3.0, -3.0)),
)
_WHOLE: Final = ((0, 1), (3, 2), (-7, 2), (7, -2), (100, 27), (-128, 1), (127, 2), (5, 5), (1, 7))
_ROWS: Final = [[1.0, -2.0, 3.0], [0.5, 0.0, -0.0], [8.0, 8.0, 1e-3], [-0.25, 100.0, 2.0]]
_OTHERS: Final = [[2.0, 1.0, -1.0], [0.0, 4.0, 0.5], [-3.0, 8.0, 2.0], [1.0, 1.0, 1.0]]


def _operands(dtype: str) -> list[tuple[Any, Any]]:
    """Two numbers of a dtype each."""
    from portagpu.suites.search.numbers import formats

    kind = formats.kind_of(dtype)
    if kind == "bool":
        return [(one, other) for one in (False, True) for other in (False, True)]
    if kind == "int":
        whole = formats.whole_to_dtype
        return [(whole(one, dtype), whole(other, dtype)) for one, other in _WHOLE]
    if kind == "complex":
        return [(complex(one, other), complex(other, 1)) for one, other in _PAIRS[:9]]
    return [(formats.rounded(one, dtype), formats.rounded(other, dtype)) for one, other in _PAIRS]


def _rights(_: Path) -> Iterator[str]:
    """What the search takes for right, of each operation that it has a model of."""
    import random

    import portagpu
    from portagpu.suites.search.numbers import (
        formats,
        gradients,
        moves,
        pointwise,
        products,
        reductions,
        tensors,
    )

    dtypes = ("float32", "float16", "bfloat16", "int8", "uint8", "int64", "bool", "complex64")
    for name, op in pointwise.OPS.items():
        for dtype in (each for each in dtypes if formats.kind_of(each) in op.kinds.split()):
            pairs = _operands(dtype)
            asked = [(one, other, other) for one, other in pairs]
            found = [answer_of(lambda a, b, c: op.right(a, b, c, dtype), *each) for each in asked]  # noqa: B023
            ended = [answer_of(pointwise.finish, each, dtype) for each in found]
            said = f"{str(found[2:5])[:60]} {digest_of(str((found, ended)))[:8]}"
            yield f"{name} {dtype}: {said}"
    for name, op in reductions.OPS.items():
        for dtype in (each for each in dtypes if formats.kind_of(each) in op.kinds.split()):
            values = [one for one, _ in _operands(dtype)]
            lines = (values[:3], values[1:7], values[:1] * 5, [], values)
            found = [answer_of(op.right, line, dtype) for line in lines]
            yield f"{name} {dtype}: {str(found[0])[:60]} {digest_of(str(found))[:8]}"
    for name, step in gradients.steps().items():
        for dtype in ("float32", "float16", "bfloat16", "float64"):
            back = [[each[0]] for each in _OTHERS] if name in _OF_ROWS else _OTHERS
            found = [answer_of(step.pull, x, y, back, dtype) for x, y in _GRADIENTS]
            yield f"gradient of {name} {dtype}: {str(found[0])[:60]} {digest_of(str(found))[:8]}"
    for op, batch in product(products.OPS, (0, 2)):
        yield f"{op} {batch}: {products._shapes(op, batch, 3, 4, 5)}"
    for dtype, flushes, tame in product(dtypes[:3], (False, True), (False, True)):
        lines = [*_ROWS, [1e30, 1.0, 1e-40], [float("inf"), 1.0, 0.0], [float("nan")] * 3]
        raw = [products._product(x, y, dtype, flushes, tame) for x in lines for y in lines]
        ended = [answer_of(products.finished, each, dtype) for each in raw]
        plus = [
            answer_of(products._plus, each, other, alpha, beta, dtype)
            for each in raw[:9]
            for other, alpha, beta in ((1.5, 2, -1), (float("nan"), 1, 0), (1e38, -1, 2))
        ]
        exact = digest_of(str((raw, ended, plus)))
        yield f"products {dtype} {flushes} {tame}: {str(ended[:3])[:70]} {exact}"
    for mask in products.MASKS:
        allowed, added = products._mask(mask, 3, 5, "float16", 2)
        keys = [*_ROWS, [1.0, 1.0, 1.0]]
        found = [
            answer_of(products._row, [1.0, 0.5, -1.0], keys, keys, one, plus, 0.5, "float32")
            for one, plus in zip(allowed, added, strict=True)
        ]
        yield f"mask {mask}: {allowed} {digest_of(str((added, found)))}"
        yield f"  {digest_of(str(products._hidden_row(keys, 5, 'bfloat16')))}"
    cpu = portagpu.backend("cpu")
    for (name, move), dtype in product(moves.OPS.items(), ("float32", "int16")):
        said = []
        for (m, n), dim, seed in product(((3, 5), (4, 1), (2, 7)), (0, 1), (1, 2, 5)):
            kind = "whole" if dtype == "float32" else "distinct"
            x, other = (tensors.place(cpu, dtype, (m, n), "plain", kind, each) for each in (1, 2))
            rows, others = (
                [each.values[i * n : (i + 1) * n] for i in range(m)] for each in (x, other)
            )
            chance = random.Random(seed)  # noqa: S311 - test data, no secret
            given = (cpu, x.tensor, rows, other.tensor, others, dtype, dim, seed, chance)
            said.append(answer_of(lambda given: move.run(moves.Given(*given))[1], given))  # noqa: B023
        yield f"{name} {dtype}: {str(said[0])[:70]} {digest_of(str(said))}"


_OF_ROWS: Final = ("mean", "amax", "max", "prod")
_GRADIENTS: Final = (
    (_ROWS, _OTHERS),
    (_OTHERS, _ROWS),
    (_ROWS, [[1.0, 2.0, 3.0]]),
    ([[0.0, 0.0, 0.0]] * 4, _ROWS),
)


def _drawn(_: Path) -> Iterator[str]:
    """Programs that are listed or swept on the CPU, and their orders: as long as a seed is one."""
    import random

    import portagpu
    from portagpu.suites.search import area

    cpu = portagpu.backend("cpu")
    for name in area.AREAS:
        found = area.load_area(name)
        if name.startswith("operators") or name in ("collectives-3", "collectives-8"):
            continue  # as many as torch's database has; and as with two ranks
        chance = random.Random(3)  # noqa: S311 - a draw that can be repeated
        sweep, listed = found.sweep(cpu, chance), found.listed(cpu)
        yield f"{name}: {found.ranks} ranks, {found.start_s} s, {found.wait_s} s"
        if sweep is not None:
            some = list(islice(sweep.programs(), 40))
            texts = [area.to_text(name, each) for each in some]
            yield f"  {sweep.total} pairs, {sweep.covered} after 40: {digest_of('|'.join(texts))}"
            yield f"  {area.program_line(some[0])[:100]}"
        if listed is not None:
            ordered = [area.to_text(name, each) for each in found.ordered(listed, 5)]
            first = f"{len(listed)} listed, {found.first_pass(listed)} first"
            yield f"  {first}: {digest_of('|'.join(ordered))} {ordered[0]}"
        calls = [f"{call}{inspect.signature(runs)}" for call, runs in found.calls().items()]
        yield f"  {len(calls)} calls, {digest_of('|'.join(calls))}: {calls[0][:80]}"


MODELS: Final = {
    "numbers.txt": Golden("torch", _numbers),
    "collectives.txt": Golden("torch", _collectives),
    "rights.txt": Golden("torch", _rights),
    "drawn.txt": Golden("torch", _drawn, ("hypothesis",)),
}
