"""How far a result may be from its float64 reference, and the first element that is further.

``|y^ - y| <= g (S + |y|) + t``: g the growth of the class's roundings
(:func:`portagpu.suites.search.operators.calls.growth`), S what a relative change of the inputs by
one unit roundoff changes, divided by it, and t the underflow of each. S is the sum over the leaves
of the largest change among some random signs (backward error analysis: Higham, section 1.5), and
what such changes of the results of all inner operators change: where terms cancel, as in the
gradient of a correlation of two points, no change of an input shows how large they were. Where the
class does not bound each element by itself, S and ``|y|`` are the largest of the result. What a
device gives is not part of any of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.operators.calls import (
    CANCELLING,
    backward,
    drawing,
    forward,
    growth,
    smallest,
    unit_roundoff,
)
from portagpu.suites.search.operators.database import dtype_name
from portagpu.suites.search.operators.samples import leaf_count, nudged

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from portagpu.suites.search.operators.calls import Result
    from portagpu.suites.search.operators.database import Operator
    from portagpu.suites.search.operators.samples import Sample

_EXACT = """
    clone copy _to_copy detach zeros zeros_like ones ones_like empty empty_like full full_like
    arange scalar_tensor eye new_zeros new_empty new_full new_ones cat stack where gather flip
    roll index_select index select_backward slice_backward masked_fill scatter neg tril triu"""
"""Operators that round nothing."""
SIGNS: Final = (2, 0, 1, 3)
"""Of which changes of a leaf the largest counts: with random signs, plus, minus, and random again.
What is right with the first alone is right: more changes make no bound smaller."""
_MIN_CHANGE: Final = 2.0**-20
"""The smallest relative change whose effect float64 still shows."""
_NO_MATTER: Final = math.inf


def first_difference(
    got: list[Result], reference: Reference, terms: int, each: bool, names: list[str], values: bool
) -> str:
    """What is wrong first: "element 7 of the result is 3.5, not 3.25 (12 times the bound)".

    ``names`` are those of the results; one without a name is not compared. Without ``values``
    shapes and dtypes alone are compared.
    """
    right = reference.right
    if len(got) != len(right):
        return f"there are {len(got)} results, not {len(right)}"
    for number, (one, other) in enumerate(zip(got, right, strict=True)):
        name = names[number]
        found = _kind(one, other, reference.dtype, name)
        if not found and (reference.plain and (reference.gradient or not number)):
            found = _width(one, other, reference.dtype, name)
        if not found and values and name:
            found = _element(one, number, reference, terms, each, name)
        if found:
            return found
    return ""


def _kind(one: Result, other: Result, dtype: Any, name: str) -> str:
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape:
            return f"{name} has the shape {list(one.shape)}, not {list(other.shape)}"
        kinds = [
            (each.dtype.is_complex, each.dtype.is_floating_point or each.dtype.is_complex)
            for each in (one, other)
        ]
        whole = not kinds[0][1] and one.dtype != other.dtype
        if kinds[0] != kinds[1] or whole:
            return (
                f"{name} is {dtype_name(one.dtype)}, not {dtype_name(_narrow(other.dtype, dtype))}"
            )
        return ""
    if type(one) is not type(other):
        return f"{name} is {_shown(one)}, not {_shown(other)}"
    return f"{name} is {one}, not {other}" if isinstance(one, str) and one != other else ""


def _width(one: Result, other: Result, dtype: Any, name: str) -> str:
    """A floating-point result has the pair's width, or float64's where the call asks for it."""
    import torch

    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return ""
    narrow = _narrow(other.dtype, dtype)
    if one.dtype in (narrow, other.dtype):
        return ""
    return f"{name} is {dtype_name(one.dtype)}, not {dtype_name(narrow)}"


def _narrow(wide: Any, dtype: Any) -> Any:
    """The dtype that a widened one stands for in a pair: that of whole numbers is the default."""
    import torch

    if wide == torch.float64:
        if dtype.is_complex:
            return dtype.to_real()
        return dtype if dtype.is_floating_point else torch.get_default_dtype()
    if wide == torch.complex128:
        if dtype.is_complex:
            return dtype
        # there is no complex number of two bfloat16
        halves = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
        real = dtype.is_floating_point and dtype not in halves
        return dtype.to_complex() if real else torch.complex64
    return wide


def _shown(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return f"a tensor of {list(value.shape)}"
    return "nothing" if value is None else f"{value!r}"


def _element(
    one: Result, number: int, reference: Reference, terms: int, each: bool, name: str
) -> str:
    """The worst element of one result, where it is wrong."""
    import torch

    other = reference.right[number]
    if other is None or isinstance(other, str):
        return ""
    one, other = torch.as_tensor(one), torch.as_tensor(other)
    if not one.numel():
        return ""
    if not (other.is_floating_point() or other.is_complex()):
        whole = not (reference.dtype.is_floating_point or reference.dtype.is_complex)
        return _whole(one, other, None if whole else reference.changes, number, name)
    wide = one.to(other.dtype)
    same = (wide == other) | (wide.isnan() & other.isnan())
    if bool(same.all()):
        return ""
    unit = max(reference.unit, unit_roundoff(one.dtype))
    near = (wide - other).abs() <= growth(terms, unit) * other.abs() + smallest(one.dtype)
    if bool((same | near).all()):
        return ""
    first = reference.bound(number, terms, each, one.dtype, signs=1)
    if bool((same | ((wide - other).abs() <= first) & first.isfinite()).all()):
        return ""
    bound = reference.bound(number, terms, each, one.dtype)
    off = (wide - other).abs().double()
    largest = torch.finfo(one.dtype).max
    # what may round beyond the largest number may be infinite, or the difference of two such
    over = other.abs() + bound >= largest
    if not each:
        # a bound of the first order says nothing of a result that has no right digit
        over = over | (bound >= other.abs().nan_to_num(0.0, 0.0).max())
    over = over & ~wide.isfinite()
    right = same | (off <= bound) | over | ~bound.isfinite().expand(off.shape)
    if bool(right.all()):
        return ""
    worst = torch.where(right, 0.0, torch.where(off.isnan(), torch.inf, off / bound))
    place = int(worst.flatten().argmax())
    times, limit = float(worst.flatten()[place]), float(bound.expand(off.shape).flatten()[place])
    return _sentence(one, other, place, name, _times(times, limit))


def _times(times: float, limit: float) -> str:
    if not limit:
        return "has to be equal"
    return f"{times:.3g} times the bound" if times < float("inf") else f"the bound is {limit:.3g}"


def _whole(one: Any, other: Any, changes: Any, number: int, name: str) -> str:
    """The first whole number that is another one, and not by the roundings of inputs."""
    wrong = one != other
    if not bool(wrong.any()):
        return ""
    if changes is not None:
        wrong = wrong & (changes(number) == 0)
        if not bool(wrong.any()):
            return ""
    return _sentence(one, other, int(wrong.flatten().int().argmax()), name, "has to be equal")


def _sentence(one: Any, other: Any, place: int, name: str, how: str) -> str:
    got, right = one.flatten()[place].item(), other.flatten()[place].item()
    where = f"element {place} of {name}" if one.dim() else name
    if isinstance(right, (float, complex)):
        return f"{where} is {got:.6g}, not {right:.6g} ({how})"
    return f"{where} is {got}, not {right} ({how})"


def equal_results(one: Any, other: Any) -> bool:
    """Whether two results have the same dtypes and values."""
    return getattr(one, "dtype", None) == getattr(other, "dtype", None) and same_values(one, other)


def same_values(one: Any, other: Any) -> bool:
    """Whether two results have the same values; NaN is NaN."""
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape:
            return False
        if one.layout != torch.strided:
            one, other = one.to_dense(), other.to_dense()
        equal = (one == other) | ((one != one) & (other != other))
        return bool(equal.all())
    return bool(one == other) or (one != one and other != other)


def inner_results_nudged(eps: float, seed: int) -> AbstractContextManager[Any]:
    """A block in which each new floating-point result is times 1 ± ``eps``, with random signs.

    It is arithmetic with random rounding on the level of operators (Parker, Monte Carlo Arithmetic,
    1997). Views and what is written in place stay as they are.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    signs = torch.Generator().manual_seed(seed)

    def nudged(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        if not (value.is_floating_point() or value.is_complex()):
            return value
        if value.dtype not in (torch.float64, torch.complex128):
            return value
        bits = torch.randint(0, 2, value.shape, generator=signs)
        return value * (1 + eps * (2 * bits - 1))

    class Nudging(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found = func(*args, **(kwargs or {}))
            if not func._schema.returns or not _computes(func):
                return found
            fresh = [each.alias_info is None for each in func._schema.returns]
            if len(fresh) == 1:
                return tree_map(nudged, found) if fresh[0] else found
            both = zip(found, fresh, strict=True)
            return tuple(tree_map(nudged, one) if new else one for one, new in both)

    made: AbstractContextManager[Any] = Nudging()  # type: ignore[no-untyped-call]
    return made


def _computes(func: Any) -> bool:
    return func._schema.name.partition("::")[2] not in _EXACT.split()


@dataclass(slots=True)
class Reference:
    """The right results of a sample, and what roundings of ``dtype`` may do to them."""

    operator: Operator
    sample: Sample
    """Widened, on the CPU."""
    dtype: Any
    unit: float
    """The largest unit roundoff of the sample's dtypes."""
    gradient: bool = False
    plain: bool = False
    """Whether the dtype of the first result is that of the pair: the sample has no other one."""
    right: list[Result] = field(init=False)
    drew: bool = field(init=False)
    """Whether random numbers were used."""
    _largest: list[list[Any]] = field(default_factory=list)
    """By leaf the largest change of each result among the signs that were tried."""
    _tried: int = 0

    def __post_init__(self) -> None:
        with drawing() as drew:
            self.right = self._of(self.sample, 0.0)
        self.drew = drew[0]

    def _of(self, sample: Sample, nudge: float) -> list[Result]:
        if self.gradient:
            return backward(self.operator, sample, self.dtype, widened=True, nudge=nudge)
        return forward(self.operator, sample, widened=True)

    def changes(self, number: int, signs: int = len(SIGNS)) -> Any:
        """For each element of a result what changes of the inputs by 1 change; inf if unknown.

        Of whole numbers inf where one changes, and else 0. At least this many ``signs`` are tried.
        """
        while self._tried < signs:
            self._try(SIGNS[self._tried])
            self._tried += 1
        return sum(largest[number] for largest in self._largest)

    def _try(self, seed: int) -> None:
        import torch

        eps = max(self.unit, _MIN_CHANGE)
        leaves = leaf_count(self.sample, self.dtype)
        # one more for the inner results, and one for the weights of a gradient
        count = leaves + 1 + self.gradient
        shapes = [each.shape if isinstance(each, torch.Tensor) else () for each in self.right]
        while len(self._largest) < count:
            self._largest.append([torch.zeros(each, dtype=torch.float64) for each in shapes])
        for leaf, largest in enumerate(self._largest):
            others = self._nudged(leaf, leaves, eps, seed)
            for k, right in enumerate(self.right):
                other = others[k] if k < len(others) else None
                largest[k] = torch.maximum(largest[k], _change(right, other, eps))

    def _nudged(self, leaf: int, leaves: int, eps: float, seed: int) -> list[Result]:
        """The results with one leaf changed; [] where the changed one is refused."""
        try:
            if leaf < leaves:
                return self._of(nudged(self.sample, self.dtype, eps, leaf, seed), 0.0)
            if leaf > leaves:
                return self._of(self.sample, eps)
            with inner_results_nudged(eps, seed):
                return self._of(self.sample, 0.0)
        except (RuntimeError, ValueError, IndexError, TypeError):
            # whole numbers that are no longer whole say nothing when they are refused; of others
            # nothing is known of the size of a change
            whole = not (self.dtype.is_floating_point or self.dtype.is_complex)
            return self.right if whole else []

    def bound(
        self, number: int, terms: int, each: bool, dtype: Any, signs: int = len(SIGNS)
    ) -> Any:
        """The bound of each element of a floating-point result; 0 where it has to be equal."""
        import torch

        right = self.right[number]
        unit = max(self.unit, unit_roundoff(dtype))
        if self.dtype in (torch.float64, torch.complex128):
            # the reference is rounded as often
            unit *= 2
        size = torch.as_tensor(right).abs().double()
        size = torch.where(size.isfinite(), size, 0.0)
        if not terms:
            return torch.zeros_like(size)
        change = self.changes(number, signs)
        if self.operator.name in CANCELLING and not self.gradient:
            change = change + self.sample.input.abs()
        if not each and size.numel():
            size = size.max()
            known = change[change.isfinite()]
            # one element of which nothing is known says nothing of the others
            change = torch.where(change.isfinite(), known.max() if known.numel() else 0.0, change)
        return growth(terms, unit) * (size + change) + terms * smallest(dtype)


def _change(right: Result, other: Result, eps: float) -> Any:
    """How much a changed result is off, divided by the relative change of its input."""
    import torch

    if other is None and right is None:
        return torch.zeros(())
    one, two = torch.as_tensor(_number(right)), torch.as_tensor(_number(other))
    if one.shape != two.shape:
        return torch.full(one.shape, _NO_MATTER, dtype=torch.float64)
    if not (one.is_floating_point() or one.is_complex()):
        return torch.where(one == two, 0.0, _NO_MATTER).double()
    same = (one == two) | (one.isnan() & two.isnan())
    change = (one - two).abs().double() / eps
    return torch.where(same, 0.0, torch.where(change.isfinite(), change, _NO_MATTER))


def _number(value: Result) -> Any:
    return hash(value) if isinstance(value, str) else math.nan if value is None else value
