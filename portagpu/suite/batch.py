"""One world of ranks for all parameters of a case.

Forking ranks and joining them to a group takes far longer than most collectives. So the first
parameter of a case runs the function for all of them in one world, and the others take their values
from it. Where anything goes wrong in it, every parameter runs in a world of its own, so that one
cannot spoil another's verdict.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from portagpu.world import load_function

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from portagpu.suite.cases import Case
    from portagpu.world import Rank, WorldOutcome


def run_all(rank: Rank, place: str, calls: list[dict[str, Any]]) -> list[Any]:
    """What the function returns for each of the arguments; runs on every rank."""
    function = load_function(place)
    return [function(rank, **arguments) for arguments in calls]


@dataclass(slots=True)
class Batches:
    """The worlds that ran well, and those that ran for several parameters, by what they ran."""

    outcomes: dict[str, WorldOutcome] = field(default_factory=dict)
    alone: dict[str, list[Any]] = field(default_factory=dict)

    def keep(self, place: str, n: int, arguments: Mapping[str, Any], values: list[Any]) -> None:
        """Remember what a world gave, for other cases that judge the same by another sentence."""
        self.alone[f"{place} {n} {arguments}"] = values

    def values(
        self,
        case: Case,
        place: str,
        n: int,
        arguments: Mapping[str, Any],
        run: Callable[[str, dict[str, Any]], WorldOutcome],
    ) -> tuple[list[Any] | None, str]:
        """(each rank's value, "") from a world of all parameters, or (None, what went wrong).

        ``run(place, arguments)`` runs a function in a new world. Nothing is batched, and nothing
        goes wrong, where the case has no parameter among the arguments.
        """
        known = self.alone.get(f"{place} {n} {arguments}")
        if known is not None:
            return known, ""
        calls = _calls(case, arguments)
        if len(calls) < 2 or arguments not in calls:
            return None, ""
        key = f"{place} {n} {calls}"
        outcome = self.outcomes.get(key)
        if outcome is None:
            every = {"place": place, "calls": calls}
            outcome = self.outcomes[key] = run(f"{__name__}:run_all", every)
        if not outcome.ok:
            return None, outcome.sentence
        at = calls.index(dict(arguments))
        return [value[at] for value in outcome.values], ""


def _calls(case: Case, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The arguments of every parameter of the case, those that are no parameter as they are."""
    varied = [(name, values) for name, values in case.params if name in arguments]
    combinations = itertools.product(*(values for _, values in varied))
    names = [name for name, _ in varied]
    return [{**arguments, **dict(zip(names, each, strict=True))} for each in combinations]
