"""Two summaries side by side: a noise floor from steps that repeat, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")

from portagpu.facts.captures.model import Capture, CapturedDevice, Source, ToolMessage, table
from portagpu.runs.results.verdicts import Verdict
from portagpu.traces.analysis.compare import compare, with_labels
from portagpu.traces.analysis.comparison import REASONS, Comparison, Difference
from tests.support.trace_summaries import MS, collectives, device, ranges, rows, steps, summary

if TYPE_CHECKING:
    from portagpu.traces.analysis.model import Summary

NOISY = (100, 102, 98, 101, 99, 100, 103, 97)
"""Milliseconds: median 100, median absolute deviation 1.5."""


def run_of(host: tuple[float, ...] = NOISY, gemm: float = 50, **given: Any) -> Summary:
    """A run of one device with steps, half of which are gemm."""
    kernels = [
        {"name": "gemm", "category": "gemm", "total_ns": gemm * len(host) * MS, "calls": len(host)},
        {"name": "relu", "category": "elementwise", "total_ns": 8 * MS, "calls": 8},
    ]
    return summary(
        **{
            "steps": (steps(host, gemm=[gemm + at % 2 for at in range(len(host))]),),
            "rows": rows(kernels),
            "ranges": ranges(
                [{"path": "step", "host_ns": int(sum(host) * MS), "calls": len(host)}]
            ),
            **given,
        }
    )


def difference(found: Comparison, part: str, name: str) -> Difference:
    (one,) = [each for each in found.differences if (each.part, each.name) == (part, name)]
    return one


def reasons(found: Comparison) -> set[str]:
    return {each.reason for each in found.refusals}


def test_a_run_next_to_itself_is_within_noise() -> None:
    found = compare(run_of(), run_of())
    assert found.verdict is Verdict.PASS
    words = {each.name: each.word for each in found.differences}
    # its category is in no step
    assert words.pop("relu") == "not judged"
    assert set(words.values()) == {"within noise"}
    assert any("same files" in note for note in found.notes)


def test_the_floor_is_two_deviations_of_both_sides_together() -> None:
    found = difference(compare(run_of(), run_of()), "step", "host")
    # MAD 1.5 ms, corrected for 8 samples, as a standard deviation; two sides; twice
    spread = 1.5 * 1.129 * 1.4826
    assert found.floor_ns == pytest.approx(2 * spread * 2**0.5 * MS, rel=1e-6)


@pytest.mark.parametrize(
    ("slower", "word", "verdict"),
    [
        (0, "within noise", Verdict.PASS),
        (6, "within noise", Verdict.PASS),
        (8, "slower", Verdict.FAIL),
        (-8, "faster", Verdict.PASS),
    ],
)
def test_only_what_is_above_the_floor_is_a_difference(
    slower: float, word: str, verdict: Verdict
) -> None:
    other = run_of(tuple(each + slower for each in NOISY))
    found = compare(run_of(), other)
    assert difference(found, "step", "host").word == word
    assert found.verdict is verdict
    assert word in found.sentence


def test_one_slow_step_is_not_a_difference() -> None:
    outlier = (*NOISY[:-1], 900)
    assert compare(run_of(), run_of(outlier)).verdict is Verdict.PASS


def test_steps_of_other_numbers_are_compared_by_the_step() -> None:
    found = compare(run_of(), run_of(NOISY * 3))
    assert difference(found, "kernel", "gemm").ratio == pytest.approx(1)
    assert difference(found, "range", "step").ratio == pytest.approx(1)
    assert found.a.steps == 8
    assert found.b.steps == 24


def test_a_category_that_became_slower_is_named_first() -> None:
    found = compare(run_of(gemm=50), run_of(gemm=70))
    first = next(each for each in found.differences if each.part == "category")
    assert (first.name, first.word) == ("gemm", "slower")
    assert difference(found, "kernel", "gemm").word == "slower"


def test_kernels_that_only_one_side_has_say_so() -> None:
    kernels = rows([{"name": "Cijk", "category": "gemm", "total_ns": 400 * MS}])
    amd = run_of(rows=kernels, hardware=(CapturedDevice(0, vendor="amd"),))
    found = compare(run_of(hardware=(CapturedDevice(0, vendor="nvidia"),)), amd)
    assert difference(found, "kernel", "Cijk").word == "only in B"
    assert difference(found, "kernel", "gemm").word == "only in A"
    assert any("vendors differ" in note for note in found.notes)


def test_without_steps_nothing_is_judged() -> None:
    found = compare(summary(), summary())
    assert found.verdict is Verdict.UNVERIFIED
    assert {each.word for each in found.differences} == {"not judged"}
    assert "no noise floor" in found.sentence


def test_a_short_range_that_repeats_is_not_a_step() -> None:
    found = compare(run_of((0.1, 0.2, 0.1)), run_of((0.1, 0.2, 0.1)))
    assert found.a.steps == 0
    assert found.verdict is Verdict.UNVERIFIED


def test_what_differs_around_the_work_is_a_note() -> None:
    here = {"driver": "1", "trace_id": "x", "left out: ac2g": "5"}
    found = compare(run_of(details=here), run_of(details=dict.fromkeys(here, "9")))
    reported = [note for note in found.notes if " in A and " in note]
    assert reported == ["driver is 1 in A and 9 in B"]


def test_what_the_profiler_said_of_a_side_is_a_note() -> None:
    said = (ToolMessage("warning", "lost\n5 records"), ToolMessage("info", "hello"))
    notes = compare(run_of(), run_of(messages=said, problems=("cut",))).notes
    assert "B: the profiler said: lost 5 records" in notes
    assert "B: cut" in notes
    assert not any("hello" in note for note in notes)


def test_labels_of_annotations_say_which_work_was_done() -> None:
    def labelled(*payloads: str | None) -> Summary:
        found = {"start_ns": range(len(payloads)), "end_ns": range(len(payloads))}
        made = table({**found, "payload": list(payloads)})
        return with_labels(run_of(), [Capture(Source("a", "x"), tables={"range": made})])

    small = labelled('{"batch":8,"step":1}', '{"batch":8,"step":2}', None, "{", "[1]")
    assert dict(small.details) == {"batch": "8"}
    assert compare(small, labelled('{"batch":8,"step":7}')).verdict is Verdict.PASS
    found = compare(small, labelled('{"batch":8}', '{"batch":16}'))
    assert reasons(found) == {"work"}
    assert "batch 8, B with batch 16, 8" in found.sentence
    # one side alone says nothing
    assert compare(small, labelled()).verdict is Verdict.PASS


def test_steps_of_a_cpu_are_refused_and_not_an_error() -> None:
    # what torch's profiler gives on a CPU: steps, and nothing of any device
    nothing: dict[str, Any] = {"rows": rows([]), "devices": (), "events": {"range": 3}}
    of_cpu = replace(steps((100, 101, 102)), device_ns=(), by_category_ns=())
    found = compare(*(summary(steps=(of_cpu,), **nothing) for _ in range(2)))
    assert reasons(found) == {"nothing"}
    assert found.verdict is Verdict.INCONCLUSIVE


def test_two_steps_are_not_a_floor() -> None:
    found = compare(run_of((100, 101)), run_of((200, 201)))
    assert found.verdict is Verdict.UNVERIFIED
    assert difference(found, "step", "host").word == "not judged"


TWO = (device(by_category={"gemm": 90}), device(device=1, by_category={"gemm": 90}))
RANKS = (device(), device(rank=1))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (run_of(devices=TWO), "devices"),
        (run_of(devices=RANKS), "ranks"),
        (run_of(dropped=1), "dropped"),
        (run_of(steps=()), "steps"),
        (run_of(steps=(steps(NOISY, name="iteration"),)), "steps"),
        (run_of(details={"batch_size": "16"}), "work"),
        (run_of(collectives=collectives([{"operation": "all_reduce", "bytes": 8}])), "work"),
        (run_of(devices=()), "totals"),
        (run_of(rows=rows([])), "nothing"),
        (
            run_of(sources=(Source("a", "nsys-sqlite"), Source("b", "kineto"))),
            "clocks",
        ),
        (run_of(events={"copy": 0}), "kinds"),
    ],
)
def test_what_cannot_be_compared_is_refused_and_can_be_allowed(other: Summary, reason: str) -> None:
    one = run_of(
        details={"batch_size": "8"},
        collectives=collectives([{"operation": "all_reduce", "bytes": 4}]),
    )
    if reason != "work":
        one = replace(one, details={}, collectives=collectives())
    found = compare(one, other)
    assert reasons(found) >= {reason}
    assert found.verdict is Verdict.INCONCLUSIVE
    assert not found.differences
    assert all(each.instead == REASONS[each.reason] for each in found.refusals)
    if reason not in ("nothing", "kinds"):
        allowed = compare(one, other, allow=reasons(found))
        assert allowed.differences
        assert allowed.verdict is Verdict.UNVERIFIED, "what was allowed is never a PASS"


def test_a_few_dropped_events_do_not_matter() -> None:
    events = {"kernel": 1000, "copy": 0, "set": 0, "range": 1}
    assert compare(run_of(), run_of(dropped=1, events=events)).verdict is Verdict.PASS


def test_kinds_that_one_side_did_not_record_are_left_out_alone() -> None:
    copies = [{"kind": "copy", "name": "Memcpy", "category": "copy", "total_ns": 5 * MS}]
    kernels = [{"name": "gemm", "category": "gemm", "total_ns": 400 * MS}]
    found = compare(
        run_of(rows=rows(copies + kernels)),
        run_of(rows=rows(kernels), events={"kernel": 10, "set": 0}),
    )
    names = {each.name for each in found.differences}
    assert names & {"gemm", "wall"} == {"gemm", "wall"}
    assert not names & {"Memcpy", "exposed copy", "step"}, "a kind that is missing is not 0"
    assert {each.whole for each in found.refusals} == {False}
    assert found.verdict is Verdict.PASS


def test_more_devices_are_compared_by_the_device_where_allowed() -> None:
    one = summary()
    two = summary(devices=TWO, rows=rows([
        {"name": "gemm", "category": "gemm", "total_ns": 90 * MS, "device": at} for at in (0, 1)
    ]))  # fmt: skip
    found = compare(one, two, allow={"devices"})
    assert difference(found, "kernel", "gemm").ratio == pytest.approx(1)
    assert difference(found, "time", "wall").ratio == pytest.approx(1)
    assert difference(found, "category", "gemm").ratio == pytest.approx(1)


def test_the_document_has_every_difference() -> None:
    found = compare(run_of(), run_of(gemm=70)).to_json()
    assert found["schema"] == "portagpu.trace-diff/1"
    assert found["verdict"] == "PASS"
    (gemm,) = [
        each
        for each in found["differences"]
        if (each["part"], each["name"]) == ("category", "gemm")
    ]
    assert gemm["verdict"] == "slower"
    assert gemm["change_ns"] == 20 * MS
    assert gemm["ratio"] == pytest.approx(70.5 / 50.5, abs=1e-4)
