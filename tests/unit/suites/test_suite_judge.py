"""From outcomes to verdicts: claims of backend and target, and failures that are expected."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from portagpu.base.documents import decode, encode
from portagpu.facts.targets import ExpectedFailure
from portagpu.runs.results.advice import Action, action_of, severity_of
from portagpu.runs.results.run import Result, Run, Verdict
from portagpu.suites.conformance.judge import (
    apply_expected_failures,
    judge,
    other_target_result,
    stale_expected_failures,
    unjudged_claims,
)
from portagpu.suites.conformance.messages import DeviceUnderTest, ListedCase, TargetClaims
from tests.support.result_samples import info

TODAY = date(2030, 6, 15)


def _case(*capability: str, outcome: str = "exact") -> ListedCase:
    return ListedCase(
        id="graphs/x", area="graphs", spec="It works.", capability=capability, outcome=outcome
    )


def _machine(claims: set[str], target_claims: set[str] | None = None) -> DeviceUnderTest:
    target = (
        None if target_claims is None else TargetClaims("some-target", frozenset(target_claims))
    )
    return DeviceUnderTest(
        backend="some",
        name="some:0",
        product="Some Product",
        vendor=None,
        arch="sm_1",
        capabilities=frozenset(claims),
        target=target,
    )


def _judge(kind: str, case: ListedCase, machine: DeviceUnderTest, reason: str = "why") -> Result:
    outcome: dict[str, Any] = {"kind": kind, "reason": reason, "duration_s": 1.0, "observed": []}
    return judge(case, outcome, machine)


BOTH, NEITHER = {"graphs"}, set[str]()


@pytest.mark.parametrize(
    ("kind", "backend_claims", "target_claims", "verdict", "said"),
    [
        ("passed", BOTH, BOTH, Verdict.PASS, ""),
        ("passed", BOTH, None, Verdict.PASS, ""),
        ("passed", BOTH, NEITHER, Verdict.SKIP, "some-target does not claim graphs"),
        ("failed", BOTH, BOTH, Verdict.FAIL, "why"),
        ("failed", BOTH, NEITHER, Verdict.FAIL, "why"),
        ("unsupported", BOTH, BOTH, Verdict.FAIL, "some claims graphs, but it raised Unsupported"),
        ("unsupported", NEITHER, None, Verdict.SKIP, "as it must"),
        ("unsupported", NEITHER, NEITHER, Verdict.SKIP, "as it must"),
        ("unsupported", NEITHER, BOTH, Verdict.INCONCLUSIVE, "some-target claims graphs, but here"),
        ("passed", NEITHER, None, Verdict.FAIL, "so it must raise Unsupported"),
        ("failed", NEITHER, BOTH, Verdict.FAIL, "instead it failed: why"),
        ("not-claimed", NEITHER, None, Verdict.SKIP, "why"),
        ("not-here", NEITHER, None, Verdict.SKIP, "does not claim graphs"),
        ("raised", BOTH, BOTH, Verdict.FAIL, "why"),
        ("raised", NEITHER, None, Verdict.FAIL, "instead it failed: why"),
        ("lost", BOTH, BOTH, Verdict.FAIL, "why"),
        ("lost", NEITHER, None, Verdict.FAIL, "instead it failed: why"),
        ("hung", BOTH, BOTH, Verdict.FAIL, "why"),
        ("hung", NEITHER, None, Verdict.FAIL, "instead it failed: why"),
        ("starved", BOTH, BOTH, Verdict.INCONCLUSIVE, "why"),
        ("starved", NEITHER, None, Verdict.INCONCLUSIVE, "why"),
        ("not-claimed", BOTH, BOTH, Verdict.SKIP, "why"),
        ("not-here", BOTH, BOTH, Verdict.INCONCLUSIVE, "why"),
        ("error", BOTH, BOTH, Verdict.ERROR, "why"),
        ("error", NEITHER, NEITHER, Verdict.ERROR, "why"),
    ],
)
def test_verdict_follows_from_outcome_and_claims(
    kind: str,
    backend_claims: set[str],
    target_claims: set[str] | None,
    verdict: Verdict,
    said: str,
) -> None:
    found = _judge(kind, _case("graphs"), _machine(backend_claims, target_claims))
    assert found.verdict is verdict, f"{found.verdict}: {found.reason}"
    assert said in found.reason, found.reason


@pytest.mark.parametrize("kind", ["hung", "lost", "failed", "raised", "error"])
def test_time_alone_is_not_a_reason_to_replace_a_device(kind: str) -> None:
    run = Run(info(), [_judge(kind, _case("graphs"), _machine(BOTH))])
    assert run.verdict in (Verdict.FAIL, Verdict.ERROR)
    hung = kind == "hung"
    assert ("alone on a quiet machine" in run.next_step) is hung, run.next_step
    assert ("replace" in run.next_step) is (not hung), run.next_step
    assert action_of(run.results[0]) is Action.MONITOR
    titles = {"hung": "something did not end in time", "error": "the check itself broke"}
    assert severity_of(run.results[0]).title == titles.get(kind, "results are wrong")


def test_one_of_two_capabilities_is_missing() -> None:
    found = _judge("unsupported", _case("graphs", "streams"), _machine({"streams"}))
    assert found.verdict is Verdict.SKIP
    assert "does not claim graphs;" in found.reason


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("passed", Verdict.SKIP),
        ("failed", Verdict.SKIP),
        ("raised", Verdict.FAIL),
        ("lost", Verdict.FAIL),
        ("hung", Verdict.FAIL),
        ("starved", Verdict.INCONCLUSIVE),
        ("error", Verdict.ERROR),
    ],
)
def test_undefined_is_a_value_and_no_error(kind: str, verdict: Verdict) -> None:
    found = _judge(kind, _case(outcome="undefined"), _machine(NEITHER))
    assert found.verdict is verdict, f"undefined and {kind} is {found.verdict}"
    assert "why" in found.reason


def test_elsewhere_names_both_machines() -> None:
    other = TargetClaims("wanted-target", frozenset({"graphs"}))
    found = other_target_result(_case("graphs"), _machine(BOTH), other)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason == "this machine is Some Product (sm_1), not wanted-target"
    assert not found.evidence


def test_elsewhere_skips_what_the_target_does_not_claim() -> None:
    found = other_target_result(
        _case("streams"), _machine(BOTH), TargetClaims("wanted", frozenset({"graphs"}))
    )
    assert found.verdict is Verdict.SKIP


def _excuse(pattern: str, expires: date = date(2030, 6, 15)) -> ExpectedFailure:
    return ExpectedFailure(pattern, "driver bug", "https://example.org/1", expires)


def _failed(verdict: Verdict = Verdict.FAIL) -> Result:
    return Result(
        id="graphs/x[a]", suite="conformance", area="graphs", verdict=verdict, reason="it broke"
    )


@pytest.mark.parametrize("pattern", ["graphs/x[a]", "graphs/x", "graphs", "graphs/*", "*[a]"])
def test_expected_failure_is_a_skip_that_says_both(pattern: str) -> None:
    found = apply_expected_failures(_failed(), [_excuse(pattern)], TODAY)
    assert found.verdict is Verdict.SKIP
    for said in ("driver bug", "https://example.org/1", "2030-06-15", "it broke"):
        assert said in found.reason, f"{said!r} is not in {found.reason!r}"


@pytest.mark.parametrize(
    ("verdict", "lost"), [(Verdict.FAIL, True), (Verdict.ERROR, False), (Verdict.ERROR, True)]
)
def test_no_excuse_is_for_a_death_or_a_hang(verdict: Verdict, lost: bool) -> None:
    found = apply_expected_failures(_failed(verdict), [_excuse("graphs")], TODAY, lost=lost)
    assert found.verdict is verdict
    said = "it broke (the expected failure excuses no death and no hang: driver bug, https://"
    assert found.reason.startswith(said)


def test_other_failure_is_not_excused() -> None:
    assert apply_expected_failures(_failed(), [_excuse("graphs/y")], TODAY).verdict is Verdict.FAIL


def test_expired_excuse_excuses_nothing() -> None:
    found = apply_expected_failures(
        _failed(Verdict.ERROR), [_excuse("graphs", date(2030, 6, 14))], TODAY
    )
    assert found.verdict is Verdict.ERROR
    assert "expired on 2030-06-14" in found.reason


def test_passing_result_stays_as_it_is() -> None:
    passed = Result(id="graphs/x", suite="conformance", area="graphs", verdict=Verdict.PASS)
    assert apply_expected_failures(passed, [_excuse("graphs")], TODAY) is passed


@pytest.mark.parametrize(
    ("excuse", "said"),
    [
        (_excuse("graphs/y"), "fits no case"),
        (_excuse("graphs/good"), "fits only cases that pass"),
        (_excuse("graphs/x", date(2030, 6, 14)), "expired on 2030-06-14"),
    ],
)
def test_excuse_that_does_not_fit_is_an_error(excuse: ExpectedFailure, said: str) -> None:
    judged = {"graphs/x[a]": Verdict.FAIL, "graphs/good": Verdict.PASS}
    (found,) = stale_expected_failures([excuse], judged, TODAY)
    assert found.verdict is Verdict.ERROR
    assert said in found.reason


def test_excuse_that_fits_is_not_an_error() -> None:
    judged = {"graphs/x[a]": Verdict.FAIL, "graphs/x[b]": Verdict.PASS}
    assert stale_expected_failures([_excuse("graphs/x")], judged, TODAY) == []


def test_judged_survives_json() -> None:
    target = TargetClaims("t", frozenset({"a", "b"}), (_excuse("graphs"),))
    assert decode(TargetClaims, json.loads(json.dumps(encode(target))), "target") == target


def test_a_claim_that_no_case_judged_is_open() -> None:
    cases = [_case("graphs"), replace(_case("streams"), id="streams/x")]
    machine = _machine({"graphs", "streams", "unknown-word"}, None)
    verdicts = {cases[0].id: Verdict.SKIP, cases[1].id: Verdict.FAIL}
    (found,) = unjudged_claims(machine, cases, verdicts)
    assert (found.id, found.verdict) == ("suite/unjudged-graphs", Verdict.INCONCLUSIVE)
    assert found.reason == "some claims graphs, and none of its 1 cases was judged"
