"""``portagpu trace diff`` and ``trace diagnose``: what they print and write, and exit codes."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import pytest

pytest.importorskip("pyarrow")

from click.testing import CliRunner

from portagpu.cli.trace import diagnose
from portagpu.cli.trace_summary import diff
from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis.reading import to_document
from tests.conftest import ROOT
from tests.support.trace_samples import timeline, write_kineto, write_nsys, write_rocpd
from tests.support.trace_summaries import MS, rows, summary
from tests.unit.traces.test_trace_compare import NOISY, run_of
from tests.unit.traces.test_trace_diagnose import BOUND

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from portagpu.traces.analysis.model import Summary

SLOW = tuple(each + 20 for each in NOISY)


def invoke(command: click.Command, *words: Any) -> Result:
    """The command's result; its exit code is ``return_value``."""
    return CliRunner().invoke(command, [str(each) for each in words], standalone_mode=False)


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(name: str, given: Summary) -> Path:
        file = tmp_path / name
        file.write_text(json.dumps(to_document(given)), encoding="utf-8")
        return file

    return write


@pytest.mark.parametrize(
    ("other", "code", "word"),
    [
        (run_of(), 0, "PASS: a step takes 100 ms in A and 100 ms in B: within noise"),
        (run_of(SLOW), 1, "FAIL: a step takes 100 ms in A and 120 ms in B: B is 20 ms slower"),
        (
            run_of(steps=()),
            3,
            "not compared: no step has the same name on both sides: A has 'step' and B has none",
        ),
        (replace(run_of(), dropped=99), 3, "instead: capture again with larger buffers"),
    ],
)
def test_the_exit_code_is_that_of_the_verdict(
    written: Any, other: Summary, code: int, word: str
) -> None:
    found = invoke(diff, written("a", run_of()), written("b", other))
    assert found.return_value == code
    assert word in found.output


def test_a_reason_can_be_allowed(written: Any) -> None:
    files = [written("a", run_of()), written("b", run_of(details={"batch": "2"}))]
    files[0] = written("a", run_of(details={"batch": "1"}))
    assert invoke(diff, *files).return_value == 3
    found = invoke(diff, *files, "--allow", "work")
    assert found.return_value == 3
    assert "allowed: A was taken with batch 1, B with batch 2" in found.output
    assert "UNVERIFIED" in found.output


def test_json_and_csv_have_every_difference(written: Any, tmp_path: Path) -> None:
    files = written("a", run_of()), written("b", run_of(SLOW))
    document = json.loads(invoke(diff, *files, "--json", "-").output)
    assert document["verdict"] == "FAIL"
    invoke(diff, *files, "--csv", tmp_path / "d.csv", "--json", tmp_path / "d.json")
    assert json.loads((tmp_path / "d.json").read_text("utf-8")) == document
    table = list(csv.DictReader(io.StringIO((tmp_path / "d.csv").read_text("utf-8"))))
    assert [each["name"] for each in table] == [each["name"] for each in document["differences"]]
    assert list(csv.DictReader(io.StringIO(invoke(diff, *files, "--csv", "-").output))) == table


@pytest.mark.parametrize(
    "words", [("--allow", "nothing"), ("--allow", "x"), ("--json", "-", "--csv", "-")]
)
def test_wrong_use_is_an_error_of_usage(written: Any, words: tuple[str, ...]) -> None:
    file = written("a", run_of())
    assert isinstance(invoke(diff, file, file, *words).exception, click.UsageError)


def test_names_cannot_drive_the_terminal(written: Any) -> None:
    nasty = rows([{"name": "a\x1b[2J\nb", "category": "gemm", "total_ns": 5 * MS}])
    found = invoke(diff, written("a", run_of(rows=nasty)), written("b", run_of()))
    assert "\x1b" not in found.output
    assert "a [2J b" in found.output


@pytest.mark.parametrize("name", BOUND)
def test_what_bounds_a_run_is_printed_first(written: Any, name: str) -> None:
    found = invoke(diagnose, written("a", BOUND[name]))
    assert found.return_value == 1
    assert found.output.startswith(f"FAIL {name}: ")
    remedy = found.output.partition("    remedy: ")[2].splitlines()[0]
    assert found.output.rstrip().endswith(f"; next: {remedy}")


def test_what_cannot_be_answered_is_exit_code_3(written: Any) -> None:
    found = invoke(diagnose, written("a", summary()))
    assert found.return_value == 3
    assert "INCONCLUSIVE memory-bound: cannot answer: " in found.output


def test_findings_are_results(written: Any) -> None:
    file = written("a", BOUND["copy-bound"])
    document = json.loads(invoke(diagnose, file, "--json", "-").stdout)
    assert document["schema"] == "portagpu.result/1"
    first = document["results"][0]
    assert first["id"] == "trace/diagnose/copy-bound"
    assert first["expected"]["source"]
    assert first["extra"]["remedy"]


def test_files_that_cannot_be_read_are_one_line(written: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        error = invoke(diagnose, tmp_path / name).exception
        assert isinstance(error, FormatError)
        assert str(tmp_path / name) in str(error)
        assert "\n" not in str(error)
    two = written("a", run_of()), written("b", run_of())
    assert "must be the only file" in str(invoke(diagnose, *two).exception)


def test_one_timeline_is_the_same_whichever_tool_wrote_it(tmp_path: Path) -> None:
    made = timeline(kernels=2000)
    files = [write_nsys(made, tmp_path / "a.sqlite"), write_rocpd(made, tmp_path / "b.db")]
    found = invoke(diff, *files, "--json", "-")
    document = json.loads(found.stdout)
    assert (found.return_value, document["verdict"]) == (0, "PASS")
    assert document["a"]["steps"] > 3
    compared = [each for each in document["differences"] if each["change_ns"] is not None]
    assert {each["change_ns"] for each in compared} == {0}
    assert {each["part"] for each in compared} == {"step", "time", "category", "range", "kernel"}


def test_communication_that_waits_is_what_became_slower(tmp_path: Path) -> None:
    """The same seed with a rank that waits for others in every collective."""
    files = [
        write_rocpd(timeline(kernels=2000, wait_ns=wait), tmp_path / f"{wait}.db")
        for wait in (0, 400_000)
    ]
    document = json.loads(invoke(diff, *files, "--json", "-").stdout)
    words = {
        each["name"]: each["verdict"]
        for each in document["differences"]
        if each["part"] == "category"
    }
    assert words.pop("communication") == "slower"
    assert set(words.values()) == {"within noise"}


def test_a_folder_has_one_capture_for_each_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        made = timeline(kernels=400, rank=rank, world_size=2, pid=rank + 1)
        write_kineto(made, tmp_path / f"rank{rank}.json")
    found = invoke(diff, tmp_path, tmp_path, "--json", "-")
    document = json.loads(found.stdout)
    assert document["a"]["ranks"] == 2
    alone = invoke(diff, tmp_path, tmp_path / "rank0.json")
    assert alone.return_value == 3
    assert "not compared: A has 2 ranks, B has 1 rank" in alone.output
    assert invoke(diagnose, tmp_path).return_value in (1, 3)


TORCH = ROOT / "tests/recordings/torch"


@pytest.mark.parametrize(
    ("name", "code", "reported"),
    [
        # eager inference of a small model: the device runs dry after every kernel, on both vendors
        ("h100-bert-small", 1, "FAIL launch-bound: idle for 92.1%"),
        ("mi300x-bert-small", 1, "FAIL launch-bound: idle for 88.8%"),
        # decoding in captured graphs keeps the device busy
        ("mi300x-vllm-decode-graph", 3, "PASS launch-bound: no device is idle for more than 0.2%"),
        # one rank of several in training
        ("nv-sampled-rank0-nccl", 1, "FAIL communication-bound: only communication ran for 27.6%"),
        ("cpu-only-rank34", 3, "INCONCLUSIVE no-device: cannot answer"),
    ],
)
def test_recordings_of_both_vendors_are_diagnosed(name: str, code: int, reported: str) -> None:
    found = invoke(diagnose, TORCH / f"{name}.json.gz")
    assert reported in found.output
    assert found.return_value == code


def test_two_vendors_are_compared_by_category() -> None:
    files = [TORCH / f"{name}-bert-small.json.gz" for name in ("h100", "mi300x")]
    document = json.loads(invoke(diff, *files, "--json", "-").stdout)
    assert document["verdict"] == "UNVERIFIED"
    assert any("the vendors differ" in each for each in document["notes"])
    both = {
        each["name"]
        for each in document["differences"]
        if each["part"] == "category" and each["ratio"]
    }
    assert both >= {"attention", "gemm", "normalisation", "elementwise", "copy"}
    assert "unknown" not in both
