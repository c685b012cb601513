"""The verbs that read what is there: targets and reports; what a shell completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from portagpu.checks.bringup import load_gates
from portagpu.cli import main
from portagpu.cli.report import report
from portagpu.cli.targets import targets
from portagpu.facts.targets import load_targets
from portagpu.reports.html import render
from portagpu.runs.results.run import Result as Found
from portagpu.runs.results.run import Run, Verdict, new_run
from portagpu.suites.conformance import AREAS

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


COMPLETED = [
    ("bringup --target nvidia-h2", [id_ for id_ in load_targets() if id_.startswith("nvidia-h2")]),
    ("compile --target amd-mi3", [id_ for id_ in load_targets() if id_.startswith("amd-mi3")]),
    ("targets show cpu-", ["cpu-aarch64", "cpu-x86-64"]),
    ("bringup --only health", ["health", "health-after"]),
    ("bringup --skip ", [gate.id for gate in load_gates()]),
    ("compile --arch gfx942", ["gfx942"]),
    ("occupancy --arch gfx942", ["gfx942"]),
    ("plan --target cpu-", ["cpu-aarch64", "cpu-x86-64"]),
    ("conform --only ", list(AREAS)),
    ("bench ge", ["gemm"]),
]


@pytest.mark.parametrize(("line", "expected"), COMPLETED)
def test_a_shell_completes_the_words(line: str, expected: list[str]) -> None:
    """As the script of click for bash asks: COMP_WORDS and COMP_CWORD, "type,value" a line."""
    words = f"portagpu {line}"
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from portagpu.cli import main; sys.exit(main([]))"],
        env={
            **os.environ,
            "_PORTAGPU_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = [each.partition(",")[2] for each in done.stdout.splitlines()]
    assert set(expected) <= set(found), done.stderr
    assert (done.returncode, done.stderr) == (0, ""), "a shell shows what a completion says"
    begun = line.rpartition(" ")[2]
    assert all(each.startswith(begun) for each in found)
