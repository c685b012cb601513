"""Files that no profiler wrote so: each verb says one clear line, or what is missing."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest

pa = pytest.importorskip("pyarrow")

from portagpu.cli import main
from portagpu.facts.captures import json_stream, model
from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis.compare import compare
from portagpu.traces.analysis.diagnose import diagnose
from portagpu.traces.analysis.reading import read
from tests.support.trace_samples import timeline, write_nsys
from tests.support.trace_summaries import device, ranges, rows, summary

if TYPE_CHECKING:
    from pathlib import Path

KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp",'
    '"End_Timestamp"\n"KERNEL_DISPATCH",1,1,1,"gemm",1,100,300\n'
)


def kineto(events: list[dict[str, Any]]) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": events})


def kernel(start: float, **given: Any) -> dict[str, Any]:
    """A kernel of one microsecond on device 0."""
    return {"ph": "X", "cat": "kernel", "name": "k", "ts": start, "dur": 1.0, **given}


def step(start: float, name: str) -> dict[str, Any]:
    return kernel(start, cat="user_annotation", name=name, pid=1, tid=1, dur=5.0)


def words_of(verb: str, file: Path) -> list[str]:
    more = {"diff": [str(file)], "timeline": ["-o", str(file.parent / "out.pftrace")]}
    return ["trace", verb, str(file), *more.get(verb, [])]


@pytest.mark.parametrize(
    ("verb", "code"), [("summary", 1), ("timeline", 1), ("diagnose", 2), ("diff", 2)]
)
@pytest.mark.parametrize("name", ["pipe", "other.txt", "empty.json"])
def test_a_file_that_is_not_a_trace_is_one_line_of_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, code: int, name: str
) -> None:
    file = tmp_path / name
    if name == "pipe":
        os.mkfifo(file)
    else:
        file.write_text("" if name == "empty.json" else "hello\n", encoding="utf-8")
    assert main(words_of(verb, file)) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"portagpu: {file}: ")
    said = {
        "pipe": "not a regular file",
        "other.txt": "no reader knows",
        "empty.json": "the file is empty",
    }
    assert said[name] in line
    assert "unexpected" not in line


@pytest.mark.parametrize("protocol", [2, 5])
def test_a_pickle_is_never_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], protocol: int
) -> None:
    made = tmp_path / "made"

    class Program:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(made),)

    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps({"segments": [], "device_traces": Program()}, protocol))
    assert main(["trace", "summary", str(file)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "a pickle" in line
    assert not made.exists()


def test_a_capture_without_a_device_has_no_times_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cpu.json"
    file.write_text(kineto([step(each * 10.0, "step") for each in range(4)]), encoding="utf-8")
    assert main(["trace", "diff", str(file), str(file)]) == 3
    assert "A has no kernel, copy or set of a device" in capsys.readouterr().out


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_hides_no_format(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "kernel_trace.csv"
    file.write_text(KERNELS, encoding=encoding)
    assert read(file).count("kernel") == 1


@pytest.mark.parametrize("end", ["csv", "json"])
def test_a_gzip_may_not_hold_any_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(model, "_BYTES", 1 << 20)
    start = KERNELS if end == "csv" else kineto([kernel(1.0)])[:-2] + ","
    file = tmp_path / f"bomb.{end}.gz"
    file.write_bytes(gzip.compress(start.encode() + b"\n" * (4 << 20)))
    with pytest.raises(FormatError, match="holds more than 1 MiB: unpack it with gunzip"):
        read(file)


def test_short_lines_of_a_gzip_count_more_than_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "_BYTES", 1 << 20)
    monkeypatch.setattr(model, "_TIMES", 1)
    file = tmp_path / "blank.csv.gz"
    file.write_bytes(gzip.compress(KERNELS.encode() + b"\n" * (1 << 18)))
    with pytest.raises(FormatError, match="holds more than 1 MiB"):
        read(file)


@pytest.mark.parametrize("unit", ["1,", '"', '"a":1,'])
def test_values_that_are_not_events_may_not_be_any_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    monkeypatch.setattr(json_stream, "_MAX_OTHERS", 1000)
    start = '{"schemaVersion":1,' + ("" if ":" in unit else '"traceEvents":[')
    file = tmp_path / "many.json"
    file.write_text(start + unit * 3000, "utf-8")
    with pytest.raises(FormatError, match="over 1,000 values that are not events"):
        read(file)


def test_what_is_missing_is_said_with_every_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cut.json"
    file.write_text(kineto([kernel(each * 2.0) for each in range(9)])[:-20], encoding="utf-8")
    for verb in ("summary", "timeline", "diagnose", "diff"):
        main(words_of(verb, file))
        captured = capsys.readouterr()
        assert "breaks off" in captured.out + captured.err, verb


@pytest.mark.parametrize("verb", ["summary", "diff"])
def test_no_name_is_a_formula_in_a_spreadsheet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    names = ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\uff1d1", "\x1b[2J"]
    file = tmp_path / "names.json"
    file.write_text(kineto([kernel(1.0 + at, name=each) for at, each in enumerate(names)]), "utf-8")
    main([*words_of(verb, file), "--csv", "-"])
    text = capsys.readouterr().out
    assert "\x1b" not in text
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    assert {"'=1+1", "'+1", "'-1", "'@SUM(1)", "'=1", "'\uff1d1"} <= set(cells)
    assert not any(cell[:1] in "=+-@\uff1d" for cell in cells if cell)


@pytest.mark.parametrize(
    "words",
    [
        ["timeline", "-o"],
        ["summary", "--json"],
        ["summary", "--html"],
        ["summary", "--csv"],
        ["diagnose", "--json"],
        ["diff", "{file}", "--json"],
    ],
)
def test_no_output_replaces_a_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    file = tmp_path / "a.json"
    file.write_text(given := kineto([kernel(1.0)]), "utf-8")
    verb, *rest = (each.format(file=file) for each in words)
    assert main(["trace", verb, str(file), *rest, str(file)]) == 2
    assert "is a capture that is read" in capsys.readouterr().err
    assert file.read_text("utf-8") == given


@pytest.mark.parametrize("words", [["timeline", "-o"], ["summary", "--html"]])
def test_no_file_is_named_as_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    (tmp_path / "a.json").write_text(kineto([kernel(1.0)]), "utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["trace", words[0], "a.json", words[1], "-"]) == 2
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_that_may_not_be_searched_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").write_text(kineto([kernel(1.0)]), "utf-8")
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "b.json").write_text(kineto([kernel(1.0)]), "utf-8")
    real = os.stat

    def stat(path: Any, **more: Any) -> os.stat_result:
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **more)

    monkeypatch.setattr(os, "stat", stat)
    assert main(["trace", "summary", str(tmp_path)]) == 0


def test_a_file_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.json"
    file.write_text(kineto([kernel(1.0)]), "utf-8")
    for verb in ("summary", "diagnose"):
        main(["trace", verb, str(file), str(tmp_path), "--json", "-"])
        captured = capsys.readouterr()
        assert "is given more than once: it is read once" in captured.err, verb
        assert "rank 1" not in captured.out
    main(["trace", "summary", str(file), str(file), "--json", "-"])
    assert json.loads(capsys.readouterr().out)["events"]["kernel"] == 1


@pytest.mark.parametrize("verb", ["diagnose", "diff", "summary"])
def test_a_device_that_is_not_there_is_an_error_of_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    file = tmp_path / "a.json"
    file.write_text(kineto([kernel(1.0, pid=3)]), "utf-8")
    assert main([*words_of(verb, file), "--device", "9"]) == 2
    assert "--device 9: nothing ran on it, but on 3" in capsys.readouterr().err
    assert main([*words_of(verb, file), "--device", "3"]) != 2


def test_a_range_that_is_not_there_is_an_error_of_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.json"
    file.write_text(kineto([kernel(1.0), step(0.0, "forward"), step(9.0, "a\nb")]), "utf-8")
    words = ["trace", "summary", str(file), "--range"]
    assert main([*words, "nope"]) == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "nope" in each]
    assert r"--range 'nope': no range has this name, but 'a\nb', 'forward'" in line
    assert main([*words, "for*"]) == 0


def test_a_summary_is_not_a_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, made = tmp_path / "a.json", tmp_path / "summary.json"
    file.write_text(kineto([kernel(1.0)]), "utf-8")
    assert main(["trace", "summary", str(file), "--json", str(made)]) == 0
    capsys.readouterr()
    for verb in ("summary", "timeline"):
        assert main(words_of(verb, made)) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "already a summary, which diff and diagnose read: give captures" in line


def test_what_a_reader_could_not_find_out_is_in_the_json_of_a_diagnosis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cut.json"
    file.write_text(kineto([kernel(each * 2.0) for each in range(9)])[:-20], encoding="utf-8")
    main(["trace", "diagnose", str(file), "--json", "-"])
    (found,) = [
        each
        for each in json.loads(capsys.readouterr().out)["results"]
        if each["id"] == "trace/diagnose/reading"
    ]
    assert found["verdict"] == "UNVERIFIED"
    assert "breaks off" in found["reason"]


@pytest.mark.parametrize("by", ["kernel", "device"])
def test_a_narrow_terminal_has_fewer_columns(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    by: str,
) -> None:
    file = tmp_path / "a.json"
    file.write_text(kineto([kernel(1.0, name="volta_sgemm_128x64_nn")]), "utf-8")
    monkeypatch.setenv("FORCE_COLOR", "1")
    heads = {}
    for columns in (80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        main(["trace", "summary", str(file), "--by", by])
        heads[columns] = capsys.readouterr().out
    left_out = {"kernel": "p95", "device": "longest gap"}[by]
    assert left_out in heads[200]
    assert left_out not in heads[80]
    # nothing is broken over several lines
    assert {"kernel": "volta_sgemm_128x64_nn", "device": "device 0"}[by] in heads[80]


def test_a_summary_may_lack_names_and_sums() -> None:
    nameless = ranges([{"path": None, "host_ns": None}])
    idle = summary(devices=(device(100, 10),), ranges=nameless)
    assert diagnose(idle)
    totals = summary(devices=(), rows=rows([{"name": None, "category": "gemm"}]))
    found = compare(totals, totals)
    assert {each.a_ns for each in found.differences if each.part == "category"} == {0}


def test_launches_are_shared_between_the_devices_of_a_process() -> None:
    kernels = [{"name": "k", "device": at, "calls": 100, "total_ns": 100_000} for at in (0, 1)]
    run = summary(
        devices=tuple(device(100, 10, device=at) for at in (0, 1)),
        rows=rows(kernels),
        events={"kernel": 200, "api": 200, "range": 0},
        api_ns={"cudaLaunchKernel": 2_000_000},
    )
    found = [each for each in diagnose(run) if each.id.endswith("launch-bound")]
    # 2 ms of launches for 200 kernels
    assert len(found) == 2
    assert all("10 µs of the host to launch one (1 ms in all)" in each.reason for each in found)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize("form", ["csv", "sqlite", "json"])
def test_a_packed_capture_is_read_as_the_plain_one(tmp_path: Path, kind: str, form: str) -> None:
    plain = tmp_path / f"plain.{form}"
    if form == "csv":
        plain.write_text(KERNELS, encoding="utf-8")
    elif form == "sqlite":
        write_nsys(timeline(200, devices=2), plain)
    else:
        event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2}
        plain.write_text(json.dumps({"traceEvents": [event]}), encoding="utf-8")
    file = tmp_path / f"packed.{form}"
    with pa.CompressedOutputStream(str(file), kind) as stream:
        stream.write(plain.read_bytes())
    found, expected = read(file), read(plain)
    assert {k: v.to_pydict() for k, v in found.tables.items()} == {
        k: v.to_pydict() for k, v in expected.tables.items()
    }
    assert found.problems == expected.problems == ()
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    try:
        cut = read(file)
    except FormatError as error:
        assert "\n" not in str(error)
    else:
        assert cut.problems or cut.dropped
