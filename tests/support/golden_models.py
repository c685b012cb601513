"""Golden files of the models that random programs are judged by. They need torch."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
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


MODELS: Final = {
    "numbers.txt": Golden("torch", _numbers),
    "collectives.txt": Golden("torch", _collectives),
}
