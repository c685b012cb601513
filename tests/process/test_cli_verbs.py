"""The verbs that read what is there: targets and reports; what a shell completes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from portagpu.cli import main
from portagpu.cli.report import report
from portagpu.cli.targets import targets
from portagpu.facts.targets import load_targets
from portagpu.reports.html import render
from portagpu.runs.results.run import Result as Found
from portagpu.runs.results.run import Run, Verdict, new_run

if TYPE_CHECKING:
    from pathlib import Path


def call(command: object, *words: str) -> Result:
    return CliRunner().invoke(command, words)  # type: ignore[arg-type]


def made(path: Path, verdict: str = "PASS") -> Run:
    run = new_run(["portagpu", "bringup"])
    run.add(Found(id="a/b", suite="bringup", area="a", verdict=Verdict(verdict), reason="why"))
    run.finish().write_json(path)
    return run


@pytest.mark.parametrize("words", [(), ("list",)])
def test_every_target_is_listed(words: tuple[str, ...]) -> None:
    done = call(targets, *words)
    assert done.exit_code == 0, done.output
    listed = {line.split()[0] for line in done.output.splitlines()[1:]}
    assert listed == set(load_targets())


def test_a_target_is_shown_with_every_fact_and_its_sources() -> None:
    target = load_targets()["nvidia-h200-sxm"]
    done = call(targets, "show", target.id)
    for key, fact in target.facts.items():
        (line,) = (each for each in done.output.splitlines() if each.split(" ")[0] == key)
        assert f"[{', '.join(fact.source)}]" in line, key
        assert str(fact.confidence) in line, key
    document = json.loads(call(targets, "show", target.id, "--json", "-").output)
    assert document["facts"]["exec.unit_count"]["value"] == 132
    assert set(document["facts"]) == set(target.facts)


def test_a_target_that_is_not_there_is_offered_the_closest(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["targets", "show", "nvidia-h200-sxn"]) == 2
    assert "did you mean 'nvidia-h200-sxm" in capfd.readouterr().err


def test_files_of_targets_are_checked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("schema = 'x'\n")
    assert main(["targets", "check", str(wrong)]) == 1
    assert "wrong.toml" in capfd.readouterr().err


def test_reports_are_written_next_to_their_documents(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    runs = [made(tmp_path / "out" / "result.json"), made(tmp_path / "x.json", "FAIL")]
    done = call(report, str(tmp_path / "out"), str(tmp_path / "x.json"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "report.html").read_text() == render(runs[0])
    assert (tmp_path / "x.html").read_text() == render(runs[1])


def test_what_is_not_a_result_writes_no_report(tmp_path: Path) -> None:
    made(tmp_path / "good.json")
    (tmp_path / "bad.json").write_text("{}")
    before = sorted(tmp_path.iterdir())
    done = call(report, str(tmp_path / "good.json"), str(tmp_path / "bad.json"))
    assert done.exit_code == 2
    assert "bad.json" in done.output
    done = call(report, "--out", str(tmp_path / "good.json"), str(tmp_path / "good.json"))
    assert (done.exit_code, "is also an input" in done.output) == (2, True)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before.append(tmp_path / "loop")
    done = call(report, "--out", str(tmp_path / "loop"), str(tmp_path / "good.json"))
    assert (done.exit_code, "Too many levels of symbolic links" in done.output) == (2, True)
    assert sorted(tmp_path.iterdir()) == sorted(before)
