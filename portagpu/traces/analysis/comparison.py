"""What a comparison of two summaries says, in words and as a document of JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from portagpu.base.units import quantity
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA: Final = "portagpu.trace-diff/1"

Part = Literal["step", "time", "category", "range", "kernel"]
Word = Literal["slower", "faster", "within noise", "not judged", "only in A", "only in B"]

MIN_STEPS: Final = 3
"""Steps of each side: two have a difference, and no spread."""

REASONS: Final[Mapping[str, str]] = {
    "nothing": "give captures with kernels, or with totals of kernels",
    "totals": "capture events on both sides, or compare the sums of kernels with --allow totals",
    "ranks": "capture as many ranks of both, or compare the mean of all ranks with --allow ranks",
    "devices": "choose one device of each, or compare the mean of all with --allow devices",
    "dropped": "capture again with larger buffers or fewer steps, or use --allow dropped",
    "steps": "annotate the steps of both with one name, or compare whole captures with "
    "--allow steps",
    "work": "capture the same work on both sides, or use --allow work",
    "clocks": "give captures of one tool for each side, or use --allow clocks",
    "kinds": "capture the same kinds of events on both sides",
}
"""Why something is not compared -> what to do instead."""
ALLOWABLE: Final = tuple(reason for reason in REASONS if reason not in ("nothing", "kinds"))
"""Reasons that a user may overrule."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is not compared, and why: ``reason`` is one of REASONS."""

    reason: str
    why: str
    whole: bool = True
    """Whether nothing is compared, or only what ``why`` names is left out."""

    @property
    def instead(self) -> str:
        """What to do instead."""
        return REASONS[self.reason]


@dataclass(frozen=True, slots=True)
class Difference:
    """One time on both sides, in nanoseconds; None where that side has none."""

    part: Part
    name: str
    a_ns: float | None
    b_ns: float | None
    floor_ns: float | None = None
    """The smallest difference that is more than noise; None where nothing repeats."""
    calls_a: float | None = None
    calls_b: float | None = None

    @property
    def change_ns(self) -> float | None:
        """B minus A."""
        return None if self.a_ns is None or self.b_ns is None else self.b_ns - self.a_ns

    @property
    def ratio(self) -> float | None:
        """B by A."""
        return self.b_ns / self.a_ns if self.a_ns and self.b_ns is not None else None

    @property
    def word(self) -> Word:
        """What the difference is."""
        change = self.change_ns
        if change is None:
            return "only in B" if self.a_ns is None else "only in A"
        if self.floor_ns is None:
            return "not judged"
        if abs(change) <= self.floor_ns:
            return "within noise"
        return "slower" if change > 0 else "faster"


@dataclass(frozen=True, slots=True)
class Side:
    """What one side is made of."""

    files: tuple[str, ...]
    ranks: int
    devices: int
    step: str = ""
    steps: int = 0
    """How many steps of that name each rank has, the fewest of all ranks."""
    noise: float | None = None
    """The spread of a step's time between steps, as a share of its median."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """B compared with A."""

    a: Side
    b: Side
    refusals: tuple[Refusal, ...] = ()
    allowed: tuple[Refusal, ...] = ()
    """What would have been refused, and was allowed."""
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """FAIL where B's step is slower than noise explains, PASS where it is not.

        UNVERIFIED without a floor, or where something was allowed that would have been refused.
        """
        if any(each.whole for each in self.refusals):
            return Verdict.INCONCLUSIVE
        step = next((each for each in self.differences if each.part == "step"), None)
        if step is None or step.floor_ns is None or self.allowed:
            return Verdict.UNVERIFIED
        return Verdict.FAIL if step.word == "slower" else Verdict.PASS

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        whole = [each for each in self.refusals if each.whole]
        if whole:
            return f"not compared: {'; '.join(each.why for each in whole)}"
        step = next((each for each in self.differences if each.part == "step"), None)
        if step is None or step.a_ns is None or step.b_ns is None:
            few = any(each.step for each in (self.a, self.b))
            why = f"fewer than {MIN_STEPS} steps" if few else "no steps that repeat"
            return f"not judged: there are {why} on both sides, so no noise floor is known"
        times = (
            f"a step takes {quantity(step.a_ns, 'ns')} in A and {quantity(step.b_ns, 'ns')} in B"
        )
        if step.floor_ns is None or step.change_ns is None:
            return f"{times}: not judged, because fewer than {MIN_STEPS} steps give no noise floor"
        floor = f"the noise floor is {quantity(step.floor_ns, 'ns')}"
        if step.word == "within noise":
            return f"{times}: within noise ({floor})"
        return f"{times}: B is {quantity(abs(step.change_ns), 'ns')} {step.word} ({floor})"

    def to_json(self) -> dict[str, Any]:
        """The document of the schema SCHEMA."""
        return {
            "schema": SCHEMA,
            "verdict": str(self.verdict),
            "sentence": self.sentence,
            "a": _side_json(self.a),
            "b": _side_json(self.b),
            "refusals": [_refusal_json(each) for each in self.refusals],
            "allowed": [_refusal_json(each) for each in self.allowed],
            "notes": list(self.notes),
            "differences": [
                {
                    "part": each.part,
                    "name": each.name,
                    "a_ns": _rounded(each.a_ns),
                    "b_ns": _rounded(each.b_ns),
                    "change_ns": _rounded(each.change_ns),
                    "ratio": None if each.ratio is None else round(each.ratio, 4),
                    "floor_ns": _rounded(each.floor_ns),
                    "verdict": each.word,
                    "calls_a": _rounded(each.calls_a),
                    "calls_b": _rounded(each.calls_b),
                }
                for each in self.differences
            ],
        }


def _side_json(side: Side) -> dict[str, Any]:
    return {
        "files": list(side.files),
        "ranks": side.ranks,
        "devices": side.devices,
        "step": side.step or None,
        "steps": side.steps,
        "noise": None if side.noise is None else round(side.noise, 6),
    }


def _refusal_json(each: Refusal) -> dict[str, Any]:
    return {
        "reason": each.reason,
        "why": each.why,
        "whole": each.whole,
        "instead": each.instead,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
