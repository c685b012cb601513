"""The verb ``screen``: exit codes, one line for each mistake, files."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from portagpu.cli import main
from portagpu.runs.results.run import Run, read_json
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.screen import ScreenOptions, ScreenProgress, add_results
from portagpu.suites.screen.options import selected_probes
from tests.conftest import ROOT
from tests.support.ocp_rules import lines_of, of_run, of_steps, problems

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.world import Ranks

SAMPLES = ROOT / "tests" / "support" / "screen_probes.py"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--time", "0"], "'0' is not a time of 1s to 24h, such as 90s, 30m or 2h"),
        (["--time", "0s"], "'0s' is not a time of 1s to 24h"),
        (["--time", "25h"], "'25h' is not a time of 1s to 24h"),
        (["--seed", "-1"], "--seed"),
        (["--only", "vectors/float31[add]"], "did you mean 'vectors/float32[add]'"),
        (["--index", "0,x"], "'0,x' is not 'all', nor numbers of devices such as 0,2,5"),
        (["--index", ""], "nor numbers of devices"),
        (["--fast"], "--fast"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["screen", *arguments])
    caught = capsys.readouterr()
    assert code == 2, caught.err
    assert words in caught.err
    assert len(caught.err.strip().splitlines()) == 1, caught.err


def test_probes_are_listed_without_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("portagpu.facts.torchbuild.torch_build", lambda *_: None)
    assert main(["screen", "--list"]) == 0
    names = [each.name for each in selected_probes(ScreenOptions())]
    assert capsys.readouterr().out.split() == names
    assert main(["screen"]) == 3
    assert "pip install" in capsys.readouterr().err


@pytest.mark.torch
class TestWithTorch:
    @pytest.fixture(autouse=True)
    def _few(self, ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two batches of this worker's rank server, of the tests' own probes."""
        pytest.importorskip("torch")
        self.place = "GOOD"
        monkeypatch.setattr("portagpu.suites.screen.runner.Ranks", lambda: nullcontext(ranks))

        def few(run: Run, options: ScreenOptions, ranks: Ranks, progress: ScreenProgress) -> None:
            from dataclasses import replace

            own = replace(options, batches=2, place=f"{SAMPLES}:{self.place}", probes=())
            add_results(run, own, ranks, progress)

        monkeypatch.setattr("portagpu.suites.screen.runner.add_results", few)

    def test_what_was_judged_is_printed_and_written(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        json_file, folder = tmp_path / "r.json", tmp_path / "out"
        words = ["screen", "--backend", "cpu", "--json", str(json_file), "--out", str(folder)]
        assert main(words) == 0
        out = capsys.readouterr().out
        assert "vectors/good" in out
        assert "none wrong" in out
        assert "no published digest" in out
        assert out.splitlines()[-5].startswith("PASS, 1 unverified")
        run = read_json(json_file)
        assert run.info.backend == "cpu"
        assert run.info.versions["torch"]
        assert {each.suite for each in run.results} == {"screen"}
        assert "vectors/good" in (folder / "report.html").read_text("utf-8")

    def test_a_wrong_result_is_exit_1_with_where_it_is(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.place = "EVERYWHERE"
        assert main(["screen", "--backend", "cpu", "--json", "-"]) == 1
        caught = capsys.readouterr()
        document = json.loads(caught.out)
        assert document["verdict"] == "FAIL"
        assert "one column" in caught.err
        assert "FAIL: screen/products/column on cpu" in caught.err

    def test_a_file_grows_while_it_is_screened(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """What a killed screen leaves: what was judged, as a run that was interrupted."""
        monkeypatch.setattr("portagpu.suites.screen.runner._PARTIAL_S", -1.0)
        kept = []
        path = tmp_path / "r.json"
        from portagpu.cli._run_output import Files

        update = Files.update

        def updated(self: Files, run: Run) -> None:
            update(self, run)
            kept.append(read_json(path))

        monkeypatch.setattr(Files, "update", updated)
        ocp = tmp_path / "r.jsonl"
        words = ["--seed", "7", "--json", str(path), "--ocp", str(ocp)]
        assert main(["screen", "--backend", "cpu", *words]) == 0
        lines = lines_of(ocp.read_text("utf-8"))
        assert problems(lines) == []
        (start,) = of_run(lines, "testRunStart")
        assert start["parameters"]["seed"] == read_json(path).info.seed == 7
        counted = next(
            each["measurementSeriesId"]
            for each in of_steps(lines, "measurementSeriesStart")
            if each["name"] == "screen/device/results"
        )
        elements = of_steps(lines, "measurementSeriesElement")
        counts = [each["value"] for each in elements if each["measurementSeriesId"] == counted]
        assert len(counts) > 1, "nothing was written before the end"
        assert counts == sorted(counts)
        judged = [
            sum(each.value for each in run.results if isinstance(each.value, float)) for run in kept
        ]
        assert judged == sorted(judged)
        assert judged[0] < judged[-1]
        assert all(run.info.interrupted for run in kept)
        assert kept[-1].verdict is Verdict.INCONCLUSIVE
