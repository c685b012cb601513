"""``portagpu matrix report``: which files are read, and one clear line for what is not a result."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from portagpu.cli import main
from portagpu.facts.targets import load_targets
from portagpu.reports.bundles.check import stated_names
from portagpu.reports.bundles.document import read_files
from portagpu.reports.html import render_runs
from portagpu.reports.proofs import rows
from portagpu.runs.results.run import Result, Run, Verdict
from tests.support.html_page import matrix_cells
from tests.support.result_samples import gate, info
from tests.unit.cli.test_matrix_report_cli import BUNDLES, written

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def case(name: str, verdict: Verdict = Verdict.PASS) -> Result:
    area, _, rest = name.partition("/")
    return replace(gate(area, rest, verdict, reason="so"), suite="conformance")


def test_a_cell_of_the_page_says_what_matrix_show_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recording = {"name": "x", "sha256": None, "source": None}
    older: dict[str, object] = {"target": "nvidia-t4", "replay": (recording,)}
    newer: dict[str, object] = {"target": "nvidia-t4", "started": "2026-11-20T00:00:00Z"}
    runs = [
        # a case that only asks cannot earn what it states
        Run(info(id="1", devices=(), target="nvidia-l4"), [case("identity/handle-is-one")]),
        Run(
            info(id="2", devices=(), **older),
            [case("rng/random-programs"), case("streams/random-programs")],
        ),
        Run(info(id="3", devices=(), **newer), [case("rng/random-programs", Verdict.FAIL)]),
        Run(
            info(id="4", devices=(), target="amd-mi300x"),
            [case("rng/random-programs", Verdict.SKIP), gate("memory", "x", Verdict.UNVERIFIED)],
        ),
    ]
    for run in runs:
        run.write_json(tmp_path / f"{run.info.id}.json")
    page = tmp_path / "page.html"
    assert main(["matrix", "report", str(tmp_path), str(BUNDLES), "--out", str(page)]) == 0
    shown = {key: text for key, text in matrix_cells(page.read_text("utf-8")).items() if text}
    reported = rows(load_targets().values(), read_files([tmp_path, BUNDLES]))
    assert shown == {
        (f"{cell.area} {cell.suite}", cell.target): f"{cell.verdict} {cell.detail}"
        for row in reported
        for cell in sorted(row.cells, key=lambda each: not each.recorded)
    }
    cases = {area: len(stated_names("conformance", area)) for area in ("identity", "rng")}
    assert (
        shown["identity conformance", "nvidia-l4"]
        == f"INCONCLUSIVE loaded, 1 of {cases['identity']}"
    )
    assert shown["rng conformance", "nvidia-t4"] == f"FAIL executed, 1 of {cases['rng']}"
    assert shown["streams conformance", "nvidia-t4"] == "PASS recorded, 1"
    assert shown["rng conformance", "amd-mi300x"] == f"SKIP no evidence, 1 of {cases['rng']}"
    capfd.readouterr()
    assert main(["matrix", "show", str(tmp_path), "--target", "nvidia-t4"]) == 0
    out = capfd.readouterr().out
    for area, verdict, detail in (("rng", "FAIL", "executed"), ("streams", "PASS", "recorded")):
        assert re.search(f"conformance +{area} +{verdict} +{detail}, 1( of [0-9]+)? ", out)


def test_the_page_is_of_all_runs_that_were_found(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "x.json", "one", "node-x")
    written(tmp_path / "bringup" / "result.json", "two", "node-y")
    out = tmp_path / "page.html"
    assert main(["matrix", "report", str(tmp_path), str(BUNDLES), "--out", str(out)]) == 0
    assert capfd.readouterr().out == f"wrote {out}\n"
    runs = [each.run for each in read_files([tmp_path, BUNDLES])]
    assert len(runs) > 2
    assert out.read_text("utf-8") == render_runs(runs)
