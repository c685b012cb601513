"""From what a case did to its verdict, given what backend and target claim."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.results.expectations import exactly
from portagpu.results.run import Evidence, Result, Verdict
from portagpu.suite.cases import SUITE
from portagpu.suite.day import today
from portagpu.suite.ids import base_id, matches
from portagpu.world import RankState

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from datetime import date

    from portagpu.contract import Override
    from portagpu.suite.machine import DeviceUnderTest, Excuse, Listed, TargetClaims

OWN_AREA: Final = "suite"
"""The area of results about the suite itself: broken case files, excuses that do not fit."""

UNOPENED: Final = "device"
"""The name, in that area, of a further device that could not be judged at all."""

FAILED: Final = ("failed", "raised", "lost")
"""The kinds of outcome of a case that did not hold; see :func:`what_happened` of the session."""
_JUDGED: Final = frozenset({Verdict.PASS, Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE})
_RAN: Final = frozenset({Verdict.PASS, Verdict.FAIL, Verdict.ERROR, Verdict.UNVERIFIED})

_DOES_NOT_SHOW: Final[Mapping[str, str]] = {
    "collectives": "ranks of one machine: nothing about several machines or their network",
    "memory": "this process only, and small amounts: nothing about a device that is full",
    "streams": "that work is ordered, not that it overlaps",
    "precision": "values and rounding, not speed",
}


def judge(case: Listed, outcome: Mapping[str, Any], machine: DeviceUnderTest) -> Result:
    """The result of a case that ran on the machine that is judged."""
    override = case.override_of(machine.overrides)
    if override is None:
        verdict, reason = _verdict(case, outcome, machine)
    else:
        verdict, reason = _overridden(override, outcome, machine.backend)
        claims = bool(case.capability) and machine.capabilities.issuperset(case.capability)
        if claims and outcome["kind"] == "unsupported" and override.outcome == "undefined":
            # what is claimed and refused is no question of values
            verdict, reason = _verdict(case, outcome, machine)
    verdict, reason = _held_to_target(case, verdict, reason, machine)
    shared = outcome.get("shared_world")
    if verdict is Verdict.PASS and shared is not None and shared["state"] != RankState.RAISED:
        alone = "it passed in a world of its own, but not in one with its other parameters"
        verdict, reason = Verdict.UNVERIFIED, f"{alone}: {shared['sentence']}"
    observed = list(outcome.get("observed", ()))
    return _result(
        case, verdict, reason, outcome["duration_s"], {"observed": observed} if observed else {}
    )


def _verdict(
    case: Listed, outcome: Mapping[str, Any], machine: DeviceUnderTest
) -> tuple[Verdict, str]:
    kind, reason = outcome["kind"], outcome["reason"]
    missing = [each for each in case.capability if each not in machine.capabilities]
    if kind == "error":
        return Verdict.ERROR, reason
    if kind == "not-claimed":
        return Verdict.SKIP, reason
    if missing:
        lacks = f"{machine.backend} does not claim {' or '.join(missing)}"
        if kind == "not-here":
            return Verdict.SKIP, f"{lacks}, and this machine could not judge it: {reason}"
        return _unclaimed(lacks, kind, reason)
    if kind == "not-here":
        return Verdict.INCONCLUSIVE, reason
    if kind == "unsupported":
        claimed = (
            f"{machine.backend} claims {' and '.join(case.capability)}"
            if case.capability
            else "every backend must do this"
        )
        return Verdict.FAIL, f"{claimed}, but it raised Unsupported: {reason}"
    if case.outcome == "undefined" and kind not in ("raised", "lost"):
        seen = "; ".join(outcome.get("observed", ())) or reason or "nothing to record"
        return Verdict.SKIP, f"undefined, recorded and not judged: {seen}"
    if kind in FAILED:
        return Verdict.FAIL, reason
    return Verdict.PASS, ""


def _overridden(
    override: Override, outcome: Mapping[str, Any], backend: str
) -> tuple[Verdict, str]:
    kind, reason = outcome["kind"], outcome["reason"]
    if kind == "error":
        return Verdict.ERROR, reason
    if kind == "not-here":
        return Verdict.INCONCLUSIVE, reason
    declares = f"{backend} declares it {override.outcome} ({override.reason}, {override.url})"
    if kind == "not-claimed":
        return Verdict.SKIP, reason
    if override.outcome == "undefined":
        if kind in ("raised", "lost"):
            return Verdict.FAIL, f"{declares}, which is about values: {reason}"
        seen = "; ".join(outcome.get("observed", ())) or reason or "it passed"
        return Verdict.UNVERIFIED, f"{declares}, recorded and not judged: {seen}"
    if kind == "unsupported":
        return Verdict.SKIP, f"{declares}; it raised Unsupported, as it must"
    return Verdict.FAIL, f"{declares}, so it must raise Unsupported; instead it {_did(outcome)}"


def _did(outcome: Mapping[str, Any]) -> str:
    return f"failed: {outcome['reason']}" if outcome["kind"] in FAILED else "passed"


def _unclaimed(lacks: str, kind: str, reason: str) -> tuple[Verdict, str]:
    if kind == "unsupported":
        return Verdict.SKIP, f"{lacks}; it raised Unsupported, as it must"
    did = f"failed: {reason}" if kind in FAILED else "did what it does not claim"
    return Verdict.FAIL, f"{lacks}, so it must raise Unsupported; instead it {did}"


def _held_to_target(
    case: Listed, verdict: Verdict, reason: str, machine: DeviceUnderTest
) -> tuple[Verdict, str]:
    """What the target claims and the backend does not is open; the other way round is no claim."""
    target = machine.target
    if target is None:
        return verdict, reason
    unclaimed = [each for each in case.capability if each not in target.claims]
    if verdict is Verdict.SKIP and case.capability and not unclaimed:
        if any(each not in machine.capabilities for each in case.capability):
            named = " and ".join(case.capability)
            return Verdict.INCONCLUSIVE, f"{target.id} claims {named}, but here {reason}"
    elif verdict is Verdict.PASS and unclaimed:
        return Verdict.SKIP, f"{target.id} does not claim {' or '.join(unclaimed)}; it passed"
    return verdict, reason


def elsewhere(case: Listed, machine: DeviceUnderTest, target: TargetClaims) -> Result:
    """The result of a case of a target that is not this machine: nothing ran."""
    unclaimed = [each for each in case.capability if each not in target.claims]
    if unclaimed:
        reason = f"{target.id} does not claim {' or '.join(unclaimed)}"
        return _result(case, Verdict.SKIP, reason)
    return _result(case, Verdict.INCONCLUSIVE, f"this machine is {machine.title}, not {target.id}")


def not_begun(case: Listed, reason: str) -> Result:
    """The result of a case that a run had no time left for."""
    return _result(case, Verdict.INCONCLUSIVE, reason)


def broken_file(name: str, reason: str) -> Result:
    """The error of a case file, or of a declaration in it."""
    return Result(
        id=f"{OWN_AREA}/{name}",
        suite=SUITE,
        area=OWN_AREA,
        verdict=Verdict.ERROR,
        reason=f"the suite is broken: {reason}",
    )


def unopened(device: str, reason: str) -> Result:
    """The error of a further device that could not be judged at all."""
    result = broken_file(UNOPENED, "")
    return replace(result, device=device, reason=reason)


def gone(name: str) -> Result:
    """The result of what failed in an earlier run and is no case that can run again by itself."""
    return Result(
        id=name,
        suite=SUITE,
        area=OWN_AREA,
        verdict=Verdict.INCONCLUSIVE,
        reason="it failed before and is no case that can run again: run the whole suite",
    )


def excused(
    result: Result, excuses: Sequence[Excuse], day: date | None = None, *, lost: bool = False
) -> Result:
    """``result``, or SKIP in its place when it failed as the target declares, before the expiry.

    No excuse is for an ERROR, nor for what was ``lost``: a case or a rank that hung or died.
    """
    if not result.failed:
        return result
    day = day or today()
    for excuse in excuses:
        if not matches(excuse.pattern, result.id):
            continue
        told = f"{excuse.reason}, {excuse.url}"
        if day > excuse.expires:
            reason = f"{result.reason} (its excuse expired on {excuse.expires}: {told})"
            return _replace(result, result.verdict, reason)
        if lost or result.verdict is Verdict.ERROR:
            reason = f"{result.reason} (the expected failure excuses no death and no hang: {told})"
            return _replace(result, result.verdict, reason)
        reason = f"expected to fail until {excuse.expires} ({told}): {result.reason}"
        return _replace(result, Verdict.SKIP, reason)
    return result


def audit(
    excuses: Sequence[Excuse], judged: Mapping[str, Verdict], day: date | None = None
) -> list[Result]:
    """One ERROR for every excuse that has expired, fits no case, or whose cases all pass.

    ``judged`` has the verdict of every case of a complete run before any was excused.
    """
    day = day or today()
    found = []
    for number, excuse in enumerate(excuses, 1):
        verdicts = [verdict for full, verdict in judged.items() if matches(excuse.pattern, full)]
        problem = ""
        if day > excuse.expires:
            problem = f"expired on {excuse.expires}: solve it, or state a new day"
        elif not verdicts:
            problem = "fits no case: correct the pattern or remove it"
        elif all(verdict is Verdict.PASS for verdict in verdicts):
            problem = "fits only cases that pass: remove it"
        if problem:
            result = broken_file(f"expected-failure-{number}", "")
            reason = f"the expected failure {excuse.pattern!r} ({excuse.url}) {problem}"
            found.append(_replace(result, Verdict.ERROR, reason))
    return found


def unused(overrides: Sequence[Override], judged: Mapping[str, Verdict]) -> list[Result]:
    """One ERROR for every override that decides no case of a complete run."""
    found = []
    left = set(judged)
    for number, override in enumerate(overrides, 1):
        fits = {full for full in judged if matches(override.pattern, full)}
        problem = ""
        if not fits:
            problem = "fits no case: correct the pattern or remove it"
        elif not fits & left:
            problem = "decides no case, because others stand before it: remove it"
        left -= fits
        if problem:
            result = broken_file(f"override-{number}", "")
            told = f"the backend's override {override.pattern!r} ({override.url}) {problem}"
            found.append(_replace(result, Verdict.ERROR, told))
    return found


def unexplained(shared: Mapping[str, Mapping[str, str]], failed: Container[str]) -> list[Result]:
    """One result for every case whose shared world failed, and none of whose forms failed alone.

    ``shared`` says of a case, by its id without parameters, how that world failed; ``failed`` are
    such ids of the cases that failed. What raised or died, and does not when it is tried again, is
    a failure of the device or its library all the same. A world that ran out of its time may have
    met a busy machine: it is not judged.
    """
    found = []
    for case, how in shared.items():
        if case in failed:
            continue
        hung = how["state"] == RankState.HUNG
        reason = f"in one world for all its parameters {how['sentence']}; alone each passed"
        result = broken_file(f"world-of-{case.replace('/', '-')}", "")
        verdict = Verdict.INCONCLUSIVE if hung else Verdict.FAIL
        evidence = () if hung else (Evidence.EXECUTED,)
        found.append(
            replace(
                result,
                verdict=verdict,
                reason=f"{case}: {reason}",
                evidence=evidence,
                value=str(how["state"]),
                expected=exactly(str(RankState.DONE), "every rank ends"),
            )
        )
    return found


def not_judged_again(device: str) -> Result:
    """The result of a device on which cases failed before, and that this run left out."""
    reason = f"cases failed on {device} before, and it was not judged: name it with --index"
    result = broken_file(f"not-again-{device.replace(':', '-')}", "")
    return replace(_replace(result, Verdict.INCONCLUSIVE, reason), device=device)


def idle_claims(
    machine: DeviceUnderTest, cases: Sequence[Listed], verdicts: Mapping[str, Verdict]
) -> list[Result]:
    """An INCONCLUSIVE result for every capability that is claimed and that no case judged.

    Overrides may have set its cases aside, or they need another capability that is not claimed.
    """
    found = []
    for claim in sorted(machine.capabilities):
        about = [each.id for each in cases if claim in each.capability]
        if about and not any(verdicts.get(each) in _JUDGED for each in about):
            reason = (
                f"{machine.backend} claims {claim}, and none of its {len(about)} cases was judged"
            )
            result = broken_file(f"unjudged-{claim}", "")
            found.append(_replace(result, Verdict.INCONCLUSIVE, reason))
    return found


def unjudged(results: Sequence[Result], set_aside: Mapping[str, int]) -> list[Result]:
    """An INCONCLUSIVE result for every area of which more cases were set aside than judged.

    ``set_aside`` is how many cases of each area an override decided or an excuse covered.
    """
    counted = Counter(each.area for each in results if each.verdict in _JUDGED)
    found = []
    for area, count in set_aside.items():
        if count > counted[area]:
            reason = (
                f"overrides or expected failures set {count} cases of {area} aside, and "
                f"{counted[area]} were judged: most of an area has to be"
            )
            result = broken_file(f"unjudged-{area}", "")
            found.append(_replace(result, Verdict.INCONCLUSIVE, reason))
    return found


def _result(
    case: Listed,
    verdict: Verdict,
    reason: str,
    duration_s: float = 0.0,
    extra: Mapping[str, Any] | None = None,
) -> Result:
    earned = case.evidence if verdict in _RAN else None
    judged = verdict in (Verdict.PASS, Verdict.FAIL)
    return Result(
        id=case.id,
        suite=SUITE,
        area=case.area,
        verdict=verdict,
        evidence=() if earned is None else (earned,),
        reason=reason,
        expected=exactly(case.spec, "docs/cases.md") if judged and case.spec else None,
        does_not_show=case.does_not_show or _DOES_NOT_SHOW.get(case.area, ""),
        duration_s=duration_s,
        extra={**(extra or {}), "case": base_id(case.id)},
    )


def _replace(result: Result, verdict: Verdict, reason: str) -> Result:
    return replace(result, verdict=verdict, reason=reason)
