"""Operators of the host against an oracle that looks at every nanosecond."""

from __future__ import annotations

import csv
import io
import json
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import pytest

pa: Any = pytest.importorskip("pyarrow")
np: Any = pytest.importorskip("numpy")

from portagpu import cli
from portagpu.facts.captures.model import Capture, Process, Source, table
from portagpu.reports.html.trace_page import render
from portagpu.traces.analysis.model import OPERATOR_COLUMNS
from portagpu.traces.analysis.reading import read_document, to_document
from portagpu.traces.analysis.summary import summarize
from tests.support.looped import looped

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Event = dict[str, Any]
SEEDS = range(40)


def capture(rows: Iterable[Event], ranges: Iterable[Event] = (), **more: Any) -> Capture:
    """A capture with those operators and ranges."""
    tables: Any = {}
    for kind, given in (("operator", list(rows)), ("range", list(ranges))):
        columns = sorted({key for row in given for key in row}) or ["start_ns", "end_ns"]
        tables[kind] = table({key: [row.get(key) for row in given] for key in columns})
    return Capture(Source("a", "made"), tables, **more)


def made(seed: int) -> list[Event]:
    """Operators that nest, overlap, begin or end at once, and are empty, on up to four threads."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(int(rng.integers(0, 80))):
        start = int(rng.integers(-50, 120))
        length = int(rng.integers(0, (3, 20, 150)[int(rng.integers(0, 3))]))
        row: Event = {"name": "abcdef"[int(rng.integers(0, 6))], "pid": int(rng.integers(1, 3))}
        row |= {"start_ns": start, "end_ns": start + length, "tid": int(rng.integers(7, 9))}
        found.append(row)
    return found


def self_times(rows: list[Event]) -> dict[str, int]:
    """Name -> the nanoseconds in which no operator that began later was open on the thread."""
    found = dict.fromkeys((row["name"] for row in rows), 0)
    for thread in {(row["pid"], row["tid"]) for row in rows}:
        own = [row for row in rows if (row["pid"], row["tid"]) == thread]
        for ns in range(min(r["start_ns"] for r in own), max(r["end_ns"] for r in own)):
            now = [row for row in own if row["start_ns"] <= ns < row["end_ns"]]
            if now:
                last = max(now, key=lambda row: (row["start_ns"], -row["end_ns"], row["name"]))
                found[last["name"]] += 1
    return found


@looped("seed", SEEDS)
def test_the_figures_are_those_of_counting(seed: int) -> None:
    rows = made(seed)
    found = summarize([capture(rows)])
    assert found.operators is not None
    assert found.operators.column_names == list(OPERATOR_COLUMNS)
    assert found.events["operator"] == len(rows)
    own = self_times(rows)
    got = found.operators.to_pylist()
    assert {row["name"] for row in got} == own.keys()
    for row in got:
        lengths = [r["end_ns"] - r["start_ns"] for r in rows if r["name"] == row["name"]]
        assert row == {
            "rank": None,
            "name": row["name"],
            "calls": len(lengths),
            "total_ns": sum(lengths),
            "self_ns": own[row["name"]],
            "mean_ns": round(fmean(lengths), 3),
            "median_ns": round(float(median(lengths)), 3),
            "p95_ns": round(float(np.percentile(lengths, 95)), 3),
            "max_ns": max(lengths),
        }
    assert [(-row["total_ns"], row["name"]) for row in got] == sorted(
        (-row["total_ns"], row["name"]) for row in got
    )


@looped("seed", SEEDS)
def test_nested_operators_lose_the_time_of_those_in_them(seed: int) -> None:
    # a tree of calls on each of two threads: the self time is the total less that of the children
    rng = np.random.default_rng(seed)
    rows: list[Event] = []
    own: dict[str, int] = {}

    def call(tid: int, start: int, depth: int) -> int:
        name = f"op{int(rng.integers(0, 5))}"
        at = start + int(rng.integers(0, 4))
        inside = 0
        for _ in range(int(rng.integers(0, 4)) if depth < 4 else 0):
            end = call(tid, at, depth + 1)
            inside += rows[-1]["end_ns"] - rows[-1]["start_ns"]
            at = end + int(rng.integers(0, 4))
        at += int(rng.integers(0, 5))
        rows.append({"name": name, "start_ns": start, "end_ns": at, "tid": tid, "pid": 1})
        own[name] = own.get(name, 0) + at - start - inside
        return at

    for tid in (1, 2):
        at = 0
        for _ in range(5):
            at = call(tid, at, 0) + 1
    # of equal intervals nothing says which is around the other
    if len({(r["start_ns"], r["end_ns"], r["tid"]) for r in rows}) < len(rows):
        own = self_times(rows)
    got = summarize([capture(rows)]).operators
    assert got is not None
    assert {row["name"]: row["self_ns"] for row in got.to_pylist()} == own


@looped("seed", SEEDS)
def test_the_order_of_rows_changes_nothing(seed: int) -> None:
    given = capture(made(seed))
    rows = given.tables["operator"]
    order = np.random.default_rng(seed).permutation(rows.num_rows)
    mixed = pa.concat_tables([rows.take(order[0::2]), rows.take(order[1::2])])
    other = Capture(given.source, {**given.tables, "operator": mixed})
    assert to_document(summarize([other])) == to_document(summarize([given]))


def test_many_operators_in_one_and_after_another() -> None:
    # the last open one is far back: 100,000 short ones are in it, and it goes on after them
    rows = [{"name": "outer", "start_ns": 0, "end_ns": 500_000, "tid": 1}]
    rows += [
        {"name": "inner", "start_ns": 4 * at, "end_ns": 4 * at + 3, "tid": 1}
        for at in range(100_000)
    ]
    got = summarize([capture(rows)]).operators
    assert got is not None
    own = {row["name"]: (row["calls"], row["self_ns"]) for row in got.to_pylist()}
    assert own == {"outer": (1, 200_000), "inner": (100_000, 300_000)}


def test_without_a_thread_the_self_time_is_not_known() -> None:
    event = {"start_ns": 0, "end_ns": 9}
    rows = [
        {**event, "name": "a", "tid": 1},
        {**event, "name": "b", "tid": None},
        {**event, "name": "c", "tid": 1},
        {**event, "name": "c", "tid": None},
    ]
    got = summarize([capture(rows)]).operators
    assert got is not None
    assert {row["name"]: row["self_ns"] for row in got.to_pylist()} == {
        "a": 0,
        "b": None,
        "c": None,
    }


def test_impossible_operators_are_left_out_and_counted() -> None:
    rows = [
        {"name": "a", "start_ns": 0, "end_ns": 9, "tid": 1},
        {"name": "b", "start_ns": 5, "end_ns": 4, "tid": 1},
        {"name": "b", "start_ns": 5, "end_ns": None, "tid": 1},
    ]
    found = summarize([capture(rows)])
    assert (found.dropped, found.events["operator"]) == (2, 1)
    assert found.operators is not None
    assert [row["name"] for row in found.operators.to_pylist()] == ["a"]


def test_a_range_has_the_operators_that_begin_in_it() -> None:
    spans = [
        {"name": "step", "start_ns": 10, "end_ns": 50, "tid": 1, "pid": 4},
        {"name": "forward", "start_ns": 20, "end_ns": 30, "tid": 1, "pid": 4},
    ]
    rows = [
        {"name": f"at{at}", "start_ns": at, "end_ns": at + 5, "tid": tid, "pid": 4}
        for at, tid in ((5, 1), (12, 1), (22, 1), (23, 2), (60, 1))
    ]
    for glob, names in (("step", {"at12", "at22"}), ("*forward", {"at22"}), ("no", set())):
        found = summarize([capture(rows, spans)], within=glob)
        assert found.operators is not None
        assert {row["name"] for row in found.operators.to_pylist()} == names
        assert found.events["operator"] == len(names)


def test_ranks_have_rows_of_their_own() -> None:
    row = {"name": "a", "start_ns": 0, "end_ns": 9, "tid": 1, "pid": 1}
    both = [capture([row], processes=(Process(1, rank=rank),)) for rank in (3, 1)]
    found = summarize(both).operators
    assert found is not None
    assert [(row["rank"], row["name"]) for row in found.to_pylist()] == [(1, "a"), (3, "a")]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """What torch's profiler writes on a CPU, with a name that is markup."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 5, "tid": 5, "ts": ts, "dur": dur}
        for name, ts, dur in (
            ("aten::linear", 0, 100),
            ("aten::addmm", 10, 60),
            ("<script>\x1b[31m", 200, 5),
        )
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), "utf-8")
    return path


def test_operators_are_shown_where_nothing_ran_on_a_device(
    trace: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["trace", "summary", str(trace), "--html", str(tmp_path / "a.html")]
    assert cli.main([*words, "--json", str(tmp_path / "b.json")]) == 0
    out = capfd.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][:4] == ["of", "self", "self", "total"]
    assert lines[1][-1] == "aten::addmm"
    assert lines[2][-1] == "aten::linear"
    assert "nothing ran on a device" in out
    assert "\x1b" not in out
    page = (tmp_path / "a.html").read_text("utf-8")
    assert "<h2>Operators</h2>" in page
    assert "aten::linear" in page
    assert "<script" not in page
    found = read_document(tmp_path / "b.json")
    assert found.operators is not None
    assert {row["name"]: row["self_ns"] for row in found.operators.to_pylist()} == {
        "aten::linear": 40_000,
        "aten::addmm": 60_000,
        "<script>\x1b[31m": 5_000,
    }
    assert render(found) == page


def test_operators_and_calls_as_csv(
    trace: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["trace", "summary", str(trace), "--by", "operator", "--csv", "-"]) == 0
    text = capfd.readouterr().out
    assert cli.main(["trace", "summary", str(trace), "--csv", "-"]) == 0
    assert capfd.readouterr().out == text, "nothing ran on a device: operators are the default"
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == list(OPERATOR_COLUMNS)
    assert [row["total_ns"] for row in rows] == ["100000", "60000", "5000"]
    from tests.support import trace_samples

    given = trace_samples.write_kineto(trace_samples.timeline(64), tmp_path / "g.json")
    assert cli.main(["trace", "summary", str(given), "--by", "api", "--csv", "-"]) == 0
    said = capfd.readouterr()
    calls = {row["name"]: int(row["total_ns"]) for row in csv.DictReader(io.StringIO(said.out))}
    assert cli.main(["trace", "summary", str(given), "--json", "-"]) == 0
    assert calls == json.loads(capfd.readouterr().out)["api_ns"] != {}
    assert said.err.splitlines()[0].split() == ["total", "of", "calls", "name"]


def test_where_a_device_worked_operators_come_on_request_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from tests.support import trace_samples

    given = str(trace_samples.write_kineto(trace_samples.timeline(64), tmp_path / "g.json"))
    assert cli.main(["trace", "summary", given]) == 0
    assert "of self" not in capfd.readouterr().out


def test_a_capture_of_a_cpu_still_has_no_diagnosis(
    trace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["trace", "diagnose", str(trace)]) == 3
    out = capfd.readouterr().out
    assert "no-device" in out
    assert "FAIL" not in out


@pytest.mark.torch
def test_the_self_times_are_those_of_torch_itself(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from portagpu.traces.analysis.reading import read

    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.LayerNorm(32), torch.nn.GELU())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(3):
            model(torch.randn(8, 32)).sum().backward()
    profile.export_chrome_trace(str(tmp_path / "a.json"))
    wanted = {each.key: each for each in profile.key_averages()}
    found = summarize([read(tmp_path / "a.json")]).operators
    assert found is not None
    rows = found.to_pylist()
    assert {"aten::addmm", "aten::linear"} < {row["name"] for row in rows} <= wanted.keys()
    for row in rows:
        of = wanted[row["name"]]
        # torch counts an operator that is alone in one of its own name, as aten::sum, as that one
        assert row["calls"] >= of.count, row["name"]
        if row["calls"] == of.count:
            assert row["total_ns"] == pytest.approx(1000 * of.cpu_time_total, abs=of.count)
        # the microseconds of both have three decimals
        assert row["self_ns"] == pytest.approx(1000 * of.self_cpu_time_total, abs=5 * of.count)
    assert sum(row["calls"] == wanted[row["name"]].count for row in rows) > len(rows) / 2
