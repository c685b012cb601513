"""Summaries against an oracle that counts every nanosecond, and the same for every format."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

pa: Any = pytest.importorskip("pyarrow")
np: Any = pytest.importorskip("numpy")

from portagpu.facts.captures.model import (
    METRIC_COLUMNS,
    Capture,
    CapturedDevice,
    Kind,
    Process,
    Source,
    table,
)
from portagpu.traces.analysis.kernel_names import classify
from portagpu.traces.analysis.reading import to_document
from portagpu.traces.analysis.summary import summarize
from tests.support.looped import looped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from portagpu.traces.analysis.model import Summary

Event = dict[str, Any]
NAMES = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "void at::native::reduce_kernel<512, 1>(int)",
    "void at::native::reduce_kernel<128, 1>(int)",
    "nobody_knows",
)
SEEDS = range(30)


def capture(events: dict[Kind, list[Event]], devices: int = 1, **more: Any) -> Capture:
    """A capture of those events; a column is there if one event of its kind has it."""
    tables = {}
    for kind, rows in events.items():
        columns = sorted({key for row in rows for key in row}) or ["start_ns", "end_ns"]
        tables[kind] = table({key: [row.get(key) for row in rows] for key in columns})
    known = tuple(CapturedDevice(index) for index in range(devices))
    return Capture(Source("a", "made"), tables, devices=known, **more)


def made(seed: int) -> dict[Kind, list[Event]]:
    """A small timeline with overlaps, ties, empty intervals, two devices and two threads."""
    rng = np.random.default_rng(seed)
    events: dict[Kind, list[Event]] = {"kernel": [], "copy": [], "set": [], "api": [], "range": []}
    for number in range(int(rng.integers(0, 25))):
        kind: Kind = ("kernel", "kernel", "kernel", "copy", "set")[int(rng.integers(0, 5))]
        start, device = int(rng.integers(100, 220)), int(rng.integers(0, 2))
        row = {"start_ns": start, "end_ns": start + int(rng.integers(0, 25)), "device": device}
        row |= {"correlation": number // 2 + 1, "pid": 7}
        if kind == "kernel":
            row["name"] = NAMES[int(rng.integers(0, len(NAMES)))]
        elif kind == "copy":
            row |= {"name": "Memcpy HtoD", "bytes": int(rng.integers(0, 99))}
        events[kind].append(row)
        if number % 2 == 0 and number % 8:
            called = int(rng.integers(0, 100))
            call = {"start_ns": called, "end_ns": called + 2, "name": "launch", "pid": 7}
            thread = int(rng.integers(1, 3))
            events["api"].append({**call, "tid": thread, "correlation": number // 2 + 1})
    for _ in range(int(rng.integers(0, 10))):
        start = int(rng.integers(0, 90))
        row = {"start_ns": start, "end_ns": start + int(rng.integers(0, 60)), "pid": 7}
        row |= {"tid": int(rng.integers(1, 3)), "name": "abc"[int(rng.integers(0, 3))]}
        # two ranges of one start: which is around the other, only their ends say
        if all(
            (row["start_ns"], row["tid"]) != (each["start_ns"], each["tid"])
            for each in events["range"]
        ):
            events["range"].append(row)
    return events


def covered(events: Iterable[Event]) -> set[int]:
    return {ns for each in events for ns in range(each["start_ns"], each["end_ns"])}


def category_of(kind: str, event: Event) -> str:
    return classify(event["name"]).category if kind == "kernel" else "copy"


@pytest.fixture(params=[2, 1 << 17])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows at a time: also so few that everything crosses a border."""
    for module in ("arrays", "device_times"):
        monkeypatch.setattr(f"portagpu.traces.analysis.{module}._BLOCK", request.param)
    for module in ("arrays", "ranges", "summary", "work"):
        monkeypatch.setattr(f"portagpu.traces.analysis.{module}.BLOCK", request.param)
    return int(request.param)


@pytest.mark.usefixtures("block")
@looped("seed", SEEDS)
def test_the_time_of_a_device_is_what_counting_gives(seed: int) -> None:
    events = made(seed)
    calls = {each["correlation"]: each["start_ns"] for each in events["api"]}
    found = {each.device: each for each in summarize([capture(events, 2)]).devices}
    for device in (0, 1):
        of = {
            kind: [each for each in events[kind] if each["device"] == device]
            for kind in ("kernel", "copy", "set")
        }
        work = [each for rows in of.values() for each in rows]
        assert (device in found) == bool(work)
        if not work:
            continue
        time = found[device]
        talk = [each for each in of["kernel"] if category_of("kernel", each) == "communication"]
        compute = covered(each for each in of["kernel"] if each not in talk)
        copies = covered(of["copy"] + of["set"])
        busy = covered(work)
        first, last = min(e["start_ns"] for e in work), max(e["end_ns"] for e in work)
        assert (time.wall_ns, time.busy_ns) == (last - first, len(busy))
        assert time.idle_ns == time.wall_ns - time.busy_ns
        assert (time.compute_ns, time.communication_ns) == (len(compute), len(covered(talk)))
        assert time.exposed_communication_ns == len(covered(talk) - compute)
        assert time.copy_ns == len(copies)
        assert time.exposed_copy_ns == len(copies - covered(of["kernel"]))
        starts = sorted(ns for ns in busy if ns - 1 not in busy)
        ends = sorted(ns + 1 for ns in busy if ns + 1 not in busy)
        gaps = [start - end for start, end in zip(starts[1:], ends, strict=False)]
        assert (time.gaps, time.longest_gap_ns) == (len(gaps), max(gaps, default=None))
        assert time.median_gap_ns == (round(float(median(gaps)), 3) if gaps else None)
        firsts: dict[int, int] = {}
        for each in of["kernel"]:
            if (key := each["correlation"]) in calls:
                firsts[key] = min(firsts.get(key, 1 << 60), each["start_ns"])
        delays = [start - calls[key] for key, start in firsts.items()]
        assert time.median_launch_ns == (float(median(delays)) if delays else None)
        by_category: dict[str, list[Event]] = {}
        for kind, rows in of.items():
            for each in rows:
                by_category.setdefault(category_of(kind, each), []).append(each)
        assert time.by_category_ns == {
            name: len(covered(rows)) for name, rows in by_category.items()
        }


def path_at(ranges: Sequence[Event], tid: int, time: int) -> str | None:
    """The names of the open ranges of a thread, by the definition."""
    chain: list[Event] = []
    while True:
        before = chain[-1]["start_ns"] if chain else time + 1
        around = [
            each
            for each in ranges
            if each["tid"] == tid
            and each["start_ns"] < before
            and each["start_ns"] < each["end_ns"]
            and each["end_ns"] > (chain[-1]["start_ns"] if chain else time)
        ]
        if not around:
            break
        chain.append(max(around, key=lambda each: each["start_ns"]))
    return "/".join(each["name"] for each in reversed(chain)) or None


@pytest.mark.usefixtures("block")
@looped("seed", SEEDS)
def test_work_belongs_to_the_innermost_range_of_its_call(seed: int) -> None:
    events = made(seed)
    calls = {each["correlation"]: each for each in events["api"]}
    wanted: dict[str, list[Event]] = {}
    for each in (*events["kernel"], *events["copy"], *events["set"]):
        call = calls.get(each["correlation"])
        path = path_at(events["range"], call["tid"], call["start_ns"]) if call else None
        while path:
            wanted.setdefault(path, []).append(each)
            path = path.rpartition("/")[0]
    summary = summarize([capture(events, 2)])
    found = {row["path"]: row for row in summary.ranges.to_pylist()}
    spans = [each for each in events["range"] if each["start_ns"] < each["end_ns"]]
    paths = [path_at(spans, each["tid"], each["start_ns"]) for each in spans]
    assert found.keys() == set(paths)
    for path, row in found.items():
        own = [each for each, of in zip(spans, paths, strict=True) if of == path]
        lengths = [each["end_ns"] - each["start_ns"] for each in own]
        assert (row["calls"], row["host_ns"]) == (len(own), sum(lengths))
        assert row["depth"] == path.count("/")
        work = wanted.get(path, [])
        if any(calls):
            assert row["device_ns"] == len(covered(work))
            assert row["kernels"] == sum(each in events["kernel"] for each in work)


def text_of(summary: Summary) -> str:
    return json.dumps(to_document(summary), sort_keys=False)


@looped("seed", SEEDS)
def test_the_order_of_rows_and_their_chunks_change_nothing(seed: int) -> None:
    events = made(seed)
    rng = np.random.default_rng(seed)
    given = capture(events, 2)
    mixed = {}
    for kind, rows in given.tables.items():
        order = rng.permutation(rows.num_rows)
        halves = [rows.take(order[0::2]), rows.take(order[1::2])]
        mixed[kind] = pa.concat_tables(halves)
    assert text_of(summarize([replace(given, tables=mixed)])) == text_of(summarize([given]))


def test_ranges_of_one_time_are_nested_by_name_in_any_order() -> None:
    spans = [{"start_ns": 0, "end_ns": 9, "name": name, "tid": 1} for name in "bca"]
    for rows in (spans, spans[::-1], [spans[2], *spans[:2]]):
        found = summarize([capture({"range": rows})])
        assert [row["path"] for row in found.ranges.to_pylist()] == ["a", "a/b", "a/b/c"]


def test_impossible_events_are_counted_and_left_out() -> None:
    sound = {"start_ns": 10, "end_ns": 20, "name": "k", "device": 0}
    wrong = [
        {**sound, "end_ns": 9},
        {**sound, "end_ns": None},
        {**sound, "start_ns": None},
        {**sound, "start_ns": -(1 << 62)},
        {**sound, "end_ns": (1 << 63) - 1},
        {**sound, "start_ns": -(1 << 63), "end_ns": (1 << 63) - 1},
    ]
    found = summarize([capture({"kernel": [sound, *wrong], "api": [wrong[0]]}, dropped=5)])
    assert found.dropped == 5 + 7
    assert "7 events end before they start" in " ".join(found.problems)
    assert found.events == {"api": 0, "kernel": 1}
    assert [row["total_ns"] for row in found.rows.to_pylist()] == [10]


def test_sums_never_leave_64_bits() -> None:
    long = [{"start_ns": 0, "end_ns": (1 << 53) - each, "name": "k"} for each in range(600)]
    found = summarize([capture({"kernel": [*long, {"start_ns": 5, "end_ns": 9, "name": "k"}]})])
    (row,) = found.rows.to_pylist()
    assert (row["calls"], row["total_ns"], found.dropped) == (1, 4, 600)


def test_equal_correlations_of_two_processes_are_two_calls() -> None:
    kernel = {"start_ns": 100, "end_ns": 110, "name": "k", "correlation": 1, "device": 0}
    call = {"start_ns": 10, "end_ns": 12, "name": "launch", "correlation": 1, "tid": 1}
    events: dict[Kind, list[Event]] = {
        "kernel": [{**kernel, "pid": 1}, {**kernel, "pid": 2, "device": 1}],
        "api": [{**call, "pid": 2, "start_ns": 70, "end_ns": 75}, {**call, "pid": 1}],
    }
    found = summarize([capture(events, 2)])
    assert [each.median_launch_ns for each in found.devices] == [90.0, 30.0]
    assert found.api_ns == {"launch": 7}


def test_one_file_of_several_ranks_gives_each_its_rows() -> None:
    processes = (Process(1, rank=4), Process(2, rank=9))
    kernel = {"start_ns": 0, "end_ns": 5, "name": "k", "device": 0}
    events: dict[Kind, list[Event]] = {"kernel": [{**kernel, "pid": 2}, {**kernel, "pid": 1}]}
    found = summarize([capture(events, processes=processes)])
    assert [(each.rank, each.busy_ns) for each in found.devices] == [(4, 5), (9, 5)]
    assert sorted(row["rank"] for row in found.rows.to_pylist()) == [4, 9]


def test_captures_without_a_rank_are_numbered_and_say_so() -> None:
    one = capture({"kernel": [{"start_ns": 0, "end_ns": 5, "name": "k"}]})
    found = summarize([one, one])
    assert [each.rank for each in found.devices] == [0, 1]
    assert (
        "numbered in the order given; of several cycles or regions of a rank, give one"
        in (found.problems[0])
    )


def test_totals_of_a_tool_give_rows_without_unions() -> None:
    from portagpu.facts.captures.model import TOTAL_COLUMNS

    totals = {
        "kind": ["kernel", "kernel", "copy", "api"],
        "name": [NAMES[1], NAMES[4], "Memcpy HtoD", "launch"],
        "calls": [3, 1, 2, 4],
        "total_ns": [300, 100, 50, 8],
    }
    given = Capture(Source("a", "made"), totals=table(totals, TOTAL_COLUMNS))
    found = summarize([given])
    rows = found.rows.to_pylist()
    assert [(row["name"], row["category"]) for row in rows] == [
        (NAMES[1], "gemm"),
        (NAMES[4], "unknown"),
        ("Memcpy HtoD", "copy"),
    ]
    assert [row["percent_of_kernels"] for row in rows] == [75.0, 25.0, None]
    for name in ("percent_of_wall", "exposed_ns", "median_ns", "p95_ns", "device"):
        assert {row[name] for row in rows} == {None}
    assert (found.devices, found.events, found.api_ns) == ((), {}, {"launch": 8})


@pytest.mark.parametrize("given", [{}, {"kernel": []}, {"api": [], "range": [], "kernel": []}])
def test_a_capture_of_nothing_has_a_summary(given: dict[Kind, list[Event]]) -> None:
    found = summarize([capture(given)])
    assert (found.rows.num_rows, found.devices, found.steps) == (0, (), ())
    assert found.events == dict.fromkeys(sorted(given), 0)
    assert summarize([]).events == {}


def test_steps_have_what_their_process_started_on_any_thread() -> None:
    call = {"name": "launch", "pid": 1}
    work = {"name": NAMES[4], "device": 0, "pid": 1}
    events: dict[Kind, list[Event]] = {"kernel": [], "api": [], "range": []}
    for step in range(3):
        at = 100 * step
        spans = {"pid": 1, "tid": 1}
        events["range"] += [
            {**spans, "name": f"step {step + 7}", "start_ns": at, "end_ns": at + 90},
            {**spans, "name": "forward", "start_ns": at + 1, "end_ns": at + 40},
            {**spans, "name": "forward", "start_ns": at + 50, "end_ns": at + 60},
        ]
        for tid, start, length, name in ((1, 10, 5, NAMES[1]), (2, 45, 7, NAMES[4])):
            number = len(events["api"]) + 1
            own = {"start_ns": at + start, "end_ns": at + start + 1, "correlation": number}
            events["api"].append({**call, **own, "tid": tid})
            own = {"start_ns": at + start + 20, "end_ns": at + start + 20 + length + step}
            events["kernel"].append({**work, **own, "correlation": number, "name": name})
    found = summarize([capture(events)])
    (steps,) = found.steps
    assert (steps.name, steps.host_ns, steps.device_ns) == ("step *", (90,) * 3, (12, 14, 16))
    assert steps.by_category_ns[1] == {"gemm": 6, "unknown": 8}
    rows = {row["path"]: row for row in found.ranges.to_pylist()}
    assert (rows["step *"]["calls"], rows["step *"]["device_ns"]) == (3, 18)
    assert rows["step */forward"]["calls"] == 6


def test_ranges_that_repeat_now_and_then_are_not_steps() -> None:
    spans = [(0, 400), (2000, 2400), (4000, 4400)]
    events: dict[Kind, list[Event]] = {
        "range": [
            {"name": "send", "pid": 1, "tid": 1, "start_ns": start, "end_ns": end}
            for start, end in spans
        ]
    }
    assert summarize([capture(events)]).steps == ()


def test_numbers_of_ranges_that_do_not_count_up_stay() -> None:
    spans = [
        {"start_ns": 10 * at, "end_ns": 10 * at + 5, "name": name, "tid": 1}
        for at, name in enumerate(["layer2", "layer1", "a9", "b1", "b2", "b2"])
    ]
    found = summarize([capture({"range": spans})])
    paths = [row["path"] for row in found.ranges.to_pylist()]
    assert paths == ["a9", "b1", "b2", "layer1", "layer2"]
    assert {row["device_ns"] for row in found.ranges.to_pylist()} == {None}


def test_work_without_a_call_belongs_to_the_range_on_its_device() -> None:
    kernel = {"name": "k", "stream": 3, "device": 0}
    spans = [
        {"start_ns": 0, "end_ns": 50, "name": "step", "device": 0, "stream": 3},
        {"start_ns": 10, "end_ns": 20, "name": "in", "device": 0, "stream": 3},
        {"start_ns": 0, "end_ns": 50, "name": "other", "device": 0, "stream": 4},
    ]
    kernels = [{**kernel, "start_ns": at, "end_ns": at + 2} for at in (5, 12, 60)]
    found = summarize([capture({"kernel": kernels, "range": spans})])
    rows = {row["path"]: row for row in found.ranges.to_pylist()}
    assert rows.keys() == {"step", "step/in"}
    assert (rows["step"]["device_ns"], rows["step"]["kernels"]) == (4, 2)
    assert rows["step/in"]["device_ns"] == 2
    assert rows["step"]["host_ns"] is None


def test_a_range_that_never_closed_ends_with_the_capture() -> None:
    kernel = {"start_ns": 60, "end_ns": 80, "name": "k", "correlation": 1}
    call = {"start_ns": 30, "end_ns": 31, "name": "launch", "tid": 1, "correlation": 1}
    span = {"start_ns": 10, "end_ns": None, "name": "open", "tid": 1}
    events: dict[Kind, list[Event]] = {"kernel": [kernel], "api": [call], "range": [span]}
    found = summarize([capture(events, span_ns=(0, 99))])
    (row,) = found.ranges.to_pylist()
    assert (row["host_ns"], row["device_ns"], found.dropped) == (89, 20, 0)
    assert "1 ranges never closed" in found.problems[0]


@looped("seed", SEEDS)
def test_a_summary_of_a_device_or_a_range_has_that_alone(seed: int) -> None:
    events = made(seed)
    of_one = {
        kind: [each for each in rows if kind in ("api", "range") or each["device"] == 1]
        for kind, rows in events.items()
    }
    whole, alone = summarize([capture(events, 2)], device=1), summarize([capture(of_one, 2)])
    assert whole.devices == alone.devices
    assert whole.rows.equals(alone.rows)
    calls = {each["correlation"]: each for each in events["api"]}

    def inside(event: Event) -> bool:
        call = calls.get(event["correlation"])
        path = path_at(events["range"], call["tid"], call["start_ns"]) if call else None
        return path is not None and "a" in path.split("/")

    chosen: dict[Kind, list[Event]] = {
        kind: [each for each in rows if kind in ("api", "range") or inside(each)]
        for kind, rows in events.items()
    }
    found = summarize([capture(events, 2)], within="*a")
    wanted = summarize([capture(chosen, 2)])
    assert found.rows.equals(wanted.rows)
    assert found.devices == wanted.devices


def collective(start: int, length: int, sequence: int | None, group: str | None = "g") -> Event:
    row = {"start_ns": start, "end_ns": start + length, "name": NAMES[0], "bytes": 64}
    return row | {"operation": "all_reduce", "sequence": sequence, "group": group, "dtype": "bf16"}


def test_the_rank_with_the_shortest_collective_came_last() -> None:
    lengths = {0: [50, 10, 7], 3: [20, 90, 7], 5: [35, 40]}
    captures = [
        capture(
            {"kernel": [collective(1000 * rank + 200 * n, ns, n) for n, ns in enumerate(of)]},
            processes=(Process(rank, rank=rank),),
        )
        for rank, of in lengths.items()
    ]
    rows = summarize(captures).collectives.to_pylist()
    names = ("sequence", "ranks", "duration_ns", "skew_ns", "last_rank")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (0, 3, 20, 30, 3),
        (1, 3, 10, 80, 0),
        (2, 2, 7, 0, None),
    ]
    one = {name: rows[0][name] for name in ("operation", "group", "dtype", "bytes")}
    assert one == {"operation": "all_reduce", "group": "g", "dtype": "bf16", "bytes": 64}
    assert text_of(summarize(captures[::-1])).count("all_reduce") == 3
    assert summarize(captures[::-1]).collectives.equals(summarize(captures).collectives)


def test_collectives_without_a_sequence_are_matched_by_their_order() -> None:
    def ranks(*lengths: list[int]) -> list[Capture]:
        return [
            capture(
                {"kernel": [collective(100 * n, ns, None, None) for n, ns in enumerate(of)]},
                processes=(Process(rank, rank=rank),),
            )
            for rank, of in enumerate(lengths)
        ]

    found = summarize(ranks([5, 9], [8, 3]))
    rows = found.collectives.to_pylist()
    assert [(row["skew_ns"], row["last_rank"]) for row in rows] == [(3, 0), (6, 1)]
    uneven = summarize(ranks([5, 9], [8]))
    assert uneven.collectives.num_rows == 0
    assert "all_reduce: ranks have 1 to 2 calls without a sequence" in uneven.problems[0]


def test_a_call_of_a_collective_has_the_time_of_the_kernels_it_started() -> None:
    def rank(number: int, length: int) -> Capture:
        kernel = {"start_ns": 50, "end_ns": 50 + length, "name": NAMES[0], "correlation": 1}
        call = {"start_ns": 12, "end_ns": 13, "name": "launch", "tid": 1, "correlation": 1}
        host = {"start_ns": 10, "end_ns": 20, "tid": 1, "operation": "all_reduce", "bytes": 8}
        later = {**host, "start_ns": 30, "end_ns": 40}
        events: dict[Kind, list[Event]] = {"kernel": [kernel], "api": [call]}
        events["collective"] = [host, later]
        return capture(events, processes=(Process(number, rank=number),))

    (row,) = summarize([rank(0, 30), rank(1, 12)]).collectives.to_pylist()
    assert (row["operation"], row["bytes"], row["duration_ns"]) == ("all_reduce", 8, 12)
    assert (row["skew_ns"], row["last_rank"]) == (18, 1)


def test_communication_kernels_alone_are_matched_by_name() -> None:
    def rank(number: int, *lengths: int) -> Capture:
        kernels = [
            {"start_ns": 100 * n, "end_ns": 100 * n + ns, "name": NAMES[0]}
            for n, ns in enumerate(lengths)
        ]
        return capture({"kernel": kernels}, processes=(Process(number, rank=number),))

    rows = summarize([rank(0, 4, 9), rank(1, 6, 5)]).collectives.to_pylist()
    assert [(row["operation"], row["skew_ns"], row["last_rank"]) for row in rows] == [
        (NAMES[0], 2, 0),
        (NAMES[0], 4, 1),
    ]


def test_ranges_that_nobody_closes_do_not_fill_memory() -> None:
    depth = 4000
    events: dict[Kind, list[Event]] = {
        "range": [
            {"name": f"r{at}", "pid": 1, "tid": 1, "start_ns": at, "end_ns": None}
            for at in range(depth)
        ],
        "api": [{**CALL, "pid": 1, "tid": 1, "start_ns": depth, "end_ns": depth + 1}],
        "kernel": [{**CALL, "device": 0, "start_ns": depth + 2, "end_ns": depth + 9}],
    }
    rows = summarize([capture(events)]).ranges.to_pylist()
    assert sum(row["calls"] for row in rows) == depth
    assert max(row["depth"] for row in rows) == 100
    assert sum(len(row["path"]) for row in rows) < 100 * depth
    # all are around the kernel
    assert {row["device_ns"] for row in rows} == {7}


CALL = {"name": "launch", "correlation": 1}


# --- several files of one process


def counted(
    path: str, metric: str | None, start: int = 0, names: Sequence[str] = ("a", "b")
) -> Capture:
    """Two kernels on one device, with a counter of each."""
    kernels = {"start_ns": [start, start + 20], "end_ns": [start + 10, start + 25]}
    kernels |= {"name": list(names), "device": [0, 0]}
    counters = {"launch": [0, 1], "name": list(names), "value": [1.0, 2.0]}
    return Capture(
        Source(path, "rocprof", "rocprof"),
        tables={"kernel": table(kernels)},
        metrics=table({**counters, "metric": [metric] * 2}, METRIC_COLUMNS) if metric else None,
    )


def test_passes_with_other_counters_are_one_process() -> None:
    passes = [
        counted("w/pmc.csv", "A"),
        counted("w/sq.csv", "B", 500),
        counted("w/t.csv", None, 900),
    ]
    found = summarize(passes)
    assert found.events == {"kernel": 2}
    assert {each["rank"] for each in found.rows.to_pylist()} == {None}
    assert found.devices[0].busy_ns == 15
    # the pass without counters has the times
    assert "passes of one process" in found.problems[0]
    assert found.problems[0].endswith("those of t.csv")


def test_ranks_with_the_same_counters_or_other_kernels_are_ranks() -> None:
    same = [counted("w/0.csv", "A"), counted("w/1.csv", "A", 3)]
    other = [counted("w/0.csv", "A"), counted("w/1.csv", "B", 3, names=("a", "c"))]
    for ranks in (same, other, [counted("w/0.csv", None), counted("w/1.csv", None, 3)]):
        found = summarize(ranks)
        assert {each["rank"] for each in found.rows.to_pylist()} == {0, 1}
        assert found.events == {"kernel": 4}


def test_files_of_different_events_of_one_process_are_one_rank() -> None:
    def part(kind: Kind, pid: int, **columns: list[Any]) -> Capture:
        of = Source(f"w/{pid}_{kind}.csv", "rocprofv3 CSV", "rocprofv3")
        events = table({"start_ns": [0], "end_ns": [9], "name": [kind], **columns})
        return Capture(of, tables={kind: events}, processes=(Process(pid),))

    files = [part(kind, pid, correlation=[1]) for pid in (7, 8) for kind in ("kernel", "api")]
    found = summarize(files)
    assert found.events == {"api": 2, "kernel": 2}
    assert [each.rank for each in found.devices] == [0, 1]
    # the call and its kernel have one clock
    assert [each.median_launch_ns for each in found.devices] == [0.0, 0.0]
    assert summarize(files[:2]).devices[0].rank is None
