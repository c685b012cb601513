"""``portagpu matrix report``: which files are read, and one clear line for what is not a result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from portagpu.cli import main
from portagpu.reports.html import render, render_runs
from portagpu.runs.results.run import Run
from tests.support.result_samples import eight_devices, failing, gate, info, passing

if TYPE_CHECKING:
    import pytest

BUNDLES = Path(__file__).resolve().parents[3] / "matrix" / "results"
MAX_BYTES = 500_000
"""Of the page of one run."""


def written(path: Path, run_id: str, host: str = "node") -> Path:
    run = Run(info(id=run_id, host=host), [gate("links", "a")])
    path.parent.mkdir(parents=True, exist_ok=True)
    return run.write_json(path)


def refused(capfd: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert main(["matrix", "report", *map(str, words)]) == 2
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1, said
    return said[0]


def test_an_output_over_a_result_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "x.json", "one")
    before = file.read_bytes()
    assert "is also an input" in refused(capfd, file, "--out", file)
    assert file.read_bytes() == before
    assert "--out" in refused(capfd, file)


def test_the_page_of_a_full_bringup_stays_small() -> None:
    for path in BUNDLES.glob("*.json"):
        run = Run.from_json(json.loads(path.read_text("utf-8"))["result"])
        assert len(run.results) > 500
        assert len(render(run).encode()) <= MAX_BYTES


def test_the_page_of_a_node_of_eight_devices_stays_small() -> None:
    run = eight_devices()
    assert len(run.results) > 1400
    assert len(render(run).encode()) <= MAX_BYTES


def test_the_page_of_several_runs_grows_little_with_each() -> None:
    both = len(render_runs([passing(), failing()]))
    many = [gate("links", f"lane-{n}") for n in range(10_000)]
    whole = len(render_runs([passing(), failing(), Run(info(id="x", target="y"), many)]))
    assert whole - both < 10_000 * 80, "a result is some numbers and its id, once"
