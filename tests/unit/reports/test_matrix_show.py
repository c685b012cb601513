"""The matrix of all targets: built from results alone, by the rules of the ledger."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.cli import main
from portagpu.facts.targets import load_target
from portagpu.reports.bundles.check import stated_names
from portagpu.reports.bundles.document import read_files
from portagpu.reports.proofs import cells, rows
from portagpu.reports.proofs.table import HEAD, line
from portagpu.runs.results.run import Evidence, Result, Run, Verdict, new_run
from tests.support.history_samples import measure

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.reports.proofs import Cell

CASE = "rng/random-programs"
"""A case that earns ``executed``."""
STARTED = "2026-01-0{day}T00:00:00Z"


def run_of(
    day: int,
    *results: tuple[str, Verdict],
    target: str = "cpu-x86-64",
    evidence: Evidence = Evidence.EXECUTED,
    **fields: Any,
) -> Run:
    """A run of the conformance suite that began on that day of January."""
    run = new_run(["portagpu", "conform"], target=target, backend="cpu", host="node", **fields)
    for name, verdict in results:
        run.add(
            Result(
                id=name,
                suite="conformance",
                area=name.partition("/")[0],
                verdict=verdict,
                evidence=[evidence],
                reason="" if verdict is Verdict.PASS else "a reason",
            )
        )
    document = run.finish(duration_s=1.0).to_json()
    document["run"]["started"] = STARTED.format(day=day)
    # made at that time, as the id says too
    document["run"]["id"] = f"202601{day:02}T000000Z-{document['run']['id'][-8:]}"
    return Run.from_json(document)


def written(run: Run, path: Path) -> Path:
    return run.write_json(path)


def cells_of(*places: Path) -> list[Cell]:
    return cells((each.path.name, each.run) for each in read_files(places))


def test_what_failed_stays_until_it_passes(tmp_path: Path) -> None:
    written(run_of(2, (CASE, Verdict.FAIL)), tmp_path / "a.json")
    written(
        run_of(1, (CASE, Verdict.PASS), ("streams/random-programs", Verdict.PASS)),
        tmp_path / "b.json",
    )
    written(run_of(3, ("rng/seed-repeats[rand]", Verdict.PASS)), tmp_path / "c.json")
    rng, streams = cells_of(tmp_path)
    assert (rng.area, rng.verdict, rng.source) == ("rng", Verdict.FAIL, "a.json")
    assert rng.counts == {Verdict.PASS: 1, Verdict.FAIL: 1}
    assert (streams.area, streams.source) == ("streams", "b.json")
    assert streams.badge is Evidence.EXECUTED
    written(run_of(4, (CASE, Verdict.PASS)), tmp_path / "d.json")
    rng, _ = cells_of(tmp_path)
    assert rng.counts == {Verdict.PASS: 2}
    assert rng.source == "d.json"


def test_one_case_makes_no_area_a_pass(tmp_path: Path) -> None:
    names = sorted(stated_names("conformance", "graphs"))
    place = written(run_of(1, (names[0], Verdict.PASS)), tmp_path / "a.json")
    (cell,) = cells_of(place)
    assert (cell.verdict, cell.detail) == (
        Verdict.INCONCLUSIVE,
        f"executed, 1 of {len(names)}",
    )
    written(run_of(2, *((name, Verdict.PASS) for name in names[1:])), tmp_path / "b.json")
    (cell,) = cells_of(tmp_path)
    assert (cell.verdict, cell.detail) == (Verdict.PASS, f"executed, {len(names)}")
    (row,) = rows([load_target("cpu-x86-64")], read_files([tmp_path]))
    shown = row.suite("conformance")
    assert shown is not None
    assert shown.verdict is Verdict.INCONCLUSIVE, "there are other areas"
    bench = Run(run_of(3).info, [replace(measure("gemm/fp32[4096]", 1.0), verdict=Verdict.PASS)])
    written(bench, tmp_path / "c.json")
    gemm = cells_of(tmp_path / "c.json")[0]
    metrics = len(stated_names("performance", "gemm"))
    assert (gemm.verdict, gemm.detail) == (Verdict.INCONCLUSIVE, f"executed, 1 of {metrics}")


@pytest.mark.parametrize(
    ("name", "stated", "earned"),
    [
        (CASE, Evidence.EXECUTED, Evidence.EXECUTED),
        (CASE, Evidence.LOADED, Evidence.LOADED),
        # a case that only asks earns no more, whatever a file states
        ("identity/handle-is-one", Evidence.EXECUTED, Evidence.LOADED),
        ("rng/no-such-case", Evidence.EXECUTED, None),
    ],
)
def test_evidence_is_what_the_case_can_earn(
    name: str, stated: Evidence, earned: Evidence | None, tmp_path: Path
) -> None:
    place = written(run_of(1, (name, Verdict.PASS), evidence=stated), tmp_path / "a.json")
    (cell,) = cells_of(place)
    assert cell.badge is earned


def test_a_recording_earns_recorded_at_most(tmp_path: Path) -> None:
    judged = [{"name": "node.json", "sha256": None, "source": None}]
    place = written(run_of(1, (CASE, Verdict.PASS), replay=judged), tmp_path / "a.json")
    (cell,) = cells_of(place)
    assert cell.badge is Evidence.RECORDED


@pytest.mark.parametrize(
    ("backend", "devices", "badge"),
    [
        ("cuda", 1, None),
        ("cuda", 2, Evidence.EXECUTED),
        # ranks share a CPU
        ("cpu", 1, Evidence.EXECUTED),
        ("of-another-distribution", 1, None),
    ],
)
def test_one_device_executes_no_collectives(
    backend: str, devices: int, badge: Evidence | None
) -> None:
    run = new_run([], target="example-1", backend=backend, devices=[{"name": "x"}] * devices)
    fields: dict[str, Any] = {"verdict": Verdict.PASS, "evidence": [Evidence.EXECUTED]}
    run.add(Result(id="collectives/values", suite="bringup", area="collectives", **fields))
    (cell,) = cells([("a.json", run)])
    assert cell.badge is badge


def test_a_screen_has_a_column_and_is_whole_with_all_its_probes(tmp_path: Path) -> None:
    def screened(day: int, *names: str, verdict: Verdict = Verdict.PASS) -> Run:
        run = run_of(day, *((name, verdict) for name in names))
        return Run(run.info, [replace(each, suite="screen", area="screen") for each in run.results])

    names = sorted(stated_names("screen", "screen"))
    assert "screen/device" in names
    assert "screen/products/float32[square]" in names
    written(screened(1, names[0], "screen/no-such-probe"), tmp_path / "a.json")
    target = load_target("cpu-x86-64")

    def shown() -> str:
        (row,) = rows([target], read_files([tmp_path]))
        return dict(zip(HEAD, line(row), strict=True))["screen"]

    assert shown() == f"INCONCLUSIVE, executed, 1 of {len(names)}"
    written(screened(2, *names), tmp_path / "b.json")
    assert shown() == f"PASS, executed, {len(names) + 1}"
    written(screened(3, names[1], verdict=Verdict.FAIL), tmp_path / "c.json")
    assert shown().startswith("FAIL, executed")


def test_what_did_not_run_earns_nothing(tmp_path: Path) -> None:
    place = written(run_of(1, (CASE, Verdict.SKIP)), tmp_path / "a.json")
    (cell,) = cells_of(place)
    assert (cell.verdict, cell.badge) == (Verdict.SKIP, None)


def test_unknown_hardware_has_no_row(tmp_path: Path) -> None:
    run = run_of(1, (CASE, Verdict.PASS))
    document = run.to_json()
    document["run"]["target"] = None
    place = written(Run.from_json(document), tmp_path / "a.json")
    assert cells_of(place) == []


def test_a_run_on_other_hardware_shows_nothing_of_its_target(tmp_path: Path) -> None:
    devices = [{"name": "a CPU", "target": "cpu-x86-64"}]
    other = run_of(1, (CASE, Verdict.PASS), target="nvidia-t4", devices=devices)
    assert cells_of(written(other, tmp_path / "a.json")) == []
    own = run_of(1, (CASE, Verdict.PASS), devices=devices)
    (cell,) = cells_of(written(own, tmp_path / "b.json"))
    assert cell.target == "cpu-x86-64"


def test_times_of_several_zones_are_compared_as_moments() -> None:
    runs = []
    for verdict, started in (
        # later, although its local time is earlier in the day
        (Verdict.PASS, "2026-01-01T00:30:00-01:00"),
        (Verdict.FAIL, "2026-01-01T01:00:00Z"),
    ):
        document = run_of(1, (CASE, verdict)).to_json()
        document["run"]["started"] = started
        runs.append(("a.json", Run.from_json(document)))
    (cell,) = cells(runs)
    assert cell.counts == {Verdict.PASS: 1}


def test_a_comparison_of_peers_is_not_a_result_of_the_area_that_was_measured() -> None:
    run = new_run(["portagpu", "bench", "--peers"], target="cpu-x86-64")
    run.add(Result(id="memory/copy", suite="performance", area="peers", verdict=Verdict.PASS))
    (cell,) = cells([("a.json", run)])
    assert (cell.suite, cell.area) == ("performance", "peers")


def test_a_target_without_results_claims_nothing() -> None:
    (row,) = rows([load_target("nvidia-gb200")])
    assert row.badges == [Evidence.DECLARED]
    assert row.suite("conformance") is None


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["no-such-file.json"], "no-such-file.json: cannot be read: No such file or directory"),
        (["--target", "nvidia-t5"], "nvidia-t5"),
    ],
)
def test_wrong_usage_is_one_line(
    words: list[str], reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["matrix", "show", *words]) == 2
    said = capsys.readouterr().err.strip()
    assert reported in said
    assert "\n" not in said


def test_a_result_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(run_of(1, (CASE, Verdict.PASS)), tmp_path / "a.json")
    before = file.read_bytes()
    (tmp_path / "link.json").symlink_to(file)
    assert main(["matrix", "show", str(file), "--json", str(tmp_path / "link.json")]) == 2
    assert "link.json is also an input: name another file to write" in capsys.readouterr().err
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("started", "reported"),
    [
        ("2999-01-01T00:00:00Z", "in the future: the clock of that machine or of this one is"),
        ("1970-01-01T00:01:00Z", "the clock of that machine was not set"),
    ],
)
def test_a_run_whose_clock_was_wrong_is_never_the_newest(
    started: str, reported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(run_of(1, (CASE, Verdict.PASS)), tmp_path / "a.json")
    document = json.loads(file.read_text("utf-8"))
    document["run"]["started"] = started
    file.write_text(json.dumps(document), encoding="utf-8")
    page = tmp_path / "page.html"
    for words in (["show"], ["report", "--out", str(page)]):
        assert main(["matrix", *words, str(file)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{file}: run.started: is {started}" in line
        assert reported in line
    assert not page.exists()
