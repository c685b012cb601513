"""The matrix of all targets: built from results alone, the newest run of each area counts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.cli import main
from portagpu.errors import BundleError, ResultError
from portagpu.matrix import cells, read_source, read_sources, rows
from portagpu.matrix.committed import read_committed
from portagpu.paths import matrix_dir
from portagpu.results.run import Evidence, Result, Run, Verdict, new_run
from portagpu.target import load_target, load_targets
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

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
    return Run.from_json(document)


def written(run: Run, path: Path) -> Path:
    return run.write_json(path)


def test_the_newest_run_of_an_area_counts(tmp_path: Path) -> None:
    written(run_of(2, (CASE, Verdict.FAIL)), tmp_path / "a.json")
    written(
        run_of(1, (CASE, Verdict.PASS), ("streams/random-programs", Verdict.PASS)),
        tmp_path / "b.json",
    )
    rng, streams = cells(read_sources([tmp_path]))
    assert (rng.area, rng.verdict, rng.source) == ("rng", Verdict.FAIL, "a.json")
    assert rng.counts == {Verdict.FAIL: 1}
    assert (streams.area, streams.verdict, streams.source) == ("streams", Verdict.PASS, "b.json")
    assert streams.badge is Evidence.EXECUTED


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
    (cell,) = cells([read_source(place)])
    assert cell.badge is earned


def test_a_recording_earns_recorded_at_most(tmp_path: Path) -> None:
    judged = [{"name": "node.json", "sha256": None, "source": None}]
    place = written(run_of(1, (CASE, Verdict.PASS), replay=judged), tmp_path / "a.json")
    (cell,) = cells([read_source(place)])
    assert cell.badge is Evidence.RECORDED


def test_what_did_not_run_earns_nothing(tmp_path: Path) -> None:
    place = written(run_of(1, (CASE, Verdict.SKIP)), tmp_path / "a.json")
    (cell,) = cells([read_source(place)])
    assert (cell.verdict, cell.badge) == (Verdict.SKIP, None)


def test_unknown_hardware_has_no_row(tmp_path: Path) -> None:
    run = run_of(1, (CASE, Verdict.PASS))
    document = run.to_json()
    document["run"]["target"] = None
    place = written(Run.from_json(document), tmp_path / "a.json")
    assert cells([read_source(place)]) == []


def test_a_target_without_results_claims_nothing() -> None:
    (row,) = rows([load_target("nvidia-gb200")])
    assert row.badges == [Evidence.DECLARED]
    assert row.suite("conformance") is None


def test_committed_evidence_gives_the_badges() -> None:
    by_id = {
        each.target.id: each
        for each in rows(load_targets().values(), (), read_committed(ROOT / "matrix"))
    }
    assert by_id["amd-mi300x"].badges == [
        Evidence.DECLARED,
        Evidence.RECORDED,
        Evidence.LOADED,
        Evidence.COMPILED,
    ]
    assert by_id["cpu-aarch64"].badges == [Evidence.DECLARED]
    assert Evidence.EXECUTED in by_id["cpu-x86-64"].badges
    gpus = [row for row in by_id.values() if row.target.vendor != "cpu"]
    assert gpus
    ran = [row.target.id for row in gpus if Evidence.EXECUTED in row.badges and not row.cells]
    assert ran == []


def test_json_that_is_no_result_is_passed_over_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"name": "other"}')
    written(run_of(1, (CASE, Verdict.PASS)), tmp_path / "a.json")
    assert [each.name for each in read_sources([tmp_path])] == ["a.json"]


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="holds no result files"):
        read_sources([tmp_path])


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    place = written(run_of(1, (CASE, Verdict.PASS)), tmp_path / "a.json")
    whole = place.read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 3):
        place.write_bytes(whole[:length])
        with pytest.raises(ResultError, match=r"a\.json: "):
            read_sources([tmp_path])


def test_a_changed_verdict_is_refused(tmp_path: Path) -> None:
    place = written(run_of(1, (CASE, Verdict.FAIL)), tmp_path / "a.json")
    place.write_text(place.read_text().replace('"FAIL"', '"PASS"', 1))
    with pytest.raises(ResultError, match="verdict: is 'PASS', but the results give 'FAIL'"):
        read_source(place)


def test_a_changed_bundle_is_refused(tmp_path: Path) -> None:
    (bundle,) = (ROOT / "matrix/results").glob("cpu-x86-64-*.json")
    place = tmp_path / bundle.name
    place.write_text(bundle.read_text().replace("PASS", "FAIL", 1))
    with pytest.raises(BundleError, match="was altered after it was written"):
        read_sources([tmp_path])


def test_the_document_has_every_target(tmp_path: Path) -> None:
    place = tmp_path / "matrix.json"
    assert main(["matrix", "show", "--json", str(place)]) == 0
    found = json.loads(place.read_text())
    assert found["schema"] == "portagpu.matrix/1"
    assert sorted(each["id"] for each in found["targets"]) == sorted(load_targets())
    (cpu,) = (each for each in found["targets"] if each["id"] == "cpu-x86-64")
    if matrix_dir() == ROOT / "matrix":  # a wheel has no results
        suites = {area["suite"] for area in cpu["areas"]}
        assert suites == {"bringup", "conformance", "performance"}


def test_each_area_of_one_target_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = written(run_of(9, (CASE, Verdict.FAIL), target="nvidia-t4"), tmp_path / "mine.json")
    assert main(["matrix", "show", str(place), "--target", "nvidia-t4"]) == 0
    out = capsys.readouterr().out
    own = ", recorded, compiled" if matrix_dir() == ROOT / "matrix" else ""
    assert f"nvidia-t4: declared{own}, executed" in out
    assert "rng" in out
    assert "mine.json" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["no-such-file.json"], "no-such-file.json: cannot be read: No such file or directory"),
        (["--target", "nvidia-t5"], "nvidia-t5"),
    ],
)
def test_wrong_usage_is_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["matrix", "show", *words]) == 2
    said = capsys.readouterr().err.strip()
    assert told in said
    assert "\n" not in said


def test_a_result_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(run_of(1, (CASE, Verdict.PASS)), tmp_path / "a.json")
    before = file.read_bytes()
    (tmp_path / "link.json").symlink_to(file)
    assert main(["matrix", "show", str(file), "--json", str(tmp_path / "link.json")]) == 2
    assert "link.json is read too: name another file to write" in capsys.readouterr().err
    assert file.read_bytes() == before
