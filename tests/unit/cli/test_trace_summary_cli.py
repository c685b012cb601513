"""``portagpu trace summary``: tables, files, and what happens to what cannot be read."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from portagpu import cli
from portagpu.facts.captures.model import Capture, CapturedDevice, Process, Source, table
from portagpu.reports.html.trace_page import render
from portagpu.traces.analysis.model import SUMMARY_COLUMNS
from portagpu.traces.analysis.reading import read, read_document, to_document
from portagpu.traces.analysis.summary import summarize
from tests.support import trace_samples, trace_summaries

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.traces.analysis.model import Summary

EVIL = "<script>alert(1)</script>\x1b[31m=cmd|' /C calc'!A0\n"


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder of two ranks in two formats, and of a file that is not a trace."""
    folder = tmp_path / "run"
    (folder / "rank1").mkdir(parents=True)
    for rank, (name, write) in enumerate(
        (("rank0.json", trace_samples.write_kineto), ("rank1/out.json", trace_samples.write_kineto))
    ):
        made = trace_samples.timeline(640, rank=rank, world_size=2, wait_ns=1000 * rank)
        write(made, folder / name)
    (folder / "notes.txt").write_text("the first run\n")
    return folder


def evil() -> Summary:
    """Names that try to leave the table that they stand in."""
    kernel = {"start_ns": [0, 50], "end_ns": [9, 60], "name": [EVIL, "=1+1"], "correlation": [1, 2]}
    api = {"start_ns": [0], "end_ns": [1], "name": [EVIL], "correlation": [1], "tid": [1]}
    span = {"start_ns": [0], "end_ns": [5], "name": [EVIL], "tid": [1]}
    tables: Any = {"kernel": table(kernel), "api": table(api), "range": table(span)}
    given = Capture(
        Source(EVIL, EVIL, EVIL, EVIL),
        tables,
        devices=(CapturedDevice(0, name=EVIL),),
        processes=(Process(1, rank=0),),
        problems=(EVIL,),
        details={EVIL: EVIL},
    )
    return summarize([given])


def test_a_folder_is_all_traces_in_it_and_each_is_a_rank(
    traces: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["trace", "summary", str(traces)]) == 0
    said = capfd.readouterr()
    assert said.err == ""
    assert "rank 0, device 0" in said.out
    assert "rank 1, device 0" in said.out
    assert "2 captures, events: 1300 api" in said.out
    assert "communication" in said.out
    assert re.search(r"^skew +shortest +ranks +last rank", said.out, re.MULTILINE)


def test_the_document_is_the_whole_summary(
    traces: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = [str(traces / "rank0.json"), str(traces / "rank1" / "out.json")]
    assert cli.main(["trace", "summary", *files, "--json", "-"]) == 0
    document = json.loads(capfd.readouterr().out)
    wanted = summarize([read(file) for file in files])
    assert document == json.loads(json.dumps(to_document(wanted)))
    assert document["schema"] == "portagpu.trace-summary/1"
    place = tmp_path / "a.json"
    assert cli.main(["trace", "summary", *files, "--json", str(place)]) == 0
    assert read_document(place).rows.equals(wanted.rows)
    capfd.readouterr()
    assert cli.main(["trace", "timeline", str(place), "-o", str(tmp_path / "a.pftrace")]) == 1
    assert "already a summary, which diff and diagnose read" in capfd.readouterr().err


@pytest.mark.parametrize("by", ["device", "category", "kernel", "range", "collective"])
def test_one_table_alone_and_as_csv(
    by: str, traces: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["trace", "summary", str(traces), "--by", by, "--csv", "-"]) == 0
    said = capfd.readouterr()
    rows = list(csv.DictReader(io.StringIO(said.out)))
    keys = {"kernel": "rows", "category": "categories"}
    document = to_document(summarize([read(each) for each in sorted(traces.rglob("*.json"))]))
    wanted = document[keys.get(by, f"{by}s")]
    assert len(rows) == len(wanted) > 0
    for row, of in zip(rows, wanted, strict=True):
        for name, text in row.items():
            assert text == ("" if of[name] is None else str(of[name])), name
    assert len(said.err.splitlines()) >= min(len(rows), 20)


def test_at_most_top_rows_are_shown(traces: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", "summary", str(traces), "--by", "kernel", "--top", "3"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert re.fullmatch(r"and \d+ more rows: .*", lines[4])
    most = len(json_rows(traces, capfd)) - 1
    assert cli.main(["trace", "summary", str(traces), "--by", "kernel", "--top", str(most)]) == 0
    assert "\nand 1 more row: " in capfd.readouterr().out


def json_rows(traces: Path, capfd: pytest.CaptureFixture[str]) -> list[Any]:
    assert cli.main(["trace", "summary", str(traces), "--json", "-"]) == 0
    rows: list[Any] = json.loads(capfd.readouterr().out)["rows"]
    return rows


def test_a_table_without_rows_says_so(
    traces: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cpu.json").write_text(
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", '
        '"ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'
    )
    assert cli.main(["trace", "summary", str(tmp_path / "cpu.json"), "--by", "collective"]) == 0
    assert capfd.readouterr().out.splitlines()[0] == "nothing to show by collective"


def test_a_trace_without_events_is_not_a_summary(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "empty.json"
    trace.write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert cli.main(["trace", "summary", str(trace)]) == 3
    assert "1 capture, events: none" in capfd.readouterr().out
    assert cli.main(["trace", "summary", str(trace), "--json", "-"]) == 3
    assert json.loads(capfd.readouterr().out)["rows"] == []


def test_a_device_and_a_range_alone(traces: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["trace", "summary", str(traces / "rank0.json"), "--json", "-"]
    assert cli.main([*words, "--range", "step/forward"]) == 0
    forward = json.loads(capfd.readouterr().out)
    assert cli.main(words) == 0
    whole = json.loads(capfd.readouterr().out)
    kernels = {each["path"]: each["kernels"] for each in whole["ranges"]}
    assert forward["events"]["kernel"] == kernels["step/forward"] < whole["events"]["kernel"]
    assert cli.main([*words, "--device", "0"]) == 0
    assert json.loads(capfd.readouterr().out)["rows"] == whole["rows"]


def test_a_file_that_cannot_be_read_is_one_line_and_the_others_go_on(
    traces: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["trace", "summary", str(traces / "notes.txt"), str(traces / "rank0.json")]
    assert cli.main(words) == 1
    said = capfd.readouterr()
    assert len(said.err.splitlines()) == 1
    assert "notes.txt: no reader knows this file" in said.err
    assert "1 capture" in said.out
    assert cli.main(words[:3]) == 1
    said = capfd.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)


def test_a_folder_without_traces_and_a_file_that_is_not_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["trace", "summary", str(tmp_path)]) == 1
    assert "no file in this folder is a trace" in capfd.readouterr().err
    assert cli.main(["trace", "summary", str(tmp_path / "none")]) == 2
    assert "does not exist" in capfd.readouterr().err


def test_without_the_libraries_nothing_is_judged(
    traces: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cli.main(["trace", "summary", str(traces / "rank0.json")]) == 3
    said = capfd.readouterr()
    assert re.fullmatch(r"portagpu: traces need pyarrow, .*: pip install .*\[trace\].*\n", said.err)
    assert said.out == ""


@pytest.mark.parametrize("name", ["summary", "timeline", "diff", "diagnose"])
def test_every_verb_is_listed(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", "--help"]) == 0
    assert re.search(rf"^  {name} ", capfd.readouterr().out, re.MULTILINE)


def test_untrusted_names_stay_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given, read_one = evil(), Capture(Source("a", "b"))
    monkeypatch.setattr("portagpu.traces.analysis.summary.summarize", lambda *_, **__: given)
    monkeypatch.setattr("portagpu.cli.trace.read_captures", lambda *_: ([read_one], True))
    words = ["trace", "summary", str(tmp_path), "--csv", str(tmp_path / "a.csv")]
    assert cli.main([*words, "--html", str(tmp_path / "a.html")]) == 0
    text = capfd.readouterr().out
    assert "\x1b" not in text
    assert "<script>" in text
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    assert {row["name"] for row in rows} == {"'=1+1", " ".join(EVIL.replace("\x1b", " ").split())}
    page = (tmp_path / "a.html").read_text()
    assert "<script" not in page
    assert "\x1b" not in page


def test_the_page_has_all_and_requests_nothing(traces: Path) -> None:
    page = render(summarize([read(each) for each in sorted(traces.rglob("*.json"))]))
    for words in ("rank 1, device 0", "exposed communication", "triton_poi_fused_add_relu_0"):
        assert words in page
    for title in ("Time of devices", "Categories", "Kernels and copies", "Ranges", "Collectives"):
        assert f"<h2>{title}</h2>" in page
    assert not re.search(r"(?:src|href|url)\s*[=(]", page)
    assert "default-src 'none'" in html.unescape(page)
    nothing = render(summarize([]))
    assert "Nothing ran on a device" in nothing


def test_the_bar_of_a_device_adds_up_to_its_time(traces: Path) -> None:
    given = summarize([read(traces / "rank0.json")])
    page = render(given)
    bar = page.partition('class="bar"')[2].partition("</svg>")[0]
    widths = [float(each) for each in re.findall(r'width="([\d.]+)" height="22"', bar)]
    assert len(widths) == 4
    assert sum(widths) == pytest.approx(1000, abs=0.05)


def test_the_median_of_an_even_number_of_steps_is_between_two() -> None:
    page = render(trace_summaries.summary(steps=(trace_summaries.steps([1, 2, 3, 10]),)))
    row = page.partition("Steps</h2>")[2].partition("<tbody>")[2].partition("</tr>")[0]
    assert re.findall(r'data-label="([\w ]+)"[^>]*>([^<]*)<', row)[1:4] == [
        ("median", "2.5 ms"),
        ("shortest", "1 ms"),
        ("longest", "10 ms"),
    ]


def test_nulls_are_empty_and_never_0() -> None:
    given = summarize(
        [Capture(Source("a", "b"), {"kernel": table({"start_ns": [0], "end_ns": [1]})})]
    )
    (row,) = given.rows.to_pylist()
    assert {row[name] for name in ("rank", "name", "library", "rule", "bytes")} == {None}
    assert row.keys() == SUMMARY_COLUMNS.keys()
    assert given.devices[0].median_launch_ns is None


def test_a_file_of_which_most_rows_are_left_out_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = '"Kind","Kernel_Name","Start_Timestamp","End_Timestamp"\n'
    good, bad = '"KERNEL_DISPATCH","a",1,2\n', '"KERNEL_DISPATCH","a",2,1\n'
    trace = tmp_path / "1_kernel_trace.csv"
    for rows, code in (((good, good, bad), 0), ((good, bad), 0), ((good, bad, bad), 3)):
        trace.write_text(head + "".join(rows))
        assert cli.main(["trace", "summary", str(trace)]) == code
        said = capsys.readouterr()
        assert f"left out: {rows.count(bad)} row" in said.out
        assert ("more rows were left out than read: 2" in said.err) is (code == 3)
