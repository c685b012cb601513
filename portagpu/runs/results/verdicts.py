"""Verdicts, evidence badges, the fold of several verdicts into one, and exit codes.

A run fails closed: an unjudged result never becomes a PASS.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


class Verdict(StrEnum):
    """The outcome of one check, or of a whole run."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    FAIL = "FAIL"
    ERROR = "ERROR"
    """The check itself broke."""
    UNVERIFIED = "UNVERIFIED"
    """Measured, with nothing to judge it by."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """Claimed by the target and not judged here: hardware, tool or an earlier gate is missing."""
    SKIP = "SKIP"
    """Not claimed by the target."""


class Evidence(StrEnum):
    """What a result is based on, from the weakest to the strongest."""

    DECLARED = "declared"
    RECORDED = "recorded"
    LOADED = "loaded"
    COMPILED = "compiled"
    EMULATED = "emulated"
    EXECUTED = "executed"


FAILING: Final = frozenset({Verdict.FAIL, Verdict.ERROR})
INTERRUPTED_EXIT_CODE: Final = 130
"""The exit code of an interrupted run: 128 + SIGINT, as in shells."""

GRAVITY: Final = (
    Verdict.SKIP,
    Verdict.UNVERIFIED,
    Verdict.PASS,
    Verdict.INCONCLUSIVE,
    Verdict.ERROR,
    Verdict.FAIL,
).index
"""Which of two statements about one thing is the graver one: a failure was judged, an error not."""
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
    """The worst of ERROR, FAIL, INCONCLUSIVE and PASS; INCONCLUSIVE if there is none of them.

    SKIP and UNVERIFIED do not count: they neither lower a PASS nor make one. A run with nothing
    else is INCONCLUSIVE, with ``strict`` or without.

    :param verdicts: those of the results, in any order.
    :param strict: whether one UNVERIFIED lowers a PASS to UNVERIFIED; a worse verdict stays.
    """
    present = set(verdicts)
    worst = next((v for v in _WORST_FIRST if v in present), Verdict.INCONCLUSIVE)
    if strict and worst is Verdict.PASS and Verdict.UNVERIFIED in present:
        return Verdict.UNVERIFIED
    return worst


def fold_area(verdicts: Iterable[Verdict]) -> Verdict:
    """The fold of a gate or an area: SKIP or UNVERIFIED where there is nothing else."""
    present = set(verdicts)
    if present == {Verdict.SKIP}:
        return Verdict.SKIP
    if present and present <= {Verdict.SKIP, Verdict.UNVERIFIED}:
        return Verdict.UNVERIFIED
    return fold(present)


def exit_code(verdict: Verdict) -> int:
    """0 for PASS, 1 for FAIL and ERROR, 3 for everything else.

    A run is UNVERIFIED only under ``strict`` and never SKIP; both give 3, so only PASS is green.
    """
    return _EXIT_CODES[verdict]
