"""OCP Test & Validation Output: each verdict, each run, and what its schema and rules refuse."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.reports.ocp.stream import Stream, render, write_ocp
from portagpu.runs.results.run import Evidence, Result, Run, RunInfo
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import at_least, exactly, within
from tests.conftest import ROOT
from tests.support.looped import looped
from tests.support.ocp_rules import lines_of, of_run, of_steps, problems
from tests.support.result_samples import failing, info, passing, stopped

if TYPE_CHECKING:
    from pathlib import Path

V = Verdict
GPUS = (
    {"kind": "gpu", "vendor": "maker", "name": "One", "index": 0, "uuid": "GPU-0a", "pci": "0:1"},
    {"kind": "gpu", "vendor": "maker", "name": "Two", "index": 1, "uuid": "GPU-0b", "pci": "0:2"},
)


def result(verdict: Verdict = V.PASS, **fields: Any) -> Result:
    return Result(
        **{
            "id": "memory/copy",
            "suite": "performance",
            "area": "memory",
            "verdict": verdict,
            "reason": "so" if verdict is not V.PASS else "",
            **fields,
        }
    )


def run_of(*results: Result, **changes: Any) -> Run:
    return Run(info(**{"devices": (), **changes}), list(results))


def checked(run: Run) -> list[dict[str, Any]]:
    lines = lines_of(render(run))
    assert problems(lines) == []
    return lines


def end_of(lines: list[dict[str, Any]]) -> tuple[str, str]:
    (end,) = of_run(lines, "testRunEnd")
    return end["status"], end["result"]


@looped(
    "verdict, kind, status, end",
    [
        (V.PASS, "PASS", "COMPLETE", ("COMPLETE", "PASS")),
        (V.FAIL, "FAIL", "COMPLETE", ("COMPLETE", "FAIL")),
        (V.UNVERIFIED, "UNKNOWN", "COMPLETE", ("SKIP", "NOT_APPLICABLE")),
        (V.INCONCLUSIVE, "UNKNOWN", "SKIP", ("SKIP", "NOT_APPLICABLE")),
        (V.SKIP, None, "SKIP", ("SKIP", "NOT_APPLICABLE")),
        (V.ERROR, None, "ERROR", ("ERROR", "NOT_APPLICABLE")),
    ],
)
def test_each_verdict_has_its_diagnosis_and_status(
    verdict: Verdict, kind: str | None, status: str, end: tuple[str, str]
) -> None:
    lines = checked(run_of(result(verdict)))
    assert [each["type"] for each in of_steps(lines, "diagnosis")] == ([kind] if kind else [])
    for each in of_steps(lines, "diagnosis"):
        assert each["verdict"] == f"memory/copy-{verdict.lower()}"
        assert each.get("message", "") == ("" if verdict is V.PASS else "so")
    assert of_steps(lines, "testStepEnd") == [{"status": status}]
    errors = [{"symptom": "memory/copy", "message": "so"}] if verdict is V.ERROR else []
    assert of_steps(lines, "error") == errors
    assert end_of(lines) == end


@looped("verdict", list(V))
@looped("flags", [{}, {"interrupted": True}, {"strict": True}, {"error": 1}, {"error": 3}])
def test_a_run_is_a_pass_exactly_where_its_verdict_is(
    flags: dict[str, Any], verdict: Verdict
) -> None:
    if "error" in flags:
        flags = {"error": {"exit_code": flags["error"], "message": "broke"}}
    other = result(V.UNVERIFIED, id="memory/other")
    run = run_of(result(verdict), other, **flags)
    status, found = end_of(checked(run))
    assert (found == "PASS") == (run.verdict is V.PASS)
    assert (found == "FAIL") == (run.verdict is V.FAIL)
    assert (status == "ERROR") == (run.verdict is V.ERROR)


def test_an_action_is_a_log_of_the_step() -> None:
    isolate = {"action": "isolate", "action_source": "a manual", "remedy": "swap it"}
    lines = checked(run_of(result(V.FAIL, extra=isolate)))
    (log,) = of_steps(lines, "log")
    assert log == {"severity": "ERROR", "message": "action: isolate (a manual); next: swap it"}
    lines = checked(run_of(result(V.UNVERIFIED, extra={"action": "monitor"})))
    assert [each["severity"] for each in of_steps(lines, "log")] == ["WARNING"]
    assert not of_steps(checked(run_of(result())), "log")


@looped(
    "expected, value, rules",
    [
        (at_least(8, "a sheet", "GB/s"), 9.5, [("GREATER_THAN_OR_EQUAL", 8)]),
        (
            within(10, 0.5, "a sheet", "GB/s"),
            9.5,
            [("GREATER_THAN_OR_EQUAL", 5), ("LESS_THAN_OR_EQUAL", 15)],
        ),
        (exactly(0, "a count", "GB/s"), 0, [("EQUAL", 0)]),
        (exactly("on", "a setting"), "on", [("EQUAL", "on")]),
        (exactly("3.11 or newer", "in words"), "3.12", []),
        (exactly(0, "rounded", "GB/s"), 1, []),
    ],
)
def test_validators_say_what_was_expected_and_never_contradict_a_pass(
    expected: dict[str, Any], value: float | str, rules: list[tuple[str, Any]]
) -> None:
    unit = None if isinstance(value, str) else "GB/s"
    lines = checked(run_of(result(value=value, unit=unit, expected=expected)))
    (measured,) = of_steps(lines, "measurement")
    found = measured.get("validators", [])
    assert [(each["type"], each["value"]) for each in found] == rules
    assert all(each["name"] == expected["source"] for each in found)
    assert measured.get("unit") == unit


def test_a_failure_keeps_the_limit_that_it_missed() -> None:
    expected = at_least(8, "a sheet", "GB/s")
    lines = checked(run_of(result(V.FAIL, value=7.0, unit="GB/s", expected=expected)))
    (measured,) = of_steps(lines, "measurement")
    assert measured["validators"][0]["value"] == 8
    assert measured["value"] == 7.0


@looped("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_an_error_and_no_measurement(number: float) -> None:
    gaps = {"samples": [1.0, number, 2.0], "deep": {"x": [number]}}
    lines = checked(run_of(result(value=number, unit="GB/s", extra=gaps)))
    assert not of_steps(lines, "measurement")
    assert "not a finite number" in of_steps(lines, "error")[0]["message"]
    assert [each["value"] for each in of_steps(lines, "measurementSeriesElement")] == [1.0, 2.0]
    assert end_of(lines) == ("ERROR", "NOT_APPLICABLE")


@looped(
    "text",
    [
        "two\nlines",
        "\u2028 and \x85 split lines elsewhere",
        "\ud800 half",
        "\x1b[31mred",
        "Größe 温度 🔥",
        '"\\',
        "\x00",
    ],
)
def test_odd_characters_stay_within_one_line(text: str) -> None:
    odd = result(V.FAIL, reason=f"a{text}b", device=f"d{text}", extra={text: [text]})
    devices = ({"name": text, "index": 0},)
    run = run_of(odd, host=text, command=("portagpu", text), devices=devices)
    rendered = render(run)
    lines = lines_of(rendered)
    assert problems(lines) == []
    assert len(rendered.splitlines()) == len(lines), "a reader that splits lines splits a text"
    (start,) = of_run(lines, "testRunStart")
    assert start["dutInfo"]["name"] == run.info.host
    assert of_steps(lines, "diagnosis")[0]["message"] == run.results[0].reason


def test_what_was_tested_is_described() -> None:
    changes = {"devices": GPUS, "backend": "maker", "versions": {"portagpu": "9", "driver": "5.1"}}
    lines = checked(run_of(result(device="maker:1"), **changes))
    (start,) = of_run(lines, "testRunStart")
    assert start["name"] == "portagpu-bringup"
    assert start["version"] == "9"
    assert start["commandLine"] == "portagpu bringup --quick --out 'bring up'"
    dut = start["dutInfo"]
    assert dut["dutInfoId"] == "node-07"
    second = dut["hardwareInfos"][1]
    assert second == {
        "hardwareInfoId": "device-1",
        "name": "Two",
        "manufacturer": "maker",
        "serialNumber": "GPU-0b",
        "location": "0:2",
        "partType": "GPU",
        "computerSystem": "node-07",
    }
    types = {each["name"]: each["softwareType"] for each in dut["softwareInfos"]}
    assert types == {"portagpu": "APPLICATION", "driver": "SYSTEM"}
    assert of_steps(lines, "diagnosis")[0]["hardwareInfoId"] == "device-1"


@looped(
    "device, evidence, devices, found",
    [
        ("maker:0", (), GPUS, "device-0"),
        ("maker:7", (), GPUS, None),
        (None, (Evidence.EXECUTED,), GPUS, None),
        (None, (Evidence.EXECUTED,), GPUS[:1], "device-0"),
        (None, (), GPUS[:1], None),
        (None, (Evidence.EXECUTED,), (), None),
        ("gpu-0b", (), GPUS, "device-1"),
    ],
)
def test_a_result_names_a_device_only_where_it_is_about_one(
    device: str | None, evidence: tuple[Evidence, ...], devices: Any, found: str | None
) -> None:
    one = result(V.FAIL, device=device, evidence=evidence)
    lines = checked(run_of(one, devices=devices, backend="maker", command=()))
    assert of_steps(lines, "diagnosis")[0].get("hardwareInfoId") == found


def test_curves_and_samples_are_series_and_the_rest_is_an_extension() -> None:
    curve = {
        "x": [0.5, 1.0, None],
        "y": [7.0, None, 9.0],
        "x_label": "time",
        "y_label": "power",
        "x_unit": "s",
        "y_unit": "W",
        "x_log": False,
        "series": "board",
    }
    extra = {"curves": [curve], "samples": [3, 4], "campaign": 5}
    lines = checked(run_of(result(value=3.5, unit="ms", n=2, statistic="median", extra=extra)))
    starts = of_steps(lines, "measurementSeriesStart")
    names = [(each["name"], each["unit"]) for each in starts]
    assert names == [("memory/copy/samples", "ms"), ("memory/copy/board", "W")]
    elements = of_steps(lines, "measurementSeriesElement")
    assert [(each["index"], each["value"]) for each in elements] == [(0, 3), (1, 4), (0, 7), (1, 9)]
    assert elements[2]["metadata"] == {"x": 0.5, "x_label": "time", "x_unit": "s"}
    assert elements[3]["metadata"] == {"x_label": "time", "x_unit": "s"}
    (form,) = of_steps(lines, "extension")
    assert form["name"] == "portagpu.result/1"
    again = Result.from_json(form["content"])
    assert again.extra == {"campaign": 5}
    assert again.value == 3.5


def test_the_place_of_wrong_elements_is_a_subcomponent() -> None:
    where = {"wrong": {"where": {"sentence": "rows 64-79"}}}
    lines = checked(run_of(result(V.FAIL, extra=where)))
    assert of_steps(lines, "diagnosis")[0]["subcomponent"]["location"] == "rows 64-79"
    for other in ({"wrong": 1}, {"wrong": {"where": None}}, {"wrong": {"where": {"sentence": 3}}}):
        lines = checked(run_of(result(V.FAIL, extra=other)))
        assert "subcomponent" not in of_steps(lines, "diagnosis")[0]


def test_an_interrupted_run_says_so() -> None:
    lines = checked(run_of(result(), interrupted=True))
    assert "interrupted" in of_run(lines, "log")[0]["message"]
    assert end_of(lines) == ("SKIP", "NOT_APPLICABLE")
    # a failure that was found stays one
    lines = checked(run_of(result(V.FAIL), interrupted=True))
    assert end_of(lines) == ("COMPLETE", "FAIL")


def test_an_error_that_ended_the_run_is_one_of_the_run() -> None:
    lines = checked(run_of(error={"exit_code": 1, "message": "no\nspace"}))
    assert of_run(lines, "error") == [{"symptom": "run-error", "message": "no space"}]
    assert end_of(lines) == ("ERROR", "NOT_APPLICABLE")


def test_every_result_that_is_kept_here_has_lines_that_the_schema_accepts() -> None:
    files = sorted((ROOT / "matrix/results").glob("*.json"))
    runs = [Run.from_json(json.loads(each.read_text("utf-8"))["result"]) for each in files]
    assert runs, "there is no saved result to convert"
    for run in (*runs, passing(), failing(), stopped(), run_of()):
        lines = checked(run)
        assert len(of_steps(lines, "testStepEnd")) == len(run.results)


def test_times_are_those_of_the_run(tmp_path: Path) -> None:
    run = run_of(result(), started="2025-01-01T01:00:00+01:00", duration_s=60)
    times = [each["timestamp"] for each in lines_of(write_ocp(run, tmp_path / "x").read_text())]
    assert times[:2] == ["2025-01-01T00:00:00.000000Z"] * 2
    assert set(times[2:]) == {"2025-01-01T00:01:00.000000Z"}
    forever = Run(replace(run.info, duration_s=1e300), list(run.results))
    assert problems(lines_of(render(forever))) == []


class Watched:
    """A stream of a run whose lines and clock the test has."""

    def __init__(self, run: Run) -> None:
        self.text: list[str] = []
        self.time = datetime(2025, 1, 1, tzinfo=UTC)
        self.run = run
        self.stream = Stream(self.text.append, lambda: self.time)
        self.stream.begin()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(each) for each in self.text]

    def add(self, one: Result) -> None:
        self.run.add(one)
        self.stream.update(self.run)
        assert problems(self.lines, cut_off=True) == []


def test_each_result_is_written_as_it_comes() -> None:
    watched = Watched(run_of(backend=None))
    for number in range(3):
        watched.add(result(id=f"memory/{number}"))
        assert len(of_steps(watched.lines, "testStepEnd")) == number + 1
    watched.stream.end(watched.run.finish())
    assert problems(watched.lines) == []
    saved = lines_of(render(watched.run))
    for one, other in zip(watched.lines, saved, strict=True):
        for each in (one, other):
            del each["timestamp"]
        assert one == other, "a saved run is not written as the run that went on"


def test_the_start_waits_for_the_devices_but_not_for_a_failure() -> None:
    watched = Watched(run_of(backend="maker"))
    watched.add(result(id="memory/a"))
    assert len(watched.lines) == 1
    watched.run.info = replace(watched.run.info, devices=GPUS[:1])
    watched.add(result(id="memory/b", device="maker:0"))
    assert [each["status"] for each in of_steps(watched.lines, "testStepEnd")] == ["COMPLETE"] * 2
    assert of_steps(watched.lines, "diagnosis")[1]["hardwareInfoId"] == "device-0"
    # a device that is opened later has no id to refer to
    watched.run.info = replace(watched.run.info, devices=GPUS)
    watched.add(result(id="memory/c", device="maker:1"))
    assert "further device" in of_run(watched.lines, "log")[0]["message"]
    assert "hardwareInfoId" not in of_steps(watched.lines, "diagnosis")[2]
    failed = Watched(run_of(backend="maker"))
    failed.add(result(V.FAIL))
    assert [each["type"] for each in of_steps(failed.lines, "diagnosis")] == ["FAIL"]


def test_results_that_still_change_show_their_failures_and_counts() -> None:
    watched = Watched(run_of(devices=GPUS[:1], backend="maker"))

    def so_far(seconds: float, *results: Result) -> None:
        watched.time += timedelta(seconds=seconds)
        watched.stream.judged_so_far(Run(watched.run.info, list(results)))
        assert problems(watched.lines, cut_off=True) == []

    def device(count: int) -> Result:
        return result(
            id="screen/device", suite="screen", device="maker:0", extra={"results": count}
        )

    wrong = result(V.FAIL, id="screen/p", suite="screen", device="maker:0", reason="1 wrong")
    so_far(0, device(10))
    so_far(5, device(20), wrong)
    so_far(5, device(30), wrong)
    so_far(60, device(40), wrong)
    values = [each["value"] for each in of_steps(watched.lines, "measurementSeriesElement")]
    assert values == [10, 40], "an element is written once a minute"
    assert [each["type"] for each in of_steps(watched.lines, "diagnosis")] == ["FAIL"]
    final = replace(wrong, reason="2 wrong")
    watched.add(device(50))
    watched.add(final)
    watched.stream.end(watched.run.finish())
    assert problems(watched.lines) == []
    kinds = [each["type"] for each in of_steps(watched.lines, "diagnosis")]
    assert kinds == ["FAIL", "PASS"], "a failure has one diagnosis"
    assert "2 wrong" in [each["message"] for each in of_steps(watched.lines, "log")]
    assert of_steps(watched.lines, "measurementSeriesEnd")[0]["totalCount"] == 3


def test_a_clock_that_is_set_back_sets_no_line_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class SetBack(datetime):
        """An hour earlier with each look."""

        looks = 0

        @classmethod
        def now(cls, tz: Any = None) -> SetBack:
            cls.looks += 1
            return cls(2026, 12, 1, 20 - cls.looks, tzinfo=tz)

    monkeypatch.setattr("portagpu.reports.ocp.stream.datetime", SetBack)
    text: list[str] = []
    run, stream = run_of(result(), backend=None), Stream(text.append)
    stream.begin()
    stream.update(run)
    stream.end(run.finish())
    assert problems(lines_of("".join(text))) == []


def test_parameters_name_the_seed_where_there_is_one() -> None:
    plain, seeded = (of_run(checked(run_of(**one)), "testRunStart") for one in ({}, {"seed": 0}))
    assert "seed" not in plain[0]["parameters"]
    assert seeded[0]["parameters"]["seed"] == 0


def test_a_step_that_began_ends_with_the_run() -> None:
    watched = Watched(run_of(backend=None))
    watched.stream.judged_so_far(Run(watched.run.info, [result(V.FAIL)]))
    watched.stream.end(watched.run.finish(interrupted=True))
    assert problems(watched.lines) == []
    assert of_steps(watched.lines, "testStepEnd") == [{"status": "SKIP"}]


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda lines: lines.pop(2), "rise by 1"),
        (lambda lines: lines.pop(), "does not end once"),
        (lambda lines: lines[2]["testStepArtifact"].update(testStepId=3), "was unexpected"),
        (lambda lines: lines[2]["testStepArtifact"].pop("testStepStart"), "before its start"),
        (lambda lines: lines[-1]["testRunArtifact"]["testRunEnd"].update(result="FAIL"), ""),
        (lambda lines: lines[3].update(timestamp="yesterday"), "times go back"),
    ],
)
def test_the_rules_refuse_what_is_wrong(damage: Any, word: str) -> None:
    lines = lines_of(render(run_of(result())))
    damage(lines)
    if not word:
        lines[-1]["testRunArtifact"]["testRunEnd"]["status"] = "ERROR"
        word = "valid combination"
    assert any(word in each for each in problems(lines)), problems(lines)


def test_the_info_of_a_run_without_anything_has_lines() -> None:
    lines = checked(Run(RunInfo(id="r", started="2025-01-01T00:00:00Z")))
    (start,) = of_run(lines, "testRunStart")
    assert start["dutInfo"]["dutInfoId"] == "unknown"
    assert (start["name"], start["version"]) == ("portagpu", "unknown")
