"""The verdict of a case, from its outcome and what backend and target claim.

A target may expect failures until a day. A clock that was set back does not revive an expired one.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.runs.results.advice import HUNG
from portagpu.runs.results.run import Evidence, Result, Verdict
from portagpu.runs.results.wording import exactly
from portagpu.runs.world import RankState
from portagpu.suites.conformance.cases import SUITE, base_id, matches

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from portagpu.devices.contract import Override
    from portagpu.facts.targets import ExpectedFailure
    from portagpu.suites.conformance.messages import DeviceUnderTest, ListedCase, TargetClaims


OWN_AREA: Final = "suite"
"""The area of results about the suite itself: broken case files, stale expected failures."""

UNOPENED_DEVICE: Final = "device"
"""The name, in that area, of the result for a further device that could not be opened."""

LOST_KINDS: Final = ("lost", "hung")
"""The kinds of outcome that no excuse covers: a rank died, or something did not end in time."""
FAILED_KINDS: Final = ("failed", "raised", *LOST_KINDS)
"""The kinds of outcome of a case that did not hold; see ``session.outcome_of_error``."""
_NO_VALUE: Final = ("raised", *LOST_KINDS)
_JUDGED: Final = frozenset({Verdict.PASS, Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE})
_RAN: Final = frozenset({Verdict.PASS, Verdict.FAIL, Verdict.ERROR, Verdict.UNVERIFIED})

_DOES_NOT_SHOW: Final[Mapping[str, str]] = {
    "collectives": "ranks of one machine: nothing about several machines or their network",
    "parallel": "ranks of one machine: nothing about several machines or their network",
    "memory": "this process only, and small amounts: nothing about a device that is full",
    "streams": "that work is ordered, not that it overlaps",
    "precision": "values and rounding, not speed",
}
_NO_WORLD: Final = "anything of ranks: the case started none"
_WRITTEN_OFTEN: Final = ("/tmp", "/run", "/var/log", "/var/tmp", "/etc")  # noqa: S108
"""Folders that a running machine changes all the time."""


def judge(case: ListedCase, outcome: Mapping[str, Any], device: DeviceUnderTest) -> Result:
    """The result of a case that ran on ``device``."""
    override = case.first_override(device.overrides)
    if override is None:
        verdict, reason = _verdict(case, outcome, device)
    else:
        verdict, reason = _verdict_with_override(override, outcome, device.backend)
        claims = bool(case.capability) and device.capabilities.issuperset(case.capability)
        if claims and outcome["kind"] == "unsupported" and override.outcome == "undefined":
            # refusing what is claimed is not a question of values
            verdict, reason = _verdict(case, outcome, device)
    verdict, reason = _verdict_by_target(case, verdict, reason, device)
    shared = outcome.get("shared_world")
    if verdict is Verdict.PASS and shared is not None and shared["state"] != RankState.RAISED:
        alone = "it passed in a world of its own, but not in one with its other parameters"
        verdict, reason = Verdict.UNVERIFIED, f"{alone}: {shared['sentence']}"
    observed = list(outcome.get("observed", ()))
    if outcome.get("no_world"):
        case = replace(case, evidence=None, does_not_show=_NO_WORLD)
    extra = {"observed": observed} if observed else {}
    result = _result(case, verdict, reason, outcome["duration_s"], extra)
    # time alone says nothing of the hardware: the advice is that of a hang
    hung = result.failed and outcome["kind"] == "hung"
    return replace(result, value=HUNG) if hung else result


def _verdict(
    case: ListedCase, outcome: Mapping[str, Any], device: DeviceUnderTest
) -> tuple[Verdict, str]:
    kind, reason = outcome["kind"], outcome["reason"]
    missing = [each for each in case.capability if each not in device.capabilities]
    if kind == "error":
        return Verdict.ERROR, reason
    if kind == "starved":
        return Verdict.INCONCLUSIVE, reason
    if kind == "not-claimed":
        return Verdict.SKIP, reason
    if missing:
        lacks = f"{device.backend} does not claim {' or '.join(missing)}"
        if kind == "not-here":
            return Verdict.SKIP, f"{lacks}, and this machine could not judge it: {reason}"
        return _verdict_without_claim(lacks, kind, reason)
    if kind == "not-here":
        return Verdict.INCONCLUSIVE, reason
    if kind == "unsupported":
        claimed = (
            f"{device.backend} claims {' and '.join(case.capability)}"
            if case.capability
            else "every backend must do this"
        )
        return Verdict.FAIL, f"{claimed}, but it raised Unsupported: {reason}"
    if case.outcome == "undefined" and kind not in _NO_VALUE:
        seen = "; ".join(outcome.get("observed", ())) or reason or "nothing to record"
        return Verdict.SKIP, f"undefined, recorded and not judged: {seen}"
    if kind in FAILED_KINDS:
        return Verdict.FAIL, reason
    return Verdict.PASS, ""


def _verdict_with_override(
    override: Override, outcome: Mapping[str, Any], backend: str
) -> tuple[Verdict, str]:
    kind, reason = outcome["kind"], outcome["reason"]
    if kind == "error":
        return Verdict.ERROR, reason
    if kind in ("not-here", "starved"):
        return Verdict.INCONCLUSIVE, reason
    declares = f"{backend} declares it {override.outcome} ({override.reason}, {override.url})"
    if kind == "not-claimed":
        return Verdict.SKIP, reason
    if override.outcome == "undefined":
        if kind in _NO_VALUE:
            return Verdict.FAIL, f"{declares}, which is about values: {reason}"
        seen = "; ".join(outcome.get("observed", ())) or reason or "it passed"
        return Verdict.UNVERIFIED, f"{declares}, recorded and not judged: {seen}"
    if kind == "unsupported":
        return Verdict.SKIP, f"{declares}; it raised Unsupported, as it must"
    return (
        Verdict.FAIL,
        f"{declares}, so it must raise Unsupported; instead it {_what_it_did(outcome)}",
    )


def _what_it_did(outcome: Mapping[str, Any]) -> str:
    return f"failed: {outcome['reason']}" if outcome["kind"] in FAILED_KINDS else "passed"


def _verdict_without_claim(lacks: str, kind: str, reason: str) -> tuple[Verdict, str]:
    if kind == "unsupported":
        return Verdict.SKIP, f"{lacks}; it raised Unsupported, as it must"
    did = f"failed: {reason}" if kind in FAILED_KINDS else "did what it does not claim"
    return Verdict.FAIL, f"{lacks}, so it must raise Unsupported; instead it {did}"


def _verdict_by_target(
    case: ListedCase, verdict: Verdict, reason: str, device: DeviceUnderTest
) -> tuple[Verdict, str]:
    """INCONCLUSIVE for a claim of the target that the backend lacks; SKIP for an extra PASS."""
    target = device.target
    if target is None:
        return verdict, reason
    unclaimed = [each for each in case.capability if each not in target.claims]
    if verdict is Verdict.SKIP and case.capability and not unclaimed:
        if any(each not in device.capabilities for each in case.capability):
            named = " and ".join(case.capability)
            return Verdict.INCONCLUSIVE, f"{target.id} claims {named}, but here {reason}"
    elif verdict is Verdict.PASS and unclaimed:
        return Verdict.SKIP, f"{target.id} does not claim {' or '.join(unclaimed)}; it passed"
    return verdict, reason


def other_target_result(case: ListedCase, device: DeviceUnderTest, target: TargetClaims) -> Result:
    """The result of a case if the wanted target is not this machine: nothing ran."""
    unclaimed = [each for each in case.capability if each not in target.claims]
    if unclaimed:
        reason = f"{target.id} does not claim {' or '.join(unclaimed)}"
        return _result(case, Verdict.SKIP, reason)
    return _result(case, Verdict.INCONCLUSIVE, f"this machine is {device.title}, not {target.id}")


def not_begun_result(case: ListedCase, reason: str) -> Result:
    """The result of a case that did not start before the run was stopped."""
    return _result(case, Verdict.INCONCLUSIVE, reason)


def suite_result(name: str, verdict: Verdict, reason: str, device: str | None = None) -> Result:
    """A result about the suite itself."""
    return Result(
        id=f"{OWN_AREA}/{name}",
        suite=SUITE,
        area=OWN_AREA,
        verdict=verdict,
        reason=reason,
        device=device,
    )


def suite_error(name: str, reason: str) -> Result:
    """The error of a case file, or of a declaration in it."""
    return suite_result(name, Verdict.ERROR, f"the suite is broken: {reason}")


def unopened_device(device: str, reason: str) -> Result:
    """The error of a further device that could not be judged at all."""
    return suite_result(UNOPENED_DEVICE, Verdict.ERROR, reason, device)


def missing_case(name: str) -> Result:
    """The result for an id that failed in an earlier run and is not a case."""
    return Result(
        id=name,
        suite=SUITE,
        area=OWN_AREA,
        verdict=Verdict.INCONCLUSIVE,
        reason="it failed before and is not a case, so it cannot run again: run the whole suite",
    )


def unused_overrides(overrides: Sequence[Override], judged: Mapping[str, Verdict]) -> list[Result]:
    """One ERROR for every override that decided no case of a complete run."""
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
            reason = f"the backend's override {override.pattern!r} ({override.url}) {problem}"
            found.append(suite_result(f"override-{number}", Verdict.ERROR, reason))
    return found


def shared_world_failures(
    shared: Mapping[str, Mapping[str, str]], failed: Container[str]
) -> list[Result]:
    """One result for every case whose shared world failed although none of its forms failed alone.

    ``shared`` maps a case's id without parameters to how its world failed; ``failed`` are such ids
    of the cases that failed. A rank that raised or died, and does not do so again, is still a
    failure of the device or its library. A world that exceeded its time limit may have met a busy
    machine: it is not judged.
    """
    found = []
    for case, how in shared.items():
        if case in failed:
            continue
        hung = how["state"] == RankState.HUNG
        reason = f"in one world for all its parameters {how['sentence']}; alone each passed"
        verdict = Verdict.INCONCLUSIVE if hung else Verdict.FAIL
        found.append(
            replace(
                suite_result(f"world-of-{case.replace('/', '-')}", verdict, f"{case}: {reason}"),
                evidence=() if hung else (Evidence.EXECUTED,),
                value=str(how["state"]),
                expected=exactly(str(RankState.DONE), "every rank ends"),
            )
        )
    return found


def device_not_rejudged(device: str) -> Result:
    """The result for a device that this run left out although cases failed on it before."""
    reason = f"cases failed on {device} before, and it was not judged: name it with --index"
    name = f"not-again-{device.replace(':', '-')}"
    return suite_result(name, Verdict.INCONCLUSIVE, reason, device)


def unjudged_claims(
    device: DeviceUnderTest, cases: Sequence[ListedCase], verdicts: Mapping[str, Verdict]
) -> list[Result]:
    """An INCONCLUSIVE result for every claimed capability that no case judged.

    Its cases may be overridden, or may need another capability that is not claimed.
    """
    found = []
    for claim in sorted(device.capabilities):
        about = [each.id for each in cases if claim in each.capability]
        if about and not any(verdicts.get(each) in _JUDGED for each in about):
            reason = (
                f"{device.backend} claims {claim}, and none of its {len(about)} cases was judged"
            )
            found.append(suite_result(f"unjudged-{claim}", Verdict.INCONCLUSIVE, reason))
    return found


def mostly_unjudged_areas(results: Sequence[Result], set_aside: Mapping[str, int]) -> list[Result]:
    """An INCONCLUSIVE result for every area with more cases set aside than judged.

    ``set_aside`` is how many cases of each area an override or an expected failure decided.
    """
    counted = Counter(each.area for each in results if each.verdict in _JUDGED)
    found = []
    for area, count in set_aside.items():
        if count > counted[area]:
            reason = (
                f"overrides or expected failures set {count} cases of {area} aside, and "
                f"{counted[area]} were judged: most of an area has to be"
            )
            found.append(suite_result(f"unjudged-{area}", Verdict.INCONCLUSIVE, reason))
    return found


def _result(
    case: ListedCase,
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
        expected=exactly(case.spec, "docs/book/cases.md") if judged and case.spec else None,
        does_not_show=case.does_not_show or _DOES_NOT_SHOW.get(case.area, ""),
        duration_s=duration_s,
        extra={**(extra or {}), "case": base_id(case.id)},
    )


def today(folders: Iterable[Path | str] | None = None) -> date:
    """The day in UTC: the clock's, or the last change of one of ``folders`` if that is later.

    The default folders are ones that a machine changes all the time, and this installation's. A
    folder from the future makes a failure expire early, which is reported, and never late.
    """
    if folders is None:
        folders = (*_WRITTEN_OFTEN, tempfile.gettempdir(), Path(__file__).parent)
    seconds = [datetime.now(UTC).timestamp()]
    for folder in folders:
        with contextlib.suppress(OSError):
            seconds.append(Path(folder).stat().st_mtime)
    with contextlib.suppress(ValueError, OverflowError):  # a file system's year 10000
        return datetime.fromtimestamp(max(seconds), UTC).date()
    return date.max


def apply_expected_failures(
    result: Result,
    failures: Sequence[ExpectedFailure],
    day: date | None = None,
    *,
    lost: bool = False,
) -> Result:
    """``result``, or SKIP if it failed as the target expects and the day has not passed.

    An ERROR is never excused, nor what was ``lost``: a case or a rank that hung or died.
    """
    if not result.failed:
        return result
    day = day or today()
    for each in failures:
        if not matches(each.case_id_pattern, result.id):
            continue
        reference = f"{each.reason}, {each.url}"
        if each.expired(day):
            reason = f"{result.reason} (its excuse expired on {each.expires}: {reference})"
            return replace(result, reason=reason)
        if lost or result.verdict is Verdict.ERROR:
            reason = (
                f"{result.reason} (the expected failure excuses no death and no hang: {reference})"
            )
            return replace(result, reason=reason)
        reason = f"expected to fail until {each.expires} ({reference}): {result.reason}"
        return replace(result, verdict=Verdict.SKIP, reason=reason)
    return result


def stale_expected_failures(
    failures: Sequence[ExpectedFailure], judged: Mapping[str, Verdict], day: date | None = None
) -> list[Result]:
    """One ERROR for every expected failure that expired, fits no case, or whose cases all pass.

    ``judged`` has the verdict of every case of a complete run before any was excused.
    """
    day = day or today()
    found = []
    for number, each in enumerate(failures, 1):
        verdicts = [
            verdict for full, verdict in judged.items() if matches(each.case_id_pattern, full)
        ]
        problem = ""
        if each.expired(day):
            problem = f"expired on {each.expires}: solve it, or state a new day"
        elif not verdicts:
            problem = "fits no case: correct the pattern or remove it"
        elif all(verdict is Verdict.PASS for verdict in verdicts):
            problem = "fits only cases that pass: remove it"
        if problem:
            reason = f"the expected failure {each.case_id_pattern!r} ({each.url}) {problem}"
            found.append(suite_result(f"expected-failure-{number}", Verdict.ERROR, reason))
    return found
