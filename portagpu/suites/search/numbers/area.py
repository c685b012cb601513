"""The area: each call of a program is one operation and its model, and needs no other call.

Calls are drawn as one integer and a few bytes for many calls. They are the calls at successive
places of a list, with the same bytes: each byte picks one argument. A smaller byte is a simpler
value, and a smaller place and a smaller count leave the call that fails. hypothesis repeats parts
of a program that were drawn the same, and then most programs are made of calls that ran before:
here no two parts are the same.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.area import Area, Rows, Sweep, Swept, once
from portagpu.suites.search.numbers import (
    casts,
    elementwise,
    gradients,
    moves,
    products,
    reductions,
)
from portagpu.suites.search.numbers.formats import FLOATS, FP8, claimed, kind_of
from portagpu.suites.search.numbers.pointwise import OPS
from portagpu.suites.search.numbers.tensors import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Call, Program, Runners


BYTES: Final = 16
"""At least as many as a call has arguments."""
SEEDS: Final = tuple(range(16))
PATTERN_SEEDS: Final = tuple(range(256))
MAX_CALLS: Final = 32
"""Calls of a program."""
DTYPES: Final = {"reduce": 2, "product": 2}
"""An operation is named once for this many of its dtypes, or once for 4; these have more forms."""
CASTS: Final = 40
"""How often the cast is named among the operations, for its many pairs of dtypes."""
ATTENTIONS: Final = 8
CALLS: Final[dict[str, Callable[..., str]]] = {
    "cast": casts.cast_difference,
    "elementwise": elementwise.elementwise_difference,
    "reduce": reductions.reduction_difference,
    "product": products.product_difference,
    "move": moves.indexing_difference,
    "gradient": gradients.gradient_difference,
    "attention": products.attention_difference,
}
_PRODUCT: Final = {
    "kind": products.KINDS,
    "m": products.SIZES,
    "k": products.INNER,
    "n": products.SIZES,
    "layout": LAYOUTS,
    "other_layout": LAYOUTS,
    "alpha": products.ALPHAS,
    "beta": products.BETAS,
    "form": products.FORMS,
    "seed": SEEDS,
}
_ATTENTION: Final = {
    "mask": products.MASKS,
    "queries": products.QUERIES,
    "keys": products.KEYS,
    "width": products.WIDTHS,
    "scale": products.SCALES,
    "heads": (1, 2),
    "layout": products.LAYOUTS,
    "seed": SEEDS,
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One operation: the call, its fixed arguments, and the values of the others.

    ``times`` is how often it is named, and ``copy`` the number of this one: that many bytes are
    left out, so that two in one program differ.
    """

    name: str
    fixed: Mapping[str, Any]
    lists: Mapping[str, Sequence[Any]]
    times: int = field(default=1, kw_only=True)
    copy: int = field(default=0, kw_only=True)

    def call(self, numbers: bytes) -> Call:
        """The call of ``BYTES`` bytes, in which the first values stand for 0."""
        found = dict(self.fixed)
        for place, (name, values) in enumerate(self.lists.items(), self.copy):
            found[name] = values[numbers[place % BYTES] % len(values)]
        return self.name, found


def spread(choices: Sequence[Choice]) -> list[Choice]:
    """Each as often as it is named, at even distances."""
    placed = [
        ((copy + number / len(choices)) / each.times, replace(each, copy=copy))
        for number, each in enumerate(choices)
        for copy in range(each.times)
    ]
    return [each for _, each in sorted(placed, key=lambda pair: pair[0])]


def drawn(choices: Sequence[Choice], *, calls: int) -> SearchStrategy[Program]:
    """Programs of up to ``calls`` calls, most of them of this many."""
    from hypothesis import strategies as st

    every = spread(choices)

    def program(numbers: tuple[int, bytes]) -> Program:
        top, (more, *rest) = numbers
        found = bytes(rest)
        return [every[top - each].call(found) for each in range(min(more + 1, calls))]

    several = st.binary(min_size=BYTES + 1, max_size=BYTES + 1)
    return st.tuples(st.integers(0, len(every) - 1), several).map(program)


class _Numbers(Area):
    name = "numbers"

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        return drawn(_choices(claimed(gpu)), calls=MAX_CALLS)

    def sweep(self, gpu: Backend, chance: Random) -> Sweep:
        calls = [
            Swept(
                each.name,
                each.fixed,
                Rows({name: once(values) for name, values in each.lists.items()}, chance),
                each.times,
            )
            for each in _choices(claimed(gpu))
        ]
        return Sweep(calls, chance, MAX_CALLS)

    def calls(self) -> Runners:
        return CALLS

    def difference(self, rank: Rank, program: Program) -> str:
        with warnings.catch_warnings():
            # torch warns about tensors given as out whose memory it has to allocate again
            warnings.simplefilter("ignore")
            for name, given in program:
                found = CALLS[name](rank.gpu, **given)
                if found:
                    return found
        return ""


def _choices(have: list[str]) -> list[Choice]:
    """All operations in the dtypes that the device has."""
    arithmetic = [each for each in have if each not in FP8]
    floats = [each for each in have if each in FLOATS]
    complexes = [each for each in arithmetic if kind_of(each) in ("float", "complex")]
    found = _of_kinds("elementwise", OPS, arithmetic, _ELEMENTWISE, other=True)
    found += _of_kinds("reduce", reductions.OPS, arithmetic, _REDUCE)
    found += [_choice("product", op, complexes, _PRODUCT) for op in products.OPS]
    found += [_choice("move", op, _moved(op, arithmetic), _MOVE) for op in moves.OPS]
    found += [_choice("gradient", op, floats, _GRADIENT) for op in gradients.OPS]
    masked = {"dtype": floats, **_ATTENTION}
    found.append(Choice("attention", {}, masked, times=ATTENTIONS))
    sources = [each for each in casts.SOURCES if each in have]
    pairs = {"source": sources, "target": sources, **_CAST}
    found.append(Choice("cast", {}, pairs, times=CASTS))
    return [each for each in found if all(each.lists.values())]


def _choice(name: str, op: str, dtypes: list[str], lists: Mapping[str, Any]) -> Choice:
    times = -(-len(dtypes) // DTYPES.get(name, 4))
    return Choice(name, {"op": op}, {"dtype": dtypes, **lists}, times=times)


def _moved(op: str, have: list[str]) -> list[str]:
    """The dtypes in which an operation that moves elements is judged."""
    found = moves.OPS[op]
    barred = (found.ordered and "complex", found.sums and "bool")
    return [each for each in have if kind_of(each) not in barred]


def _of_kinds(
    name: str,
    ops: Mapping[str, Any],
    have: list[str],
    lists: Mapping[str, Any],
    *,
    other: bool = False,
) -> list[Choice]:
    """Operations of a table, each in the dtypes of its kinds."""
    found = []
    for op, each in ops.items():
        dtypes = [dtype for dtype in have if kind_of(dtype) in each.kinds.split()]
        # half of the calls are of one dtype
        both = {"other": [*[""] * len(dtypes), *dtypes]} if other else {}
        found.append(_choice(name, op, dtypes, {**both, **lists}))
    return found


def _lists(shapes: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    """Shapes as JSON has them."""
    return [list(each) for each in shapes]


_ELEMENTWISE: Final = {
    "kind": elementwise.KINDS,
    "shape": _lists(elementwise.SHAPES),
    "layout": LAYOUTS,
    "beside": elementwise.OTHERS,
    "other_layout": LAYOUTS,
    "form": elementwise.FORMS,
    "seed": SEEDS,
}
_REDUCE: Final = {
    "kind": reductions.KINDS,
    "shape": _lists(reductions.SHAPES),
    "dims": _lists(reductions.DIMS),
    "layout": LAYOUTS,
    "form": reductions.FORMS,
    "seed": SEEDS,
}
_MOVE: Final = {
    "kind": moves.KINDS,
    "shape": _lists(moves.SIZES),
    "dim": (0, 1),
    "layout": LAYOUTS,
    "seed": SEEDS,
}
_GRADIENT: Final = {
    "shape": _lists(gradients.SIZES),
    "layout": LAYOUTS,
    "form": gradients.FORMS,
    "seed": SEEDS,
}
_CAST: Final = {
    "kind": casts.KINDS,
    "shape": _lists(casts.SHAPES),
    "layout": LAYOUTS,
    "form": casts.FORMS,
    "seed": PATTERN_SEEDS,
}
AREA: Final = _Numbers()
"""Casts, arithmetic, sums, products, indexing, gradients and attention."""
