"""The area: each call of a program is one operation beside its model, and needs no other call."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

from portagpu.search.area import Area
from portagpu.search.numbers import attention, gradients, indexing, products, reductions
from portagpu.search.numbers.casts import FORMS as CAST_FORMS
from portagpu.search.numbers.casts import KINDS, SHAPES, SOURCES, cast_difference
from portagpu.search.numbers.elementwise import FORMS, OTHERS, elementwise_difference
from portagpu.search.numbers.elementwise import SHAPES as ELEMENTWISE_SHAPES
from portagpu.search.numbers.formats import FLOATS, FP8, claimed, kind_of
from portagpu.search.numbers.pointwise import OPS
from portagpu.search.numbers.tensors import LAYOUTS
from portagpu.search.numbers.values import CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import SearchStrategy

    from portagpu.contract import Backend
    from portagpu.search.programs import Call, Program
    from portagpu.world import Rank

SEEDS: Final = tuple(range(16))
PATTERN_SEEDS: Final = tuple(range(64))
MOST_CALLS: Final = 8
CALLS: Final[dict[str, Callable[..., str]]] = {
    "cast": cast_difference,
    "elementwise": elementwise_difference,
    "reduce": reductions.reduction_difference,
    "product": products.product_difference,
    "move": indexing.indexing_difference,
    "gradient": gradients.gradient_difference,
    "attention": attention.attention_difference,
}


class _Numbers(Area):
    name = "numbers"

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        from portagpu.search.strategies import programs

        have = claimed(gpu)
        arithmetic = [each for each in have if each not in FP8]
        calls = [
            _casts(have),
            *_elementwise(arithmetic),
            *_reductions(arithmetic),
            *_products(arithmetic),
            _moves(arithmetic),
            *_gradients([each for each in have if each in FLOATS]),
        ]
        return programs(*calls, most=MOST_CALLS)

    def difference(self, rank: Rank, program: Program) -> str:
        with warnings.catch_warnings():
            # torch warns about complex32 and about the layout of tensors given as out
            warnings.simplefilter("ignore")
            for name, given in program:
                found = CALLS[name](rank.gpu, **given)
                if found:
                    return found
        return ""


def _casts(have: list[str]) -> SearchStrategy[Call]:
    from portagpu.search.strategies import call

    dtypes = [each for each in SOURCES if each in have]
    return call(
        "cast",
        source=dtypes,
        target=dtypes,
        kind=KINDS,
        shape=_lists(SHAPES),
        layout=LAYOUTS,
        form=CAST_FORMS,
        seed=PATTERN_SEEDS,
    )


def _elementwise(have: list[str]) -> list[SearchStrategy[Call]]:
    """One kind of call for the operations of each set of dtypes, so that most calls do something."""
    from portagpu.search.strategies import call

    found = []
    for kinds in sorted({each.kinds for each in OPS.values()}):
        dtypes = [each for each in have if kind_of(each) in kinds.split()]
        names = [name for name, each in OPS.items() if each.kinds == kinds]
        if not dtypes:
            continue
        found.append(
            call(
                "elementwise",
                op=names,
                dtype=dtypes,
                other=dtypes,
                kind=CLASSES,
                shape=_lists(ELEMENTWISE_SHAPES),
                layout=LAYOUTS,
                beside=OTHERS,
                form=FORMS,
                seed=SEEDS,
            )
        )
    return found


def _reductions(have: list[str]) -> list[SearchStrategy[Call]]:
    from portagpu.search.strategies import call

    found = []
    for kinds in sorted({each.kinds for each in reductions.OPS.values()}):
        dtypes = [each for each in have if kind_of(each) in kinds.split()]
        names = [name for name, each in reductions.OPS.items() if each.kinds == kinds]
        if dtypes:
            found.append(
                call(
                    "reduce",
                    op=names,
                    dtype=dtypes,
                    kind=CLASSES,
                    shape=_lists(reductions.SHAPES),
                    dims=_lists(reductions.DIMS),
                    layout=LAYOUTS,
                    form=reductions.FORMS,
                    seed=SEEDS,
                )
            )
    return found


def _products(have: list[str]) -> list[SearchStrategy[Call]]:
    """Of floating-point and complex numbers: torch multiplies no integer matrices on a GPU."""
    from portagpu.search.strategies import call

    dtypes = [each for each in have if kind_of(each) in ("float", "complex")]
    if not dtypes:
        return []
    one = call(
        "product",
        op=products.OPS,
        dtype=dtypes,
        kind=products.KINDS,
        m=products.SIZES,
        k=products.INNER,
        n=products.SIZES,
        layout=LAYOUTS,
        other_layout=LAYOUTS,
        alpha=products.ALPHAS,
        beta=products.BETAS,
        form=products.FORMS,
        seed=SEEDS,
    )
    return [one, one]


def _moves(have: list[str]) -> SearchStrategy[Call]:
    from portagpu.search.strategies import call

    return call(
        "move",
        op=list(indexing.OPS),
        dtype=have,
        kind=indexing.KINDS,
        shape=_lists(indexing.SIZES),
        dim=(0, 1),
        layout=LAYOUTS,
        seed=SEEDS,
    )


def _gradients(have: list[str]) -> list[SearchStrategy[Call]]:
    """Gradients of operations, and attention: for floating-point numbers."""
    from portagpu.search.strategies import call

    if not have:
        return []
    gradient = call(
        "gradient",
        op=gradients.OPS,
        dtype=have,
        shape=_lists(gradients.SIZES),
        layout=LAYOUTS,
        form=gradients.FORMS,
        seed=SEEDS,
    )
    masked = call(
        "attention",
        dtype=have,
        mask=attention.MASKS,
        queries=attention.QUERIES,
        keys=attention.KEYS,
        width=attention.WIDTHS,
        scale=attention.SCALES,
        heads=(1, 2),
        layout=attention.LAYOUTS,
        seed=SEEDS,
    )
    return [gradient, gradient, masked]


def _lists(shapes: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    """Shapes as JSON has them."""
    return [list(each) for each in shapes]


AREA: Final = _Numbers()
