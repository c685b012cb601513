"""How the checklist runs: order, blocking, broken checks, ranks that die, Ctrl-C."""

from __future__ import annotations

import dataclasses
import json

import pytest

pytest.importorskip("torch")

from portagpu.base.errors import TargetNotFound
from portagpu.checks.bringup import BringupOptions, Gate, GateProgress, bringup
from portagpu.reports.html import render
from portagpu.runs.results.run import Result, Verdict, validate, verdict_of

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]

AMOUNTS = {effort: {"limit_s": 30} for effort in ("quick", "full")}


def gate(name, check, *needs):
    return Gate(
        name, name.title(), "One sentence.", f"tests.support.bringup_checks:{check}", needs, AMOUNTS
    )


def run(*gates, progress=None, **options):
    made = bringup(BringupOptions(backend="cpu", **options), progress, gates)
    validate(json.loads(made.to_text()))
    return made


def by_area(made):
    return {result.area: result for result in made.results}


def test_gates_that_pass_make_a_pass():
    made = run(gate("one", "good"), gate("two", "good", "one"))
    assert made.verdict is Verdict.PASS
    assert made.exit_code == 0
    assert [result.id for result in made.results] == ["one/fine", "two/fine"]


def test_a_failed_gate_blocks_what_needs_it_and_says_so():
    made = run(
        gate("one", "bad"),
        gate("two", "good", "one"),
        gate("three", "good", "two"),
        gate("four", "good"),
    )
    found = by_area(made)
    assert made.verdict is Verdict.FAIL
    assert made.first_failed == "one/wrong"
    assert made.culprit == "cuda:3"
    for area in ("two", "three"):
        assert found[area].verdict is Verdict.INCONCLUSIVE
        assert found[area].blocked_by == "one/wrong"
        assert found[area].reason == "not run, because the gate one failed"
    assert found["four"].verdict is Verdict.PASS, "a gate that needs nothing still runs"


def test_a_check_that_breaks_is_an_error_and_keeps_what_it_found():
    made = run(gate("one", "broken"), gate("two", "good"))
    assert [result.verdict for result in made.results] == ["PASS", "ERROR", "PASS"]
    assert made.results[1].reason == "the check broke: RuntimeError: the check has a fault"
    assert made.exit_code == 1


def test_the_time_of_each_gate_is_part_of_the_run():
    made = run(gate("one", "good"), gate("two", "rank_dies"))
    taken = made.info.area_duration_s
    assert list(taken) == ["one", "two"]
    assert 0 <= taken["one"] < taken["two"] <= made.info.duration_s


def test_a_check_that_finds_nothing_is_not_a_pass():
    made = run(gate("one", "empty"))
    assert made.verdict is Verdict.INCONCLUSIVE
    assert made.exit_code == 3


def test_measures_with_nothing_to_judge_by_are_counted_and_strict_lowers_the_verdict():
    gates = (gate("one", "good"), gate("two", "unverified"))
    assert run(*gates).summary_line() == "PASS, 1 unverified"
    strict = run(*gates, strict=True)
    assert strict.verdict is Verdict.UNVERIFIED
    assert strict.exit_code == 3


def test_an_interrupt_keeps_results_and_closes_every_gate_that_is_left():
    made = run(gate("one", "good"), gate("two", "interrupted"), gate("three", "good"))
    assert made.info.interrupted
    assert made.exit_code == 130
    assert [(result.id, str(result.verdict)) for result in made.results] == [
        ("one/fine", "PASS"),
        ("two/fine", "PASS"),
        ("two/interrupted", "INCONCLUSIVE"),
        ("three/interrupted", "INCONCLUSIVE"),
    ]


def test_a_rank_that_dies_in_a_gate_is_named():
    made = run(gate("one", "rank_dies"))
    assert made.culprit == "rank 1"
    assert made.results[0].reason == "rank 1 died of SIGKILL"
    assert made.verdict is Verdict.FAIL


@pytest.mark.usefixtures("quiet_machine")
def test_a_rank_that_hangs_in_a_gate_is_named_and_ended():
    made = run(gate("one", "rank_hangs"))
    assert made.culprit == "rank 1"
    assert made.results[0].reason.startswith("rank 1 hung in hang_on_one")


def test_markup_in_a_reason_is_escaped_in_the_report():
    page = render(run(gate("one", "bad")))
    assert "<b>cracked</b>" not in page
    assert "&lt;b&gt;cracked&lt;/b&gt;" in page


def test_progress_gets_every_gate_in_order():
    reported = []

    class Recorder(GateProgress):
        def gate_begins(self, gate):
            reported.append(("begins", gate.id))

        def gate_ends(self, gate, results, duration_s):
            reported.append(("ends", gate.id, len(results)))

        def end(self):
            reported.append("end")

    run(gate("one", "good"), gate("two", "bad"), progress=Recorder())
    assert reported == [
        ("begins", "one"),
        ("ends", "one", 1),
        ("begins", "two"),
        ("ends", "two", 2),
        "end",
    ]


def test_an_unknown_target_is_refused_before_anything_runs_with_the_closest_one():
    with pytest.raises(TargetNotFound, match="cpu-x86-64"):
        bringup(BringupOptions(backend="cpu", target="cpu-x86-46"), None, [gate("one", "good")])


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["PASS", "SKIP", "UNVERIFIED"], "PASS"),
        (["SKIP", "SKIP"], "SKIP"),
        (["UNVERIFIED", "SKIP"], "UNVERIFIED"),
        (["UNVERIFIED"], "UNVERIFIED"),
        (["PASS", "INCONCLUSIVE"], "INCONCLUSIVE"),
        (["INCONCLUSIVE", "FAIL", "PASS"], "FAIL"),
        (["ERROR", "FAIL"], "ERROR"),
        ([], "INCONCLUSIVE"),
    ],
)
def test_a_gates_verdict_is_the_fold_of_its_results(verdicts, expected):
    results = [
        Result(id=f"a/{n}", suite="s", area="a", verdict=Verdict(name), reason="why")
        for n, name in enumerate(verdicts)
    ]
    assert verdict_of(results) == expected


def test_a_run_without_all_gates_is_partial_and_no_pass():
    gates = (gate("one", "good"), gate("two", "good", "one"), gate("three", "good"))
    made = run(*gates, only=("two",))
    assert [each.id for each in made.results] == ["one/fine", "two/fine", "three/left-out"]
    assert made.verdict is Verdict.INCONCLUSIVE
    assert "three/left-out: this run is partial: --only two leaves it out" in made.summary_line()
    made = run(*gates, skip=("one",))
    assert by_area(made)["one"].verdict is Verdict.INCONCLUSIVE
    assert by_area(made)["two"].verdict is Verdict.PASS, "it needs no device of the gate"
    assert made.exit_code == 3


def test_without_the_gate_that_opens_devices_none_that_needs_one_runs():
    opener = dataclasses.replace(gate("one", "good"), opens_devices=True)
    made = run(opener, gate("two", "good", "one"), gate("three", "good"), skip=("one",))
    found = by_area(made)
    assert found["two"].reason == "not run, because the gate one was left out"
    assert found["three"].verdict is Verdict.PASS
