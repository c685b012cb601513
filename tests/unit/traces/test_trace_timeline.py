"""Timelines for Perfetto, read back with Perfetto's own protobufs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("perfetto")
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from portagpu.cli import main
from portagpu.facts.captures.model import Capture, Process, Source, table
from portagpu.traces.analysis import kineto, timeline
from tests.conftest import ROOT
from tests.support.trace_samples import timeline as made_up
from tests.support.trace_samples import write_kineto

RECORDINGS = ROOT / "tests/recordings/torch"


@dataclass
class Read:
    """What a program that follows the format sees: tracks, and their slices."""

    tracks: dict[int, Any] = field(default_factory=dict)
    slices: list[tuple[int, str, str, int, int]] = field(default_factory=list)
    """Track, name, category, start and end."""
    flows: Counter[int] = field(default_factory=Counter)

    def name(self, uuid: int) -> str:
        track = self.tracks[uuid]
        own = track.process.process_name if track.HasField("process") else track.name
        return f"{self.name(track.parent_uuid)} / {own}" if track.parent_uuid else own


def read(data: bytes) -> Read:
    trace = perfetto_trace_pb2.Trace()
    trace.ParseFromString(data)
    found, names, categories = Read(), {}, {}
    open_slices: dict[int, list[Any]] = {}
    last: dict[int, int] = {}
    for number, packet in enumerate(trace.packet):
        assert packet.trusted_packet_sequence_id == 1
        assert packet.sequence_flags == (3 if number == 0 else 2)
        for each in packet.interned_data.event_names:
            assert each.iid not in names
            names[each.iid] = each.name
        for each in packet.interned_data.event_categories:
            categories[each.iid] = each.name
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in found.tracks
            found.tracks[track.uuid] = track
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert event.track_uuid in found.tracks, "a track is described before it is used"
        assert packet.timestamp >= last.get(event.track_uuid, 0), "a track is in order of time"
        last[event.track_uuid] = packet.timestamp
        stack = open_slices.setdefault(event.track_uuid, [])
        if event.type == 1:
            name, category = names[event.name_iid], categories[event.category_iids[0]]
            stack.append((name, category, packet.timestamp))
            found.flows.update(event.flow_ids)
        else:
            name, category, start = stack.pop()
            found.slices.append((event.track_uuid, name, category, start, packet.timestamp))
    assert not any(open_slices.values()), "every slice ends"
    return found


def whole(*captures: Capture) -> Read:
    return read(b"".join(timeline.parts(captures)))


def capture(rank: int | None = None, epoch_ns: int | None = None, **columns: Any) -> Capture:
    size = len(columns["start_ns"])
    values = {"name": ["k"] * size, "device": [0] * size, "stream": [7] * size} | columns
    return Capture(
        Source("x", "test"),
        {"kernel": table(values)},
        processes=(Process(5, rank, "python"),),
        epoch_ns=epoch_ns,
    )


@pytest.mark.parametrize("name", sorted(path.name for path in RECORDINGS.glob("*.gz")))
def test_every_event_of_a_recording_is_in_its_timeline(name: str) -> None:
    recorded = kineto.read(RECORDINGS / name)
    found = whole(recorded)
    offset = timeline.clock([recorded]).offsets[0]
    expected = Counter(
        (kind, each["name"], each["start_ns"] + offset, each["end_ns"] + offset)
        for kind, part in recorded.tables.items()
        for each in part.to_pylist()
    )
    assert Counter((c, n, s, e) for _, n, c, s, e in found.slices) == expected
    assert min(start for *_, start, _ in found.slices) == 0


def test_devices_streams_and_threads_have_tracks() -> None:
    recorded = kineto.read(RECORDINGS / "h100-bert-small.json.gz")
    found = whole(recorded)
    names = {found.name(uuid) for uuid, *_ in found.slices}
    assert "capture 0: device 0 NVIDIA H100 80GB HBM3 / stream 7" in names
    assert "capture 0: python3 / thread 19392" in names
    # each kernel has the correlation of one call of the runtime
    assert max(found.flows.values()) >= 2


def test_events_that_overlap_get_tracks_in_which_they_nest() -> None:
    # inside: 0-100 > 10-20; across: 50-150; the next after both
    found = whole(capture(start_ns=[0, 10, 50, 200], end_ns=[100, 20, 150, 210]))
    spans = [(found.name(uuid), start, end) for uuid, _, _, start, end in found.slices]
    assert sorted(spans) == [
        ("capture 0: device 0 / stream 7", 0, 100),
        ("capture 0: device 0 / stream 7", 10, 20),
        ("capture 0: device 0 / stream 7", 200, 210),
        ("capture 0: device 0 / stream 7 (2)", 50, 150),
    ]


def test_ranks_share_a_clock_that_all_of_them_know() -> None:
    first = capture(0, 1_000_000, start_ns=[500], end_ns=[600])
    second = capture(1, 2_000_000, start_ns=[100], end_ns=[300])
    found = whole(first, second)
    assert {(found.name(u).partition(":")[0], s, e) for u, _, _, s, e in found.slices} == {
        ("rank 0", 0, 100),
        ("rank 1", 999_600, 999_800),
    }
    apart = whole(first, replace(second, epoch_ns=None))
    assert {start for *_, start, _ in apart.slices} == {0}
    assert not timeline.clock([first, replace(second, epoch_ns=None)]).common


def test_processes_of_two_hosts_with_one_number_stay_apart() -> None:
    calls = table({"start_ns": [1], "end_ns": [2], "name": ["f"], "pid": [5], "tid": [5]})
    both = [
        replace(capture(rank, 0, start_ns=[0], end_ns=[1]), tables={"api": calls})
        for rank in (0, 1)
    ]
    found = whole(*both)
    pids = [each.process.pid for each in found.tracks.values() if each.HasField("process")]
    assert len(set(pids)) == len(pids) == 2


def test_odd_values_are_shown_and_nothing_fails() -> None:
    odd = capture(
        start_ns=[-50, 0, None, 5], end_ns=[-40, None, 9, 5], name=["a\x1b[31m", None, "x", "<b>"]
    )
    found = whole(odd)
    assert {(name, start, end) for _, name, _, start, end in found.slices} == {
        ("a [31m", 0, 10),
        ("kernel", 50, 50),
        ("<b>", 55, 55),
    }


def test_a_timeline_is_written_in_parts(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(timeline, "PACKETS", 100)
    path = write_kineto(made_up(kernels=2000, devices=2), tmp_path / "a.json")
    recorded = kineto.read(path)
    parts = list(timeline.parts([recorded]))
    assert len(parts) > 50
    assert max(map(len, parts)) < 64_000
    assert len(read(b"".join(parts)).slices) == timeline.count([recorded])


def test_the_verb_writes_a_file_that_reads_back(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "new" / "out.pftrace"
    files = [str(RECORDINGS / f"{name}.json.gz") for name in ("h100-bert-small", "mi210-gpu-only")]
    assert main(["trace", "timeline", *files, "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert f"wrote {out}: " in printed.err
    assert len(read(out.read_bytes()).slices) == sum(
        timeline.count([kineto.read(Path(each))]) for each in files
    )
    assert [each.name for each in out.parent.iterdir()] == ["out.pftrace"]


def test_the_verb_says_what_is_wrong(tmp_path: Path, capsys: Any) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps({"schemaVersion": 1, "traceEvents": []}))
    out = tmp_path / "out.pftrace"
    assert main(["trace", "timeline", str(empty), "-o", str(out)]) == 1
    assert "no events" in capsys.readouterr().err
    other = tmp_path / "other.txt"
    other.write_text("hello")
    assert main(["trace", "timeline", str(other), "-o", str(out)]) == 1
    assert "no reader knows" in capsys.readouterr().err
    assert main(["trace", "timeline", str(empty)]) == 2
    assert not out.exists()
