"""Verdicts, evidence badges, how verdicts fold into one, and the exit code of each.

A run fails closed: what was not judged never becomes a PASS.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


class Verdict(StrEnum):
    """What is known about one check, or about a whole run."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    FAIL = "FAIL"
    ERROR = "ERROR"
    """The check itself broke."""
    UNVERIFIED = "UNVERIFIED"
    """Measured, and nothing to judge it by."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """Claimed by the target and not judged here: hardware, tool or an earlier gate is missing."""
    SKIP = "SKIP"
    """Not claimed by the target."""


class Evidence(StrEnum):
    """How a result was earned, from the weakest to the strongest."""

    DECLARED = "declared"
    RECORDED = "recorded"
    LOADED = "loaded"
    COMPILED = "compiled"
    EMULATED = "emulated"
    EXECUTED = "executed"


FAILING: Final = frozenset({Verdict.FAIL, Verdict.ERROR})
INTERRUPTED_EXIT_CODE: Final = 130
"""The exit code of a run that the user stopped: 128 + SIGINT, as shells write it."""

_WORST_FIRST: Final = (Verdict.ERROR, Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS)
_EXIT_CODES: Final = {
    Verdict.PASS: 0,
    Verdict.FAIL: 1,
    Verdict.ERROR: 1,
    Verdict.INCONCLUSIVE: 3,
    Verdict.UNVERIFIED: 3,
    Verdict.SKIP: 3,
}


def fold(verdicts: Iterable[Verdict], *, strict: bool = False) -> Verdict:
    """The worst of ERROR, FAIL, INCONCLUSIVE and PASS; INCONCLUSIVE where none of them is there.

    SKIP does not count, and UNVERIFIED is counted beside the verdict: neither can make a PASS
    worse, and neither can make one. So a run that holds nothing else judged nothing and is
    INCONCLUSIVE, with ``strict`` or without. ``strict`` lowers a PASS that has UNVERIFIED results
    beside it to UNVERIFIED; a verdict that is worse already stays as it is.
    """
    present = set(verdicts)
    worst = next((v for v in _WORST_FIRST if v in present), Verdict.INCONCLUSIVE)
    if strict and worst is Verdict.PASS and Verdict.UNVERIFIED in present:
        return Verdict.UNVERIFIED
    return worst


def exit_code(verdict: Verdict) -> int:
    """0 for PASS, 1 for FAIL and ERROR, 3 for everything that was not judged.

    A run is UNVERIFIED only under ``strict`` and never SKIP; both answer 3 so that no verdict but
    PASS is green.
    """
    return _EXIT_CODES[verdict]
