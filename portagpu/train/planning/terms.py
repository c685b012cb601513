"""A named part of the memory of one rank, and their sum."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """Moments of a step that may be its peak: which parts are there at once differs."""

    LOSS = "loss"
    """Forward has ended: all activations, logits and loss."""
    BACKWARD = "backward"
    """In the first layer of backward: all activations, and what this layer makes again."""
    STEP = "step"
    """The optimiser's step: all gradients, no activations."""


ALWAYS: Final = tuple(Phase)


class Fit(StrEnum):
    """Whether an estimate fits a memory: also at its most, only at its least, or not even so."""

    YES = "fits"
    MAYBE = "may fit"
    NO = "does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Bytes of one rank: expected, least and most; ``formula`` in words and its ``source``.

    Expected is what eager torch takes, as far as the source tells.
    """

    name: str
    expected: float
    formula: str
    source: str
    least: float
    most: float
    phases: tuple[Phase, ...] = ALWAYS


def exact(
    name: str, size: float, formula: str, source: str, phases: tuple[Phase, ...] = ALWAYS
) -> Term:
    """A term without a range."""
    return ranged(name, (size, size, size), formula, source, phases)


def ranged(
    name: str,
    sizes: tuple[float, float, float],
    formula: str,
    source: str,
    phases: tuple[Phase, ...] = ALWAYS,
) -> Term:
    """A term of (expected, least, most) bytes."""
    expected, least, most = sizes
    return Term(
        name=name,
        expected=expected,
        least=least,
        most=most,
        formula=formula,
        source=source,
        phases=phases,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The memory of the rank that needs most: its terms, and the peak of their sum.

    ``host`` has what is offloaded to the host's memory. ``remarks`` are sentences about what the
    terms leave out. ``others`` are ranks of other stages, whose ranges may be wider.
    """

    terms: tuple[Term, ...]
    host: tuple[Term, ...] = ()
    remarks: tuple[str, ...] = ()
    others: tuple[Estimate, ...] = ()

    def at(self, phase: Phase, kind: str = "expected") -> float:
        """Bytes in that phase; ``kind`` is "expected", "least" or "most"."""
        return float(sum(getattr(each, kind) for each in self.terms if phase in each.phases))

    @property
    def phase(self) -> Phase:
        """The phase of the expected peak."""
        return max(Phase, key=self.at)

    @property
    def expected(self) -> float:
        """Bytes of the expected peak."""
        return self.at(self.phase)

    @property
    def least(self) -> float:
        """Bytes of the peak if every range is at its least, of the rank that has most then."""
        return self._peak("least")

    @property
    def most(self) -> float:
        """Bytes of the peak if every range is at its most, of the rank that has most then."""
        return self._peak("most")

    def _peak(self, kind: str) -> float:
        return max(rank.at(phase, kind) for rank in (self, *self.others) for phase in Phase)

    def of(self, name: str) -> Term | None:
        """The term of that name, None if there is none."""
        return next((each for each in self.terms if each.name == name), None)

    def fits(self, capacity: float) -> Fit:
        """Whether it fits so many bytes."""
        if self.most <= capacity:
            return Fit.YES
        return Fit.MAYBE if self.least <= capacity else Fit.NO
