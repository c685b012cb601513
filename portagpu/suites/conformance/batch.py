"""One world of ranks for all parameters of a case.

Forking ranks and joining them to a group takes far longer than most collectives. So the first
parameter of a case runs the function for all parameters in one world, and the others take their
values from it. If anything fails there, every parameter runs in its own world, so that one cannot
change another's verdict; the shared failure is part of the verdicts
(``portagpu.suites.conformance.judge``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from portagpu.runs.world import load_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from portagpu.runs.world import Rank, WorldOutcome


def run_all(rank: Rank, place: str, calls: list[dict[str, Any]]) -> list[Any]:
    """What the function returns for each of the arguments; runs on every rank."""
    function = load_function(place)
    return [function(rank, **arguments) for arguments in calls]


@dataclass(slots=True)
class Batches:
    """The values of worlds by what they ran: shared ones, and those of a single call."""

    outcomes: dict[str, WorldOutcome] = field(default_factory=dict)
    alone: dict[str, list[Any]] = field(default_factory=dict)

    def keep(self, place: str, n: int, arguments: Mapping[str, Any], values: list[Any]) -> None:
        """Keep the values of a world for other cases that run the same call."""
        self.alone[f"{place} {n} {arguments}"] = values

    def values(
        self,
        calls: Sequence[dict[str, Any]],
        place: str,
        n: int,
        arguments: dict[str, Any],
        run: Callable[[str, dict[str, Any]], WorldOutcome],
    ) -> tuple[list[Any] | None, WorldOutcome | None]:
        """(each rank's value, None) from a world of all ``calls``, or (None, what failed).

        ``run(place, arguments)`` runs a function in a new world. Both are None if ``arguments`` are
        the only call: then nothing is batched.
        """
        known = self.alone.get(f"{place} {n} {arguments}")
        if known is not None:
            return known, None
        if len(calls) < 2:
            return None, None
        key = f"{place} {n} {calls}"
        outcome = self.outcomes.get(key)
        if outcome is None:
            every = {"place": place, "calls": calls}
            outcome = self.outcomes[key] = run(f"{__name__}:run_all", every)
        if not outcome.ok:
            return None, outcome
        at = calls.index(arguments)
        return [value[at] for value in outcome.values], None


def batched_calls(
    mine: Mapping[str, Any], siblings: Iterable[Mapping[str, Any]], arguments: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The arguments of all selected forms of a case that differ only in ``arguments``.

    ``mine`` and ``siblings`` are the parameters of the present form and of all selected ones. There
    is only the present call if no parameter is among the arguments, or their values differ.
    """
    varied = {name for name in mine if name in arguments}
    if any(mine[name] != arguments[name] for name in varied):
        return [dict(arguments)]
    calls: list[dict[str, Any]] = []
    for each in siblings:
        if all(each[name] == mine[name] for name in mine if name not in varied):
            call = {**arguments, **{name: each[name] for name in varied}}
            if call not in calls:
                calls.append(call)
    return calls
