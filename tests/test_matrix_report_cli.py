"""``portagpu matrix report``: which files are read, and one clear line for what is no result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from portagpu.cli import main
from portagpu.cli._result_files import read_runs
from portagpu.report import render, render_runs
from portagpu.results.run import Run, read_json
from tests.result_samples import failing, gate, info, passing

BUNDLES = Path(__file__).resolve().parents[1] / "matrix" / "results"
MOST_BYTES = 500_000
"""Of the page of one run."""


def written(path: Path, run_id: str, host: str = "node") -> Path:
    run = Run(info(id=run_id, host=host), [gate("links", "a")])
    path.parent.mkdir(parents=True, exist_ok=True)
    return run.write_json(path)


def test_files_folders_and_bundles_are_runs_of_one_page(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    single = written(tmp_path / "x.json", "one", "node-x")
    of_bringup = written(tmp_path / "bringup" / "result.json", "two", "node-y")
    shutil.copy(of_bringup, tmp_path / "bringup" / "its-bundle.json")
    below = written(tmp_path / "many" / "deep" / "result.json", "three", "node-z")
    beside = written(tmp_path / "many" / "run.json", "four", "node-w")
    (tmp_path / "many" / "other.json").write_text('{"schema": "of-something-else/1"}')
    (tmp_path / "many" / "notes.txt").write_text("no result")
    out = tmp_path / "page.html"
    given = [single, tmp_path / "bringup", tmp_path / "many", BUNDLES]
    assert main(["matrix", "report", *map(str, given), "--out", str(out)]) == 0
    assert capfd.readouterr().out == f"wrote {out}\n"
    runs = read_runs(given)
    bundles = sorted(BUNDLES.glob("*.json"))
    assert list(runs) == [single, of_bringup, below, beside, *bundles]
    assert out.read_text("utf-8") == render_runs(list(runs.values()))
    assert runs[single] == read_json(single)
    for bundle in bundles:
        stated = json.loads(bundle.read_text("utf-8"))["result"]
        assert runs[bundle].to_json() == stated


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    file = written(tmp_path / "x.json", "one")
    assert list(read_runs([file, tmp_path])) == [file]


def refused(capfd: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert main(["matrix", "report", *map(str, words)]) == 2
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1, said
    return said[0]


def test_two_files_with_one_run_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = written(tmp_path / "a.json", "same"), written(tmp_path / "b.json", "same", "h2")
    line = refused(capfd, first, second, "--out", tmp_path / "page.html")
    assert f"{first} and {second} both hold the run same: name one of them" in line


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("x.json", "{}", "schema"),
        ("x.json", "no JSON", "Expecting value"),
        ("cut.json", '{\n  "schema": "portagpu.result/1",\n', "Expecting"),
        ("bundle.json", '{\n  "schema": "portagpu.bundle/1"}', "is no bundle"),
        ("absent.json", None, "No such file"),
    ],
)
def test_what_is_no_result_is_refused_with_its_reason(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
    text: str | None,
    problem: str,
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    line = refused(capfd, file, "--out", tmp_path / "page.html")
    assert problem in line
    assert str(file) in line
    assert not (tmp_path / "page.html").exists()


def test_an_altered_bundle_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    original = next(BUNDLES.glob("*.json"))
    altered = tmp_path / original.name
    altered.write_text(original.read_text("utf-8").replace('"PASS"', '"SKIP"', 1))
    assert "altered" in refused(capfd, tmp_path, "--out", tmp_path / "page.html")


def test_a_cut_result_in_a_folder_is_not_passed_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = written(tmp_path / "a.json", "one").read_text("utf-8")
    (tmp_path / "b.json").write_text(whole[: len(whole) // 2])
    assert "b.json" in refused(capfd, tmp_path, "--out", tmp_path / "page.html")


def test_a_folder_without_results_and_an_output_over_a_result_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = refused(capfd, tmp_path, "--out", tmp_path / "page.html")
    assert f"{tmp_path}: no file in this folder is a result" in line
    file = written(tmp_path / "x.json", "one")
    before = file.read_bytes()
    assert "is read too" in refused(capfd, file, "--out", file)
    assert file.read_bytes() == before
    assert "--out" in refused(capfd, file)


def test_the_page_of_a_full_bringup_stays_small() -> None:
    for path in BUNDLES.glob("*.json"):
        run = Run.from_json(json.loads(path.read_text("utf-8"))["result"])
        assert len(run.results) > 500
        assert len(render(run).encode()) <= MOST_BYTES


def test_the_page_of_several_runs_grows_little_with_each() -> None:
    both = len(render_runs([passing(), failing()]))
    many = [gate("links", f"lane-{n}") for n in range(10_000)]
    whole = len(render_runs([passing(), failing(), Run(info(id="x", target="y"), many)]))
    assert whole - both < 10_000 * 80, "a result is some numbers and its id, once"
