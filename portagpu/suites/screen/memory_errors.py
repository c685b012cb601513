"""Errors of memory that the machine counts while a screen runs: they stand next to its verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.facts.actions import Action
from portagpu.facts.host.sensors import read_memory_controllers
from portagpu.runs.results.run import Evidence, Result, Verdict
from portagpu.runs.results.wording import exactly
from portagpu.suites.screen.options import SUITE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.machine.inventory.sources import Machine

CORRECTED: Final = "corrected"
UNCORRECTED: Final = "uncorrected"


def error_counts(machine: Machine) -> dict[tuple[str, str], int]:
    """(GPU or memory controller, CORRECTED or UNCORRECTED) -> errors, where they are counted."""
    counted = [
        *((each.pci or each.uuid or "GPU", each.memory) for each in machine.inventory().gpus),
        *((each.name, each) for each in read_memory_controllers(machine.tree)),
    ]
    return {
        (name, kind): number
        for name, each in counted
        for kind in (CORRECTED, UNCORRECTED)
        if (number := getattr(each, kind)) is not None
    }


def errors_result(
    before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int]
) -> Result:
    """What was counted between two readings: FAIL for what ECC could not correct.

    Corrected errors are UNVERIFIED: nothing says how many are too many in this time.
    """
    both = before.keys() & after.keys()
    # a counter that began again while the screen ran has counted what it shows
    new = {
        key: after[key] - before[key] if after[key] >= before[key] else after[key] for key in both
    }
    found = {key: number for key, number in new.items() if number}
    said = "; ".join(f"{number} {kind} on {name}" for (name, kind), number in sorted(found.items()))
    grave = any(kind == UNCORRECTED for _, kind in found)
    verdict, reason, action = Verdict.PASS, "", Action.NONE
    if not both:
        verdict, reason = Verdict.SKIP, "nothing here counts errors of memory"
    elif found:
        verdict = Verdict.FAIL if grave else Verdict.UNVERIFIED
        action = Action.RESET if grave else Action.MONITOR
        reason = f"errors of memory were counted while the screen ran: {said}"
    return Result(
        id="screen/memory-errors",
        suite=SUITE,
        area=SUITE,
        verdict=verdict,
        reason=reason,
        value=float(sum(found.values())) if both else None,
        unit="1" if both else None,
        expected=exactly(0, "errors while the screen ran") if both else None,
        evidence=(Evidence.LOADED,) if both else (),
        does_not_show="errors that ECC does not see",
        extra={"action": str(action)} if found else {},
    )
