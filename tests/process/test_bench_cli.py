"""The verb ``bench``: exit codes, one line for each mistake, files."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.cli import main
from portagpu.runs.results.run import Result, new_run, read_json
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.results.run import Run
    from portagpu.runs.world import Ranks


def result(name: str, **fields: Any) -> Result:
    return Result(
        id=name, suite="performance", area="launch", **{"verdict": Verdict.PASS, **fields}
    )


@pytest.mark.torch
class TestWithTorch:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch")

    @pytest.fixture(autouse=True)
    def _one_server(self, ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
        """Runs of the performance suite share the rank server of the tests."""
        monkeypatch.setattr("portagpu.suites.performance.runner.Ranks", lambda: nullcontext(ranks))

    def test_a_run_without_expectations_is_not_green(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        json_file, junit = tmp_path / "r.json", tmp_path / "r.xml"
        arguments = ["bench", "--only", "launch", "--backend", "cpu"]
        folder = tmp_path / "out"
        files = ["--json", str(json_file), "--junit", str(junit), "--out", str(folder)]
        code = main([*arguments, *files])
        out = capsys.readouterr().out
        assert code == 3, "nothing judged these measures"
        assert "launch/issue" in out
        assert " µs " in out, "a number without its unit"
        run = read_json(json_file)
        reports = [folder / "junit.xml", folder / "report.html"]
        written = [json_file, folder / "result.json", junit, *reports]
        assert out.splitlines()[-5:] == [f"wrote {path}" for path in written]
        assert "launch/issue" in (folder / "report.html").read_text("utf-8")
        names = ("issue", "roundtrip", "throughput", "graph")
        assert [each.id for each in run.results] == [f"launch/{name}" for name in names]
        # a busy machine makes the spread too wide for any other verdict
        for each in run.results:
            assert each.verdict in {Verdict.UNVERIFIED, Verdict.INCONCLUSIVE, Verdict.SKIP}
            assert str(each.verdict) in out
        assert run.info.backend == "cpu"
        assert run.info.versions["torch"]
        cases = list(ET.parse(junit).getroot().iter("testcase"))  # noqa: S314 - our own file
        assert len(cases) >= 2

    def test_json_on_standard_output_is_alone_there(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        main(["bench", "--only", "launch", "--backend", "cpu", "--json", "-"])
        caught = capsys.readouterr()
        assert json.loads(caught.out)["schema"] == "portagpu.result/1"
        assert "launch/issue" in caught.err

    def test_a_pipe_gets_no_progress(self, capsys: pytest.CaptureFixture[str]) -> None:
        main(["bench", "--only", "collectives", "--world", "1", "--backend", "cpu"])
        caught = capsys.readouterr()
        assert "\x1b" not in caught.out + caught.err
        assert "not applicable" in caught.out

    def test_another_target_is_inconclusive(self, capsys: pytest.CaptureFixture[str]) -> None:
        code = main(["bench", "--only", "gemm/bf16", "--backend", "cpu", "--target", "amd-mi300x"])
        assert code == 3
        assert "not amd-mi300x" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--only", "gem"], "did you mean 'gemm'"),
            (["--only", "gemm/fp32[102]"], "gemm/fp32[102"),
            (["--only", "launch", "--target", "amd-mi300"], "amd-mi300x"),
            (["--only", "launch", "--backend", "cpuu"], "did you mean 'cpu'"),
            (["--only", "launch", "--world", "0"], "--world"),
            (["--only", "launch", "--world", "99999999999"], "--world"),
            (["--index", "-1"], "--index"),
            (["--fast"], "--fast"),
            (
                ["--only", "launch", "--json", "/proc/nowhere/x.json"],
                "cannot write /proc/nowhere/x.json",
            ),
            (["--only", "launch", "--junit", "/"], "cannot write /: Is a directory"),
        ],
    )
    def test_a_mistake_is_one_line_and_exit_2(
        self, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        extra = [] if "--backend" in arguments else ["--backend", "cpu"]
        code = main(["bench", *arguments, *extra])
        caught = capsys.readouterr()
        assert code == 2, caught.err
        assert words in caught.err
        assert len(caught.err.strip().splitlines()) == 1, caught.err

    def test_ctrl_c_keeps_what_was_measured(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
    ) -> None:
        def interrupted(run: Run, *_: object) -> None:
            run.add(result("launch/issue"))
            raise KeyboardInterrupt

        monkeypatch.setattr("portagpu.suites.performance.runner.measure", interrupted)
        json_file = tmp_path / "r.json"
        code = main(["bench", "--only", "launch", "--backend", "cpu", "--json", str(json_file)])
        assert code == 130
        run = read_json(json_file)
        assert run.info.interrupted
        assert len(run.results) == 1
        assert "Traceback" not in capsys.readouterr().err


def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("portagpu.facts.torchbuild.torch_build", lambda *_: None)
    code = main(["bench"])
    caught = capsys.readouterr()
    assert code == 3
    assert "pip install" in caught.err
    assert len(caught.err.strip().splitlines()) == 1


def test_metrics_are_listed_without_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("portagpu.facts.torchbuild.torch_build", lambda *_: None)
    assert main(["bench", "--list"]) == 0
    everything = capsys.readouterr().out.splitlines()
    assert main(["bench", "--only", "launch", "--only", "memory/copy", "--list"]) == 0
    chosen = capsys.readouterr().out.splitlines()
    assert {"gemm/bf16", "training/step", "collectives/all_reduce"} < set(everything)
    assert chosen == [each for each in everything if each.startswith(("memory/", "launch/"))]


def test_the_table_names_shape_unit_verdict_and_expectation() -> None:
    from portagpu.cli._bench_tables import notes, shape, show_table

    run = new_run(["portagpu", "bench"])
    run.add(
        result(
            "gemm/bf16[8192]",
            value=790.25,
            unit="TFLOPS",
            spread=1.5,
            extra={"threads": 4, "clock": "a clock"},
            shape={"m": 8192, "n": 8192, "k": 8192, "dtype": "bf16"},
            expected={
                "reference": 800.0,
                "lower": -0.1,
                "upper": None,
                "unit": "TFLOPS",
                "source": "DOC",
            },
        )
    )
    stream = io.StringIO()
    show_table(run, None, stream)
    head, row = stream.getvalue().splitlines()
    assert head.split() == [
        "measure", "shape", "median", "spread", "verdict",
    ]  # fmt: skip
    for part in ("8192x8192x8192", "790.2 TFLOPS", "± 0%", "PASS"):
        assert part in row, f"{part} is missing in {row}"
    assert len(row) <= 80
    assert any("at least 720 TFLOPS (DOC)" in line for line in notes(run))
    assert shape({"bytes": 4 << 20, "ranks": 2, "dtype": "fp32"}) == "4 MiB, 2 ranks"
    assert shape({"bytes": 512, "ranks": 1}) == "512 B, 1 rank"
    assert shape([2, 3]) == "2x3"


def test_shares_of_limits_are_below_the_table() -> None:
    from portagpu.cli._bench_tables import notes

    run = new_run(["portagpu", "bench"])
    ceiling = {"id": "memory/triad", "value": 20.0, "unit": "GB/s"}
    for name, share in (("memory/copy", 0.5), ("memory/triad", 1.0)):
        extra = {"of_ceiling": share, "ceiling": ceiling, "of_limit": share / 2}
        run.add(result(name, value=20 * share, unit="GB/s", extra=extra))
    found = notes(run)
    assert "of the ceiling measured here, 20 GB/s (memory/triad): memory/copy 50%" in found
    assert "of the target's limit: memory/copy 25%, memory/triad 50%" in found


def test_a_rank_that_raised_has_a_row_and_no_timing() -> None:
    from portagpu.cli._bench_tables import notes, show_table

    run = new_run(["portagpu", "bench"])
    run.add(result("collectives/broadcast[2]", value="raised", verdict=Verdict.ERROR, reason="it"))
    stream = io.StringIO()
    show_table(run, None, stream)
    assert "raised" in stream.getvalue()
    assert not any("timed by" in line for line in notes(run))
