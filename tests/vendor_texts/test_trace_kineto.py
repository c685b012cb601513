"""The reader of torch's traces: recordings, exact times, odd forms, and files that break off."""

from __future__ import annotations

import gzip
import json
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("msgspec")

from portagpu.facts.captures.labels import COLLECTIVE, encode
from portagpu.facts.readings import FormatError
from portagpu.traces.analysis import kineto, reading
from portagpu.traces.analysis.summary import NEEDED, summarize
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

RECORDINGS = ROOT / "tests/recordings/torch"

# events by category, the sum of all kernels in microseconds, and the devices: counted by hand
# with json.load in the original files
FACTS: dict[str, tuple[dict[str, int], float, int, str]] = {
    "cpu-only-rank34": ({"range": 11, "operator": 4}, 0.0, 0, ""),
    "h100-bert-small": (
        {"kernel": 60, "operator": 479, "api": 132, "copy": 1, "set": 0, "range": 2},
        307.2,
        1,
        "NVIDIA H100 80GB HBM3",
    ),
    "mi210-gpu-only": ({"kernel": 562, "api": 631, "copy": 0}, 5343.4, 4, "AMD Instinct MI210"),
    "mi250-minitoy-train-rocm62": (
        {"kernel": 14, "operator": 70, "api": 21, "copy": 2},
        110.9,
        4,
        "AMD Radeon Graphics",
    ),
    "mi300x-bert-small": (
        {"kernel": 60, "operator": 519, "api": 161, "copy": 1},
        388.3,
        2,
        "AMD Instinct MI300X VF",
    ),
    "mi300x-vllm-decode-graph": (
        {"kernel": 425, "operator": 100, "api": 20, "copy": 9},
        10674.5,
        8,
        "",
    ),
    "nv-alexnet-critical-path": (
        {"kernel": 79, "operator": 359, "api": 361, "copy": 16, "set": 3, "sync": 41},
        10692.0,
        8,
        "NVIDIA A100-PG509-200",
    ),
    "nv-cuda-event-sync": (
        {"kernel": 4, "operator": 10, "api": 12, "copy": 1, "sync": 4},
        49.0,
        8,
        "NVIDIA A100-PG509-200",
    ),
    "nv-sampled-rank0-nccl": (
        {"kernel": 1154, "operator": 2329, "api": 1204, "copy": 40, "set": 10, "range": 73},
        606519.0,
        1,
        "",
    ),
}


def write(folder: Path, document: Any, name: str = "trace.json") -> Path:
    path = folder / name
    text = document if isinstance(document, str) else json.dumps(document)
    path.write_text(text, "utf-8")
    return path


def kernel(number: int = 0, **changes: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "correlation": number, "grid": [4, 2, 1], "block": [64, 1, 1]}
    event = {"ph": "X", "cat": "kernel", "name": f"k{number}", "pid": 0, "tid": 7}
    return event | {"ts": 10.5 + number, "dur": 0.25, "args": args} | changes


def rows(path: Path, kind: Any = "kernel", chunk: int = 1 << 20) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = kineto.read(path, chunk=chunk).tables[kind].to_pylist()
    return found


@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize("chunk", [1 << 20, 4096])
def test_a_recording_has_what_its_source_has(name: str, chunk: int) -> None:
    counts, total_us, devices, device = FACTS[name]
    capture = kineto.read(RECORDINGS / f"{name}.json.gz", chunk=chunk)
    assert {kind: capture.count(kind) for kind in counts} == counts  # type: ignore[arg-type]
    if total_us:
        kernels = capture.tables["kernel"].to_pylist()
        assert sum(e["end_ns"] - e["start_ns"] for e in kernels) == pytest.approx(
            total_us * 1000, abs=50
        )
    assert len(capture.devices) == devices
    if device:
        assert capture.devices[0].name == device
    assert (capture.problems, capture.dropped) == ((), 0)


def test_recordings_say_vendor_rank_versions_and_clock() -> None:
    nvidia = kineto.read(RECORDINGS / "h100-bert-small.json.gz")
    assert nvidia.devices[0].vendor == "nvidia"
    assert (nvidia.devices[0].units, nvidia.devices[0].warp_size) == (132, 32)
    assert nvidia.details["cupti_version"] == "22"
    assert nvidia.details["left out: python_function"] == "1,385"
    amd = kineto.read(RECORDINGS / "mi210-gpu-only.json.gz")
    assert amd.devices[0].vendor == "amd"
    assert (amd.devices[0].units, amd.devices[0].warp_size) == (104, 64)
    assert amd.details["roctracer_version"] == "4.1"
    assert amd.epoch_ns == 1759300074000000000
    cpu = kineto.read(RECORDINGS / "cpu-only-rank34.json.gz")
    assert (cpu.rank, cpu.processes[0].world_size) == (34, 300)
    assert cpu.count("kernel") is None
    old = kineto.read(RECORDINGS / "nv-alexnet-critical-path.json.gz")
    assert old.epoch_ns == 0


def test_all_recordings_are_found_by_their_contents() -> None:
    for path in RECORDINGS.glob("*.gz"):
        assert reading.read(path).source.format == kineto.KIND


@pytest.mark.parametrize(
    "text",
    [
        "0.001",
        "0.5",
        "1719853884000.123",
        "6869181218001.421",
        "8796093022207.999",  # the last below 2**43
        "8796093022208.001",
        "9007199254740.993",  # 2**53 + 1 ns
        "2005843009213693",
        "1695835572943558.127",
        "1695835572943558",
        "1.5e3",
    ],
)
@pytest.mark.parametrize("chunk", [1 << 20, 64])
def test_times_are_exact_to_the_nanosecond(tmp_path: Path, text: str, chunk: int) -> None:
    event = json.dumps(kernel(ts="HERE", dur="THERE")).replace('"HERE"', text)
    whole = f'{{"traceEvents": [{event}, {event}]}}'.replace('"THERE"', "0.001")
    found = rows(write(tmp_path, whole), chunk=chunk)
    start = int(Decimal(text) * 1000)
    assert [(each["start_ns"], each["end_ns"]) for each in found] == [(start, start + 1)] * 2


def test_random_times_are_exact(tmp_path: Path) -> None:
    made = random.Random(14)  # noqa: S311
    expected = [made.randrange(1 << 53) for _ in range(2000)]
    events = ",".join(
        json.dumps(kernel(ts="T")).replace('"T"', f"{ns // 1000}.{ns % 1000:03d}")
        for ns in expected
    )
    found = rows(write(tmp_path, f'{{"traceEvents": [{events}]}}'), chunk=8192)
    assert [each["start_ns"] for each in found] == expected


def test_the_form_of_the_json_does_not_matter(tmp_path: Path) -> None:
    events = [kernel(number) for number in range(40)]
    plain = rows(write(tmp_path, {"traceEvents": events}))
    turned = [dict(reversed(list(each.items()))) for each in events]
    for name, text in {
        "indent": json.dumps({"a": {"traceEvents": "no"}, "traceEvents": events}, indent=3),
        "turned": json.dumps({"traceEvents": turned, "schemaVersion": 1}),
        "list": json.dumps(events),
        "tight": json.dumps({"x": [{}, {}], "traceEvents": events}, separators=(",", ":")),
        "mark": "\ufeff" + json.dumps({"traceEvents": events}),
        "quoted": json.dumps({"k": '"traceEvents": [{}, {}]', "traceEvents": events}),
        "trailing": json.dumps({"traceEvents": events})[:-2] + ", ] }",
        "after": json.dumps({"traceEvents": events, "deviceProperties": [{"id": 1}, {"id": 2}]}),
    }.items():
        for chunk in (1 << 20, 100):
            assert rows(write(tmp_path, text), chunk=chunk) == plain, (name, chunk)
    path = tmp_path / "packed.json.gz"
    path.write_bytes(gzip.compress(json.dumps(events).encode()))
    assert rows(path) == plain


def test_numbers_that_are_none_and_odd_ids_lose_no_event(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [kernel(1), kernel(2), kernel(3), kernel(4)]})
    text = text.replace('"correlation": 2', '"correlation": 2, "memory bandwidth (GB/s)": NaN')
    text = text.replace('"correlation": 3', '"correlation": 3, "x": -Infinity, "y": inf')
    text = text.replace('"stream": 7, "correlation": 4', '"stream": "0x10", "correlation": "4"')
    found = rows(write(tmp_path, text))
    assert [each["correlation"] for each in found] == [1, 2, 3, 4]
    assert [each["stream"] for each in found] == [7, 7, 7, 16]
    big = kernel(5, args={"device": 0, "stream": (1 << 63) - 5, "correlation": 1 << 70})
    deep = kernel(6, args={"device": 0, "x": json.loads("[" * 300 + "]" * 300)})
    twice = json.dumps(kernel(7)).replace('"dur": 0.25', '"dur": 9, "dur": 0.25')
    made = write(tmp_path, f"[{json.dumps(big)}, {json.dumps(deep)}, {twice}]")
    assert [each["stream"] for each in rows(made)] == [(1 << 63) - 5, 7, 7]
    assert [each["correlation"] for each in rows(made)] == [None, None, 7]
    assert rows(made)[2]["end_ns"] - rows(made)[2]["start_ns"] == 250


def test_a_name_with_a_quote_costs_one_event(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [kernel(n) for n in range(50)]}, indent=1)
    path = write(tmp_path, text.replace('"k20"', '"k"20"'))
    capture = kineto.read(path, chunk=512)
    assert (capture.count("kernel"), capture.dropped) == (49, 1)
    assert "left out" in " ".join(capture.problems)


def test_names_of_other_encodings_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    raw = json.dumps([kernel(1), kernel(2), kernel(3)]).encode()
    raw = raw.replace(b"k1", b"k\xff\xfe1").replace(b"k3", b"\\ud800<b>\\u001b[31m")
    path.write_bytes(raw)
    assert [each["name"] for each in rows(path)] == ["k\ufffd\ufffd1", "k2", "?<b>\x1b[31m"]


def test_impossible_events_are_counted(tmp_path: Path) -> None:
    events = [kernel(1), kernel(2, dur=-1), kernel(3, ts=None), kernel(4, ts=1e300), kernel(5)]
    del events[3]["dur"]
    capture = kineto.read(write(tmp_path, {"traceEvents": events}))
    assert (capture.count("kernel"), capture.dropped) == (2, 3)
    assert "negative duration" in capture.problems[0]


@pytest.mark.parametrize(
    ("times", "span"),
    [
        ({"ts": 1.5, "dur": 2}, (1500, 3500)),
        ({"ts": 1.5, "dur": 0}, (1500, 1500)),
        ({"ts": 1.5, "dur": -0.001}, None),
        ({"ts": 1.5}, None),
        ({"dur": 2}, None),
        ({"ts": "1.5", "dur": 2}, None),
        ({"ts": 1.5, "dur": True}, None),
        ({}, None),
    ],
)
def test_the_span_is_that_of_the_event_trace_with_both_times(
    tmp_path: Path, times: dict[str, Any], span: tuple[int, int] | None
) -> None:
    events = [kernel(), {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", **times}]
    assert kineto.read(write(tmp_path, {"traceEvents": events})).span_ns == span


@pytest.mark.parametrize("pack", [False, True])
def test_a_file_that_breaks_off_gives_the_events_before(tmp_path: Path, pack: bool) -> None:
    whole = json.dumps({"traceEvents": [kernel(number) for number in range(3000)]}).encode()
    path = tmp_path / "trace.json"
    cut = len(whole) * 2 // 3
    if pack:
        packed = gzip.compress(whole, mtime=0)
        path.write_bytes(packed[: len(packed) * 2 // 3])
    else:
        path.write_bytes(whole[:cut])
    capture = reading.read(path)
    found = capture.count("kernel") or 0
    assert 1000 < found < 2900
    assert capture.tables["kernel"].column("correlation").to_pylist() == list(range(found))
    assert "breaks off" in " ".join(capture.problems)
    assert capture.dropped <= 1


@pytest.mark.parametrize("name", FACTS)
def test_wanted_columns_are_as_in_the_whole(name: str) -> None:
    every = reading.read(RECORDINGS / f"{name}.json.gz")
    some = reading.read(RECORDINGS / f"{name}.json.gz", NEEDED)
    assert every.tables.keys() == some.tables.keys()
    for kind, of in some.tables.items():
        wanted = [each for each in every.tables[kind].column_names if each in (*NEEDED, "stream")]
        assert set(wanted) <= set(of.column_names)
        assert not {"grid_x", "block_z", "registers", "shared_bytes"} & set(of.column_names)
        assert of.select(wanted).equals(every.tables[kind].select(wanted))
    few, all_ = summarize([some]), summarize([every])
    assert few.rows.equals(all_.rows)
    assert few.ranges.equals(all_.ranges)
    assert (few.devices, few.steps) == (all_.devices, all_.steps)


@pytest.mark.parametrize("text", ["", "x", '"traceEvents"', "{}"])
def test_what_is_not_a_trace_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(FormatError, match=r"\A.*(?:is not JSON|not a JSON|has no traceEvents).*\Z"):
        kineto.read(write(tmp_path, text))


@pytest.mark.parametrize("text", ['{"a": 1}', "[1, 2"])
def test_what_has_no_events_says_so(tmp_path: Path, text: str) -> None:
    capture = kineto.read(write(tmp_path, text))
    assert capture.problems
    assert not any(each.num_rows for each in capture.tables.values())


def test_collectives_have_their_operation_and_bytes(tmp_path: Path) -> None:
    args: dict[str, Any] = {"Collective name": "_allgather_base", "dtype": "BFloat16", "Seq": 9}
    args |= {"In msg nelems": 100, "Out msg nelems": 800, "Group size": 8}
    args |= {"Process Group Name": "0"}
    call = kernel(1, cat="cpu_op", name="record_param_comms", pid=5, tid=6, args=args)
    wait = kernel(2, cat="cpu_op", name="record_param_comms", args={"Collective name": "wait"})
    path = write(tmp_path, [call, wait, kernel(3, args=args | {"device": 1, "stream": 2})])
    expected = {"operation": "all_gather", "dtype": "bfloat16", "bytes": 1600, "group": "0"}
    expected |= {"group_size": 8, "sequence": 9}
    for kind in ("collective", "kernel"):
        (found,) = rows(path, kind)
        assert {key: found[key] for key in expected} == expected
    assert len(rows(path, "operator")) == 1


def test_ranges_without_a_name_are_read(tmp_path: Path) -> None:
    events = [kernel(1, cat="user_annotation", name=None), kernel(2, cat="user_annotation")]
    assert [e["name"] for e in rows(write(tmp_path, events[:1]), "range")] == [None]
    assert [e["name"] for e in rows(write(tmp_path, events), "range")] == [None, "k2"]


def test_our_labels_come_out_of_the_names_of_ranges(tmp_path: Path) -> None:
    labels = {"bytes": 4096, "dtype": "float32", "group": "dp", "group_size": 8, "sequence": 3}
    names = [encode("load", {"batch": 7}, "data"), encode("all_reduce", labels, COLLECTIVE), "own"]
    events = [kernel(n, cat="user_annotation", name=name, args={}) for n, name in enumerate(names)]
    path = write(tmp_path, events)
    assert [(e["name"], e["domain"], e["payload"]) for e in rows(path, "range")] == [
        ("load", "data", '{"batch":7}'),
        ("own", None, None),
    ]
    (found,) = rows(path, "collective")
    assert found["operation"] == "all_reduce"
    assert {key: found[key] for key in labels} == labels


def test_events_of_a_trace_without_gpu_rows_say_so(tmp_path: Path) -> None:
    operator = kernel(1, cat="cpu_op")
    none = kineto.read(write(tmp_path, {"cupti_version": 28, "traceEvents": [operator]}))
    assert none.count("kernel") == 0, "kernels were asked for, and there was none"
    cpu = kineto.read(write(tmp_path, {"traceEvents": [operator]}))
    assert cpu.count("kernel") is None, "kernels were not recorded"


@pytest.mark.torch
def test_what_the_installed_torch_writes_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "trace.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            with torch.profiler.record_function("step"):
                torch.ones(8, 8) @ torch.ones(8, 8)
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    capture = reading.read(path)
    written = [each for each in events if each.get("cat") == "cpu_op"]
    assert capture.count("operator") == len(written)
    assert [e["name"] for e in rows(path, "range")].count("step") == 3
    assert (capture.count("kernel"), capture.dropped, capture.problems) == (None, 0, ())
    assert capture.epoch_ns
