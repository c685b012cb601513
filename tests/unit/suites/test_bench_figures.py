"""Which of a target's figures judge a case, with what the vendors really state."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import ResultError
from portagpu.base.stats import summarise
from portagpu.cli._bench_tables import notes
from portagpu.facts.targets import Authority, Expectation, Target, load_target, load_targets
from portagpu.reports.html import write_report
from portagpu.runs.results.run import Result, new_run, read_json
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.performance import BenchCase, Effort, MeasuredDevice
from portagpu.suites.performance.cases import plan
from portagpu.suites.performance.judge import figures_of, figures_to_show, judge

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


def cases(target_id: str, effort: Effort = Effort.FULL, world: int = 8) -> dict[str, BenchCase]:
    """The cases of a machine with ``world`` devices of that target, by id."""
    target = load_target(target_id)
    device = replace(MeasuredDevice.from_target(target), count=world, free_bytes=180 * GIB)
    return {case.id: case for case in plan(None, device, effort, world, target)}


def judged(case: BenchCase, value: float, target: Target, size: int | None = None) -> Any:
    return judge(case, summarise([value]), target, size_bytes=size)


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(94.2, Verdict.PASS), (94.1, Verdict.PASS), (94.0, Verdict.FAIL), (60.0, Verdict.FAIL)],
)
def test_amds_fp32_product_of_4000_fails_below_94_1_tflops(value: float, verdict: Verdict) -> None:
    """AMD's page on the MI300X: rocblas-bench -f gemm -r s, 4000 x 4000 x 4000, N and T."""
    case = cases("amd-mi300x")["gemm/fp32[4000,mn]"]
    judgement = judged(case, value, load_target("amd-mi300x"))
    assert judgement.verdict is verdict, judgement.reason
    assert "A-ACC-MI300X" in judgement.reason
    assert "2026-06-12" in judgement.reason


@pytest.mark.parametrize(
    ("target_id", "world", "floor"),
    [("amd-mi300x", 8, 304.0), ("amd-mi325x", 8, 304.0), ("amd-mi100", 4, 72.0)],
)
def test_amds_all_reduce_is_judged_at_8_gib_of_its_ranks(
    target_id: str, world: int, floor: float
) -> None:
    target = load_target(target_id)
    case = cases(target_id, world=world)[f"collectives/all_reduce[{world},8192MiB]"]
    assert case.arguments["sizes"] == [8 * GIB]
    assert judged(case, floor, target, 8 * GIB).verdict is Verdict.PASS
    missed = judged(case, floor - 0.1, target, 8 * GIB)
    assert missed.verdict is Verdict.FAIL, missed.reason
    curve = cases(target_id, world=world)[f"collectives/all_reduce[{world}]"]
    assert judged(curve, 1.0, target, GIB).verdict is Verdict.UNVERIFIED, "not the size they run"
    other = replace(case, world=2)
    assert judged(other, 1.0, target, 8 * GIB).verdict is not Verdict.FAIL, "not their ranks"


def test_of_two_pages_that_disagree_the_newer_judges_and_both_are_shown() -> None:
    """MI355X: 304 GB/s on the product's page of June, 350 on the page on RCCL of January."""
    target = load_target("amd-mi355x")
    case = cases("amd-mi355x")["collectives/all_reduce[8,8192MiB]"]
    assert judged(case, 320.0, target, 8 * GIB).verdict is Verdict.PASS
    assert judged(case, 303.0, target, 8 * GIB).verdict is Verdict.FAIL
    stated = target.expectations(case.metric)
    shown = figures_to_show(figures_of(stated, case, summarise([320.0]), 8 * GIB, {}))
    assert [(each["reference"], each["met"], each["judges"]) for each in shown] == [
        (304.0, True, True),
        (350.0, False, False),
    ]
    assert shown[1]["not_judged"] == "a newer or stricter figure judges"


def test_a_figure_of_other_operands_is_shown_and_does_not_judge() -> None:
    """RVS asks 639 TFLOPS of whole numbers from -2 to 2, and 523 of sines: 5 % less is accepted."""
    target = load_target("amd-mi300x")
    case = cases("amd-mi300x")["gemm/fp16[4864x4096x8192,kk]"]
    assert judged(case, 500.0, target).verdict is Verdict.PASS, "0.95 x 523 is 496.85"
    assert judged(case, 496.0, target).verdict is Verdict.FAIL
    shown = figures_to_show(
        figures_of(target.expectations(case.metric), case, summarise([500.0]), None, {})
    )
    assert {each["reference"]: (each["met"], each["judges"]) for each in shown} == {
        639.0: (None, False),
        523.0: (True, True),
    }


@pytest.mark.parametrize("dtype", ["fp16", "int8"])
def test_a_batched_product_of_the_vendor_judges_no_single_product(dtype: str) -> None:
    target = load_target("amd-mi300x")
    for name, case in cases("amd-mi300x").items():
        if name.startswith(f"gemm/{dtype}[") and "4864" not in name:
            assert judged(case, 1.0, target).verdict is Verdict.UNVERIFIED, name


def test_an_fp8_result_is_another_product_than_a_bf16_result() -> None:
    target = load_target("amd-mi300x")
    assert not [name for name in cases("amd-mi300x") if name.startswith("gemm/fp8[4864")]
    square = cases("amd-mi300x")["gemm/fp8[8192]"]
    judgement = judged(square, 1.0, target)
    assert judgement.verdict is Verdict.UNVERIFIED
    assert "fp8 result" in judgement.reason


NO_CASE = {
    "at once": "no case runs batched products",
    "fp8 result": "products of fp8 are written as bf16 here",
    "TransferBench": "no case copies between devices by a kernel or a chosen engine",
    "memory/dot": "no case runs it",
}


def has_case(target: Target, figure: Expectation) -> bool:
    """Whether a full run on that target has a case that the figure judges."""
    one = summarise([1.0])
    return any(
        not found.other
        for case in cases(target.id, world=figure.ranks or 8).values()
        if case.metric == figure.metric
        for found in figures_of([figure], case, one, figure.size_bytes, {})
    )


def test_a_full_run_has_a_case_for_every_vendors_figure_but_the_ones_that_are_listed() -> None:
    listed = 0
    for target in load_targets().values():
        for figure in target.all_expectations:
            if figure.authority is not Authority.VENDOR:
                continue
            why = [text for text in NO_CASE if text in f"{figure.metric} {figure.shape}"]
            expected = not why and figure.operands != "whole"
            assert has_case(target, figure) is expected, f"{target.id}: {figure.metric} {why}"
            listed += expected
    assert listed > 45, "the vendors' figures are gone"


DAY = datetime.date(2026, 1, 1)


def own(reference: float, **changes: Any) -> Any:
    (stated,) = (
        each
        for each in load_target("amd-mi300x").expectations("gemm/fp32")
        if each.shape == "4000x4000x4000"
    )
    return replace(stated, reference=reference, **{"authority": Authority.OWN, **changes})


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(110.0, Verdict.PASS), (96.0, Verdict.FAIL), (90.0, Verdict.FAIL)],
)
def test_the_vendors_figure_and_our_own_have_both_to_be_met(value: float, verdict: Verdict) -> None:
    target = load_target("amd-mi300x")
    both = replace(target, all_expectations=(own(94.1, authority=Authority.VENDOR), own(100.0)))
    judgement = judged(cases("amd-mi300x")["gemm/fp32[4000,mn]"], value, both)
    assert judgement.verdict is verdict, judgement.reason


def test_a_hint_next_to_a_binding_figure_decides_nothing() -> None:
    target = load_target("amd-mi300x")
    hint = own(150.0, authority=Authority.THIRD_PARTY, dated=datetime.date(2027, 1, 1))
    both = replace(target, all_expectations=(hint, own(94.1)))
    case = cases("amd-mi300x")["gemm/fp32[4000,mn]"]
    assert judged(case, 95.0, both).verdict is Verdict.PASS
    shown = figures_to_show(figures_of(both.all_expectations, case, summarise([95.0]), None, {}))
    assert shown[0]["not_judged"] == "a hint, and another figure binds"
    assert shown[0]["met"] is False


def test_of_one_day_the_stricter_figure_judges_and_an_undated_one_is_the_oldest() -> None:
    target = load_target("amd-mi300x")
    case = cases("amd-mi300x")["gemm/fp32[4000,mn]"]
    rows = (own(80.0, dated=DAY), own(90.0, dated=DAY), own(99.0, dated=None))
    stricter = replace(target, all_expectations=rows)
    assert judged(case, 85.0, stricter).verdict is Verdict.FAIL
    assert judged(case, 95.0, stricter).verdict is Verdict.PASS


def test_a_single_figure_is_not_shown_twice() -> None:
    case = cases("amd-mi300x")["gemm/fp32[4000,mn]"]
    figures = figures_of([own(94.1)], case, summarise([95.0]), None, {})
    assert figures_to_show(figures) == []


def shown_result() -> Result:
    target = load_target("amd-mi355x")
    case = cases("amd-mi355x")["collectives/all_reduce[8,8192MiB]"]
    summary = summarise([320.0])
    figures = figures_of(target.expectations(case.metric), case, summary, 8 * GIB, {})
    judgement = judge(case, summary, target, size_bytes=8 * GIB)
    return Result(
        id=case.id,
        suite="performance",
        area=case.area,
        verdict=judgement.verdict,
        value=320.0,
        unit=case.unit,
        expected=judgement.expected,
        extra={"figures": figures_to_show(figures)},
    )


def test_both_of_two_figures_are_in_the_terminal_and_in_the_report(tmp_path: Path) -> None:
    run = new_run(["portagpu", "bench"], target="amd-mi355x")
    run.add(shown_result())
    run.finish()
    terminal = "\n".join(notes(run))
    report = write_report(run, tmp_path / "report.html").read_text()
    for shown in (terminal, report):
        assert "at least 304 GB/s" in shown
        assert "2026-06-12" in shown
        assert "at least 350 GB/s (A-ACC-RCCL, 2026-01-05): missed; a newer" in shown
    run.write_json(tmp_path / "r.json")
    assert read_json(tmp_path / "r.json") == run


def test_a_figure_of_another_form_is_refused() -> None:
    wrong = {**shown_result().extra["figures"][0], "met": "yes"}
    with pytest.raises(ResultError, match=r"figures\[0\]\.met"):
        replace(shown_result(), extra={"figures": [wrong]})


@pytest.mark.parametrize(
    ("target_id", "operation", "floor"),
    [
        ("amd-mi300x", "copy", 4177.285),
        ("amd-mi300x", "scale", 4067.069),
        ("amd-mi300x", "add", 3920.853),
        ("amd-mi300x", "triad", 3885.301),
        ("amd-mi250x", "triad", 1100.0),
        ("amd-mi210", "copy", 1230.0),
    ],
)
def test_amds_babelstream_is_judged_for_arrays_of_doubles_of_2_gib(
    target_id: str, operation: str, floor: float
) -> None:
    target = load_target(target_id)
    here = cases(target_id)
    case = here[f"memory/{operation}[fp64,2048MiB]"]
    assert case.arguments["sizes"] == [8 * 268435456]
    assert judged(case, floor, target, 2 * GIB).verdict is Verdict.PASS
    assert judged(case, floor - 0.001, target, 2 * GIB).verdict is Verdict.FAIL
    usual = here[f"memory/{operation}"]
    assert judged(usual, 1.0, target, usual.arguments["sizes"][-1]).verdict is Verdict.UNVERIFIED


def test_a_hostile_figure_stays_text_in_the_report(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    result = shown_result()
    figures = [{**each, "source": bad, "not_judged": bad} for each in result.extra["figures"]]
    run = new_run(["portagpu", "bench"])
    run.add(replace(result, extra={"figures": figures}))
    text = write_report(run.finish(), tmp_path / "report.html").read_text()
    assert bad not in text
    assert "&lt;script&gt;alert(1)" in text
