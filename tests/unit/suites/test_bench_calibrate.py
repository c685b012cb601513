"""Expectations proposed from own results, and results compared among hosts."""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

np = pytest.importorskip("numpy")

from portagpu.base.paths import matrix_dir
from portagpu.cli import main
from portagpu.facts.targets import Authority, load_target, parse_target
from portagpu.runs.results.run import Result, Run, new_run
from portagpu.runs.results.verdicts import Evidence, Verdict
from portagpu.suites.performance.fleet import (
    CannotCalibrate,
    NoPeers,
    check_runs,
    compare_runs,
    propose,
    tolerance,
)

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = {"torch": "2.13.0+rocm7.0", "rocm": "7.0.2", "comm": "RCCL 2.26.6", "kernel": "6.8.0"}


def measure(name: str, value: float | None, **changes: Any) -> Result:
    metric = name.partition("[")[0]
    area = name.partition("/")[0]
    shape: dict[str, Any] = {
        "gemm": {"m": 8192, "n": 8192, "k": 8192, "dtype": "bf16", "contiguous": "kn"},
        "memory": {"array_bytes": 1 << 30, "dtype": "fp32"},
        "transfer": {"bytes": 1 << 29},
        "collectives": {"bytes": 1 << 28, "ranks": 8, "dtype": "fp32"},
        "launch": {},
    }[area]
    fields: dict[str, Any] = {
        "suite": "performance",
        "area": area,
        "verdict": Verdict.UNVERIFIED,
        "evidence": (Evidence.EXECUTED,),
        "value": value,
        "unit": {"gemm": "TFLOPS", "launch": "us"}.get(area, "GB/s"),
        "statistic": "median",
        "shape": shape,
        "extra": {"metric": metric},
    }
    return Result(id=name, **{**fields, **changes})


def run_of(results: list[Result], number: int = 0, **info: Any) -> Run:
    run = new_run(["portagpu", "bench"], target="amd-mi300x", host=f"node{number}")
    run.info = replace(run.info, versions={**run.info.versions, **VERSIONS}, **info)
    run.extend(results)
    return run.finish()


def runs_of(name: str, values: list[float], **changes: Any) -> list[Run]:
    return [run_of([measure(name, value, **changes)], i) for i, value in enumerate(values)]


BF16 = "gemm/bf16[8192]"


def test_the_tolerance_is_the_rule_for_peers() -> None:
    """Median 100, MAD 2: 3.5 x 1.4826 x 2 = 10.378, so 10.5 %; of a quiet measure it is 5 %."""
    assert tolerance([98.0, 100.0, 102.0, 98.0, 102.0, 100.0, 104.0]) == 0.105
    assert tolerance([100.0, 100.1, 99.9, 100.0, 100.2]) == 0.05
    values = np.random.default_rng(7).normal(500.0, 9.0, 40)
    middle = np.median(values)
    wide = 3.5 * 1.4826 * np.median(np.abs(values - middle)) / middle
    assert 0 <= tolerance(list(values)) - max(wide, 0.05) < 0.005


def test_a_row_says_what_it_is_of_and_a_targets_file_accepts_it() -> None:
    measures = {
        BF16: 612.5,
        "memory/copy": 4300.0,
        "transfer/h2d[pinned]": 55.0,
        "collectives/all_reduce[8]": 290.0,
    }
    runs = [
        run_of([measure(name, value * spread) for name, value in measures.items()], number)
        for number, spread in enumerate((0.99, 1.0, 1.0, 1.01, 1.02))
    ]
    proposal = propose(runs, load_target("amd-mi300x"))
    assert proposal.left_out == ()
    rows = tomllib.loads(proposal.text)["expectations"]
    assert [row["metric"] for row in rows] == [
        "gemm/bf16",
        "memory/copy",
        "transfer/h2d",
        "collectives/all_reduce",
    ]
    gemm, copy, h2d, reduce = rows
    assert (gemm["reference"], gemm["lower"], gemm["upper"]) == (612.5, -0.055, 0.055)
    assert (gemm["shape"], gemm["contiguous"]) == ("8192x8192x8192", "kn")
    assert gemm["software"] == {"torch": "==2.13.0", "rocm": "==7.0.2", "rccl": "==2.26.6"}
    assert "5 runs on 5 hosts" in gemm["note"]
    assert (copy["size_bytes"], copy["dtype"]) == (1 << 30, "fp32")
    assert (h2d["algorithm"], h2d["size_bytes"]) == ("pinned", 1 << 29)
    assert (reduce["ranks"], reduce["size_bytes"]) == (8, 1 << 28)
    text = (matrix_dir() / "targets" / "amd-mi300x.toml").read_text()
    target = parse_target(f"{text}\n{proposal.text}", file="amd-mi300x.toml")
    own = [each for each in target.all_expectations if each.authority is Authority.OWN]
    assert len(own) == 4
    assert all(each.judge(measures[name]).inside for each, name in zip(own, measures, strict=True))


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ([measure("launch/issue", 3.0)] * 5, "targets state no expectations of it"),
        ([measure(BF16, 600.0)] * 4 + [measure(BF16, None, reason="hm")], "only 4 of 5 runs"),
        ([measure(BF16, 600.0)] * 4 + [measure(BF16, float("nan"))], "it failed in 1 of 5"),
        (
            [measure(BF16, 600.0)] * 4 + [measure(BF16, 60.0, verdict="FAIL", reason="slow")],
            "failed",
        ),
        ([measure(BF16, 600.0)] * 4 + [measure(BF16, 600.0, evidence=())], "not executed"),
        (
            [measure(BF16, 600.0)] * 4 + [measure(BF16, 600.0, verdict="INCONCLUSIVE", reason="x")],
            "spread is too wide",
        ),
        ([measure(BF16, value) for value in (300, 400, 500, 600, 700)], "differ too much"),
        ([measure(BF16, 600.0)] * 4 + [measure(BF16, 600.0, shape={"m": 1})], "shape, unit or"),
        ([measure(BF16, 6000.0)] * 5, "above-limit"),
        ([measure(BF16, 0.0)] * 5, "not positive"),
        ([measure("gemm/bf16[max]", 9.0, shape="the fastest square")] * 5, "not fixed"),
        ([measure("memory/copy", 9.0, shape=None)] * 5, "not fixed"),
        ([measure(BF16, None, verdict="SKIP", reason="no bf16")] * 5, "skipped"),
    ],
)
def test_a_measure_that_gives_no_expectation_says_why(results: list[Result], reason: str) -> None:
    runs = [run_of([each], number) for number, each in enumerate(results)]
    proposal = propose(runs, load_target("amd-mi300x"))
    assert proposal.rows == ()
    ((_, why),) = proposal.left_out
    assert reason in why, why
    assert "\n" not in why


def good_runs(count: int = 5) -> list[Run]:
    return runs_of(BF16, [600.0 + number for number in range(count)])


def with_info(run: Run, **changes: Any) -> Run:
    run.info = replace(run.info, **changes)
    return run


def other_run(**changes: Any) -> Run:
    return with_info(good_runs(1)[0], **changes)


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        (lambda: good_runs(4), "4 runs are too few: give at least 5"),
        (lambda: good_runs(5)[:4] * 2, "is given twice"),
        (
            lambda: [*good_runs(), other_run(target="amd-mi325x")],
            "several targets",
        ),
        (lambda: [*good_runs(), other_run(target=None)], "matches no target"),
        (
            lambda: [
                *good_runs(),
                with_info(good_runs(1)[0], versions={**VERSIONS, "rocm": "6.4"}),
            ],
            "several versions of",
        ),
        (lambda: [*good_runs(), other_run(interrupted=True)], "was interrupted"),
    ],
)
def test_runs_that_cannot_be_calibrated_are_refused_in_one_line(runs: Any, reason: str) -> None:
    with pytest.raises(CannotCalibrate, match=reason) as caught:
        check_runs(runs())
    assert "\n" not in str(caught.value)


def files(folder: Path, runs: list[Run]) -> list[str]:
    return [str(run.write_json(folder / f"{i}.json")) for i, run in enumerate(runs)]


def test_the_verb_prints_rows_alone_and_what_is_left_out_next_to_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs = good_runs()
    for run in runs:
        run.add(measure("launch/issue", 2.0))
    assert main(["bench", "--calibrate", *files(tmp_path, runs)]) == 0
    caught = capsys.readouterr()
    (row,) = tomllib.loads(caught.out)["expectations"]
    assert row["reference"] == 602.0
    assert "left out: launch/issue: targets state no expectations of it" in caught.err
    assert "proposed 1 expectation for amd-mi300x" in caught.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--calibrate"], "name the results"),
        (["--calibrate", "missing.json"], "cannot be read"),
        (["--calibrate", "0.json"], "1 runs are too few"),
        (["--calibrate", "nan.json"], "nan.json"),
        (["--calibrate", "--level", "full", "0.json"], "leave out --level"),
        (["--calibrate", "--peers", "0.json"], "give either --peers or --calibrate"),
        (["--calibrate", "--json", "x.json", "0.json"], "leave out --json"),
        (["--peers", "--target", "amd-mi300x", "0.json"], "leave out --target"),
        (["--peers", "0.json", "copy.json"], "both hold the run"),
        (["--peers", "0.json", "--json", "0.json"], "0.json is also an input"),
        (["--peers", "0.json", "--junit", "./0.json"], "0.json is also an input"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (file,) = files(tmp_path, good_runs(1))
    document = json.loads((tmp_path / "0.json").read_text())
    document["results"][0]["value"] = float("nan")
    (tmp_path / "nan.json").write_text(json.dumps(document))
    shutil.copy(file, tmp_path / "copy.json")
    assert main(["bench", *arguments]) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    assert words in caught.err
    assert caught.err.count("\n") == 1


@pytest.mark.parametrize("verb", ["--calibrate", "--peers"])
@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"started": "2099-01-01T00:00:00Z"}, "in the future"),
        ({"started": "1970-01-01T00:00:00Z"}, "was not set"),
        ({"started": "2026-01-01T00:00:00Z"}, "the clock jumped"),
        ({"duration_s": 0.5}, "run.duration_s"),
    ],
)
def test_a_run_whose_clock_was_wrong_is_left_out_and_named(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    verb: str,
    info: dict[str, Any],
    words: str,
) -> None:
    runs = runs_of(BF16, [600.0, 601.0, 602.0, 603.0, 604.0, 605.0], duration_s=30.0)
    for run in runs:
        with_info(run, duration_s=60.0)
    with_info(runs[3], **info)
    given = files(tmp_path, runs)
    assert main(["bench", verb, *given]) == 0
    (line,) = (each for each in capsys.readouterr().err.splitlines() if "3.json" in each)
    assert line.startswith(f"left out: {tmp_path / '3.json'}: run.")
    assert words in line
    assert main(["bench", verb, given[3]]) == 2, "no other is there"
    assert words in capsys.readouterr().err


# ---- peers


def test_a_host_unlike_the_others_is_named_and_the_rest_pass() -> None:
    """Median 600, MAD 2: 3.5 x 1.4826 x 2 = 10.4 and 5 % of 600 = 30; 560 is 40 below."""
    runs = runs_of(BF16, [598.0, 600.0, 602.0, 604.0, 560.0, 600.0, 596.0])
    compared = compare_runs(runs)
    assert compared.verdict is Verdict.FAIL
    assert [(each.device, each.id) for each in compared.failures] == [("node4", f"peers/{BF16}")]
    assert "7% below the median of its peers" in compared.failures[0].reason
    assert compared.counts[Verdict.PASS] == 6


def test_the_devices_of_one_node_are_peers_by_the_same_rule() -> None:
    results = [
        measure("gemm/bf16[8192]", value, device=f"rank {rank}")
        for rank, value in enumerate((600.0, 601.0, 500.0, 602.0))
    ]
    compared = compare_runs([run_of(results)])
    (bad,) = compared.failures
    assert bad.device == "node0 rank 2"


def test_fewer_than_four_are_not_judged_and_several_runs_of_a_host_count_once() -> None:
    runs = [run_of([measure(BF16, 600.0 + i)], i % 3) for i in range(9)]
    compared = compare_runs(runs)
    assert {each.verdict for each in compared.results} == {Verdict.UNVERIFIED}
    assert [each.value for each in compared.results] == [603.0, 604.0, 605.0], "the medians"
    assert compared.exit_code == 3


def test_a_host_that_failed_without_a_number_fails_and_one_not_judged_is_inconclusive() -> None:
    runs = runs_of(BF16, [600.0] * 4)
    runs.append(run_of([measure(BF16, None, verdict="FAIL", reason="wrong value")], 8))
    runs.append(run_of([measure(BF16, 1.0, verdict="INCONCLUSIVE", reason="too noisy")], 9))
    by_host = {each.device: each for each in compare_runs(runs).results}
    assert by_host["node8"].verdict is Verdict.FAIL
    assert "gave no number" in by_host["node8"].reason
    assert (by_host["node9"].verdict, by_host["node9"].reason) == ("INCONCLUSIVE", "too noisy")


def test_another_version_than_that_of_most_hosts_is_shown() -> None:
    runs = runs_of(BF16, [600.0] * 5)
    with_info(runs[3], versions={**runs[3].info.versions, "rocm": "6.4.1"})
    (shown,) = [each for each in compare_runs(runs).results if each.id == "peers/versions"]
    assert (shown.verdict, shown.device) == (Verdict.UNVERIFIED, "node3")
    assert shown.reason == "rocm is 6.4.1, and 4 hosts have 7.0.2"


def test_the_measures_of_a_bring_up_are_compared_and_calibrated_too() -> None:
    """A gate adopts a measure: its id stays, and ``extra`` says of which suite it is."""
    of_gate = {"suite": "bringup", "area": "sustained"}
    extra = {"suite": "performance", "area": "gemm", "metric": "gemm/bf16"}
    drift = measure("launch/issue", 0.2, unit="%")
    runs = []
    for number, value in enumerate((600.0, 601.0, 602.0, 603.0, 400.0)):
        conformance = {**extra, "suite": "conformance"}
        other = measure("memory/copy", value, **of_gate, extra=conformance)
        alone = replace(drift, id="sustained/drift", value=float(number))
        rank = replace(measure(BF16, value), id="ranks/gemm", device="rank 1")
        adopted = measure(BF16, value, **of_gate, extra=extra)
        runs.append(run_of([adopted, other, alone, rank], number))
    compared = compare_runs(runs)
    assert {each.id for each in compared.failures} == {f"peers/{BF16}", "peers/ranks/gemm"}
    assert {each.device for each in compared.failures} == {"node4", "node4 rank 1"}
    assert len(compared.results) == 10, "no case of conformance, and no drift"
    again = run_of(list(runs[0].results), 9)
    (row,) = tomllib.loads(propose([*runs[:4], again], load_target("amd-mi300x")).text)[
        "expectations"
    ]
    assert (row["metric"], row["reference"]) == ("gemm/bf16", 601.0)


def test_sizes_that_differ_are_not_compared() -> None:
    quick = [measure("memory/copy", 4000.0) for _ in range(4)]
    full = measure("memory/copy", 2000.0, shape={"array_bytes": 1 << 31, "dtype": "fp32"})
    runs = [run_of([each], number) for number, each in enumerate([*quick, full])]
    assert not compare_runs(runs).failures


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        (
            lambda: [*good_runs(), other_run(target="amd-mi325x")],
            "several targets \\(",
        ),
        (lambda: [run_of([])], "there is no measure"),
    ],
)
def test_runs_that_are_not_peers_are_refused(runs: Any, reason: str) -> None:
    with pytest.raises(NoPeers, match=reason):
        compare_runs(runs())


def test_the_verb_compares_files_and_writes_a_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = files(tmp_path, runs_of(BF16, [600.0, 601.0, 602.0, 603.0, 300.0]))
    out = tmp_path / "peers.json"
    assert main(["bench", "--peers", *names, "--json", str(out)]) == 1
    shown = capsys.readouterr().out
    assert "50% below the median of its peers" in shown
    assert "look at that device" in shown
    document = json.loads(out.read_text())
    assert (document["verdict"], document["culprit"]) == ("FAIL", "node4")
    assert document["run"]["target"] == "amd-mi300x"


def test_values_whose_median_no_number_holds_are_compared() -> None:
    run = compare_runs(runs_of(BF16, [1.7e308, 1.6e308] * 3))
    assert [each.verdict for each in run.results] == [Verdict.PASS] * 6
    assert "Infinity" not in run.to_text()
