"""The matrix of all targets: built from results alone, by the rules of the ledger."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from portagpu.cli import main
from portagpu.facts.targets import load_targets
from portagpu.reports.proofs import rows
from portagpu.reports.proofs.table import read_committed
from portagpu.runs.results.run import Evidence, Verdict
from tests.conftest import ROOT
from tests.unit.reports.test_matrix_show import CASE, run_of, written

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_results_of_no_target_that_is_shown_are_not_silently_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = written(run_of(9, (CASE, Verdict.PASS), target="nvidia-t4"), tmp_path / "mine.json")
    assert main(["matrix", "show", str(place), "--target", "nvidia-t4"]) == 0
    capsys.readouterr()
    for words in ((), ("--json", "-"), ("--markdown",)):
        assert main(["matrix", "show", str(place), "--target", "nvidia-l4", *words]) == 3
        assert "no result that you named is of a target" in capsys.readouterr().err


def test_a_column_without_any_result_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = written(run_of(9, (CASE, Verdict.FAIL), target="nvidia-t4"), tmp_path / "mine.json")
    assert main(["matrix", "show", str(place)]) == 0
    head, *lines, total = capsys.readouterr().out.splitlines()
    assert "conformance" in head.split()
    assert "compile" not in head.split()
    assert len(lines) == len(load_targets())
    assert total.startswith(f"{len(lines)} targets; results of ")


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


def test_each_area_of_one_target_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = written(run_of(9, (CASE, Verdict.FAIL), target="nvidia-t4"), tmp_path / "mine.json")
    assert main(["matrix", "show", str(place), "--target", "nvidia-t4"]) == 0
    out = capsys.readouterr().out
    assert "nvidia-t4: declared, recorded, compiled, executed" in out
    assert re.search(r"conformance +rng +FAIL +executed, 1 of [0-9]+ +2026-01-09 +mine\.json", out)


def test_the_document_has_every_target(tmp_path: Path) -> None:
    place = tmp_path / "matrix.json"
    assert main(["matrix", "show", "--json", str(place)]) == 0
    found = json.loads(place.read_text())
    assert found["schema"] == "portagpu.matrix/1"
    assert sorted(each["id"] for each in found["targets"]) == sorted(load_targets())
    (cpu,) = (each for each in found["targets"] if each["id"] == "cpu-x86-64")
    suites = {area["suite"] for area in cpu["areas"]}
    assert suites == {"bringup", "conformance", "performance"}
