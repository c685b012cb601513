"""How far a result may be from its float64 reference, told by the reference alone.

``|y^ - y| <= g (S + |y|) + t``: g the growth of the class's roundings
(:func:`portagpu.suites.search.operators.classes.growth`), S what a relative change of the inputs by
one unit roundoff changes, divided by it, and t the underflow of each. S is the sum over the leaves
of the largest change among some random signs (backward error analysis: Higham, section 1.5), and
what such changes of the results of all inner operators change: where terms cancel, as in the
gradient of a correlation of two points, no change of an input tells how large they were. Where the
class does not bound each element by itself, S and ``|y|`` are the largest of the result. What a
device gives is no part of any of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.operators.calls import backward, drawing, forward
from portagpu.suites.search.operators.classes import CANCELLING, growth, smallest, unit_roundoff
from portagpu.suites.search.operators.inner import inner_results_nudged
from portagpu.suites.search.operators.samples import leaf_count, nudged

if TYPE_CHECKING:
    from portagpu.suites.search.operators.calls import Result
    from portagpu.suites.search.operators.database import Operator
    from portagpu.suites.search.operators.samples import Sample

SIGNS: Final = (2, 0, 1, 3)
"""Of which changes of a leaf the largest counts: with random signs, plus, minus, and random again.
What is right with the first alone is right: more changes make no bound smaller."""
_LEAST: Final = 2.0**-20
"""The least relative change: float64 still tells what it does."""
_NO_MATTER: Final = math.inf


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

        Of whole numbers inf where one changes, and else 0. At least so many ``signs`` are tried.
        """
        while self._tried < signs:
            self._try(SIGNS[self._tried])
            self._tried += 1
        return sum(largest[number] for largest in self._largest)

    def _try(self, seed: int) -> None:
        import torch

        eps = max(self.unit, _LEAST)
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
            # one element that nothing is known of tells nothing of the others
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
