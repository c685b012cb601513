"""``portagpu conform``: listing, files, exit codes and one-line errors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from portagpu import cli
from portagpu.cli._conform_text import SuiteView
from portagpu.runs.engine import add_result
from portagpu.runs.results.run import Result, Verdict, read_json
from portagpu.suites.conformance.messages import DeviceUnderTest, TargetClaims
from tests.support.ocp_rules import lines_of, of_run, of_steps, problems

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from portagpu.runs.engine import Progress
    from portagpu.runs.results.run import Run
    from portagpu.suites.conformance import ConformOptions
    from tests.conftest import Child

pytestmark = pytest.mark.usefixtures("forked")

PROGRAM = 'generators [["fork",{}]]'
DEVICE = DeviceUnderTest(
    backend="cpu",
    name="cpu",
    product="A <b>CPU</b>",
    vendor="someone",
    arch="x86-64",
    capabilities=frozenset({"streams"}),
    target=TargetClaims("cpu-x86-64", frozenset({"streams"})),
    versions={"torch": "2.13.0", "driver": None},
)


def _result(name: str, verdict: Verdict, reason: str = "") -> Result:
    area = name.partition("/")[0]
    return Result(
        id=name, suite="conformance", area=area, verdict=verdict, reason=reason, duration_s=0.5
    )


PASSED = _result("rng/good", Verdict.PASS)
FAILED = _result("memory/bad", Verdict.FAIL, "the peak is below the current value")
OPEN = _result("streams/open", Verdict.INCONCLUSIVE, "needs two devices")
SEARCHED = replace(
    _result("rng/random-programs", Verdict.PASS), extra={"observed": ["431 programs, seed 0"]}
)
SKIPPED = _result("graphs/none", Verdict.SKIP, "cpu does not claim graphs")


@pytest.fixture
def gives(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the suite give these results, and be interrupted afterwards if asked."""
    monkeypatch.setattr("portagpu.cli.conform.require_torch", lambda verb: None)

    def install(*results: Result, interrupt: bool = False) -> None:
        def fake(run: Run, options: ConformOptions, progress: Progress) -> None:
            DEVICE.describe_in(run, "cpu-x86-64", "arch", "vendor")
            progress.opened(DEVICE)
            for each in results:
                add_result(run, progress, each)
            if interrupt:
                raise KeyboardInterrupt

        monkeypatch.setattr("portagpu.suites.conformance.engine.judge_cases", fake)

    return install


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ((PASSED,), 0),
        ((PASSED, SKIPPED), 0),
        ((PASSED, FAILED), 1),
        ((PASSED, _result("rng/e", Verdict.ERROR, "died")), 1),
        ((PASSED, OPEN), 3),
        ((SKIPPED,), 3),
    ],
)
def test_exit_code_follows_the_verdict(
    gives: Callable[..., None], results: tuple[Result, ...], code: int
) -> None:
    gives(*results)
    assert cli.main(["conform"]) == code


def test_strict_lowers_what_is_unverified(gives: Callable[..., None]) -> None:
    gives(PASSED, _result("rng/u", Verdict.UNVERIFIED))
    assert cli.main(["conform"]) == 0
    assert cli.main(["conform", "--strict"]) == 3


def test_failures_stand_at_the_end_before_the_verdict(
    gives: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    gives(PASSED, SKIPPED, OPEN, FAILED)
    cli.main(["conform"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    at = lines.index("1 failure:")
    assert lines[at + 1] == "a claim of the backend does not hold:"
    assert lines[at + 2] == "  FAIL  memory/bad: the peak is below the current value"
    assert lines[at + 3].startswith("  next: run the case alone")
    assert len(lines) == at + 6, "below it are the counts and the verdict"
    assert lines[-1].startswith("FAIL: memory/bad: the peak is below the current value")
    areas = [line.split()[0] for line in lines if line.split()[-1] == "0.5"]
    assert areas == ["rng", "graphs", "streams", "memory"], "an area is missing in the table"


def test_files_hold_the_run(gives: Callable[..., None], tmp_path: Path) -> None:
    gives(PASSED, FAILED)
    files = [str(tmp_path / "result.json"), str(tmp_path / "junit.xml")]
    assert cli.main(["conform", "--json", files[0], "--junit", files[1]]) == 1
    run = read_json(files[0])
    assert run.verdict is Verdict.FAIL
    assert run.info.backend == "cpu"
    assert run.info.target == "cpu-x86-64"
    assert run.info.devices[0]["name"] == "A <b>CPU</b>"
    assert run.info.versions["torch"] == "2.13.0"
    assert "memory/bad" in (tmp_path / "junit.xml").read_text("utf-8")


def test_a_folder_gets_the_result_junit_and_the_report(
    gives: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gives(PASSED, FAILED)
    folder = tmp_path / "new"
    assert cli.main(["conform", "--out", str(folder)]) == 1
    names = ["result.json", "junit.xml", "report.html"]
    assert sorted(each.name for each in folder.iterdir()) == sorted(names)
    assert read_json(folder / "result.json").verdict is Verdict.FAIL
    assert "memory/bad" in (folder / "report.html").read_text("utf-8")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [f"wrote {folder / name}" for name in names]


def test_json_to_standard_output_is_alone_there(
    gives: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    gives(PASSED)
    assert cli.main(["conform", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["schema"] == "portagpu.result/1"
    assert "PASS" in captured.err


def test_ctrl_c_leaves_a_valid_partial_result(gives: Callable[..., None], tmp_path: Path) -> None:
    gives(PASSED, interrupt=True)
    file = tmp_path / "result.json"
    assert cli.main(["conform", "--json", str(file)]) == 130
    run = read_json(file)
    assert run.info.interrupted
    assert run.verdict is Verdict.INCONCLUSIVE
    assert [each.id for each in run.results] == ["rng/good"]


def test_each_result_is_a_line_before_the_next_one(
    gives: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "run.jsonl"
    seen = []
    added = SuiteView.result_added

    def watched(view: SuiteView, result: Result) -> None:
        added(view, result)
        lines = lines_of(place.read_text("utf-8"))
        assert problems(lines, cut_off=True) == []
        seen.append(len(of_steps(lines, "testStepEnd")))

    monkeypatch.setattr(SuiteView, "result_added", watched)
    gives(PASSED, FAILED, SKIPPED, interrupt=True)
    assert cli.main(["conform", "--ocp", str(place)]) == 130
    assert seen == [1, 2, 3]
    lines = lines_of(place.read_text("utf-8"))
    assert problems(lines) == []
    assert of_run(lines, "testRunStart")[0]["dutInfo"]["hardwareInfos"][0]["name"] == "A <b>CPU</b>"
    assert of_run(lines, "testRunEnd") == [{"status": "COMPLETE", "result": "FAIL"}]


@pytest.mark.parametrize("option", ["--junit", "--json", "--ocp"])
def test_unwritable_file_is_one_line_before_anything_runs(
    option: str, gives: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gives(PASSED)
    (tmp_path / "file").write_text("")
    assert cli.main(["conform", option, str(tmp_path / "file" / "x.xml")]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "cannot write" in captured.err
    assert captured.out == "", "the suite ran for nothing"


def test_two_outputs_in_one_file_are_refused(
    gives: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gives(PASSED)
    one, other = tmp_path / "result", tmp_path / "." / "link"
    other.symlink_to(one)
    assert cli.main(["conform", "--json", str(one), "--junit", str(other)]) == 2
    assert "name a different file for each" in capsys.readouterr().err
    assert cli.main(["conform", "--json", "/dev/null", "--junit", "/dev/null"]) == 0


def test_a_disk_that_fills_while_it_runs_hides_no_verdict(
    gives: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gives(PASSED, FAILED)
    monkeypatch.setattr("portagpu.cli._common.check_writable", lambda path: None)
    assert cli.main(["conform", "--junit", "/dev/full"]) == 1
    captured = capsys.readouterr()
    assert "FAIL: memory/bad" in captured.out
    assert "No space left on device" in captured.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "rgn"], "did you mean 'rng'"),
        (["--backend", "cpi"], "did you mean 'cpu'"),
        (["--target", "cpu-x86-65"], "cpu-x86-64"),
        (["--target", ""], "there is no target ''"),
        (["--target", "a\nb"], r"there is no target 'a\nb'"),
        (["--timeout", "0"], "--timeout"),
        (["--timeout", "nan"], "--timeout"),
        (["--timeout", "inf"], "--timeout"),
        (["--nonsense"], "--nonsense"),
        (["--smoke", "--level", "deep"], "give either --smoke or --level deep, not both"),
        (["--time", "30s"], "--time needs --level deep"),
        (["--level", "deep", "--only", "telemetry"], "no selected case runs random programs"),
        (["--program", " "], "--program is empty"),
        (["--program", "generators []"], "not a program"),
        (["--program", PROGRAM, "--only", "rng"], "leave out what selects cases"),
        (["--program", PROGRAM, "--list"], "leave out what selects cases"),
        (["--program", 'generators [["_repr__",{}]]'], "has no call '_repr__'"),
        (["--program", 'collectives-2 [["all_reduce",{"x":1}]]'], "has no argument 'x'"),
        (["--program", 'collectives-2 [["all_reduce",{"seed":1}]]'], "needs the argument 'group'"),
    ],
)
def test_wrong_usage_is_one_line_and_two(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--list" not in words:
        pytest.importorskip("torch")
    assert cli.main(["conform", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, f"more than one line: {error}"
    assert said in error


def test_list_names_every_case_with_its_specification(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["conform", "--list", "--only", "rng/state-restores"]) == 0
    out = capsys.readouterr().out
    assert "rng/state-restores (4 cases)" in out
    assert "A generator that is put back into a saved state" in out


def test_list_as_json_has_the_documents_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["conform", "--list", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "portagpu.cases/1"
    keys = {"id", "area", "spec", "traps", "capability", "outcome"}
    assert all(set(each) == keys for each in document["cases"])
    by_id = {each["id"]: each for each in document["cases"]}
    assert by_id["streams/random-programs"]["capability"] == "streams+events"
    assert by_id["rng/seed-repeats[rand]"]["capability"] is None


def test_listing_needs_no_torch(child: Callable[..., Child], tmp_path: Path) -> None:
    shadow = tmp_path / "shadow" / "torch"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("raise ImportError('there is no torch here')", "utf-8")
    words = ("-m", "portagpu", "conform", "--list", "--only", "precision")
    assert "precision/fp8-overflow" in child(*words, path=[shadow.parent]).ok()


def test_the_verb_runs_for_real(child: Callable[..., Child], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "result.json"
    # all but random programs, which tests/process/test_cpu_conformance.py runs
    only = [word for name in ("*-*-*", "s*", "f*") for word in ("--only", f"rng/{name}")]
    words = ("-m", "portagpu", "conform", "--backend", "cpu", *only, "--json", str(file))
    ended = child(*words)
    assert ended.code == 0, ended.out + ended.err
    assert ended.out.splitlines()[-1] == "PASS"
    run = read_json(file)
    judged = [each for each in run.results if each.id != "rng/wave-is-whole-blocks"]
    assert len(judged) > 20
    assert all(each.verdict is Verdict.PASS for each in judged)
    names = ("seed-is-random", "state-is-bytes", "generator-is-the-default")
    asked = {f"rng/{name}" for name in (*names, "default-generators-are-the-devices")}
    for each in judged:
        earned = "loaded" if each.extra["case"] in asked else "executed"
        assert each.evidence == (earned,), each.id


def test_exitfirst_is_asked_of_the_suite_and_verbose_states_every_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the suite does with it, tests/full/test_suite_exit_first.py runs."""
    asked: list[bool] = []

    def fake(run: Run, options: ConformOptions, progress: Progress) -> None:
        asked.append(options.exit_first)
        for each in (PASSED, FAILED, SEARCHED):
            add_result(run, progress, each)

    monkeypatch.setattr("portagpu.cli.conform.require_torch", lambda verb: None)
    monkeypatch.setattr("portagpu.suites.conformance.engine.judge_cases", fake)
    assert cli.main(["conform", "-x", "-v"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["PASS", "FAIL", "PASS"]
    assert lines[1].endswith(f"{FAILED.id}: {FAILED.reason}")
    assert lines[2].endswith("rng/random-programs: 431 programs, seed 0")
    cli.main(["conform"])
    assert asked == [True, False]
