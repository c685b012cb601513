"""Captures as one timeline for Perfetto: its native trace, written packet by packet.

A trace is a row of packets (perfetto/trace/perfetto_trace.proto), and so is every part of one.
Parts of some thousand packets are written one after another, and no message holds the whole. Names
and categories are written once and referred to by number. Each process has a track, with one for
each thread below it; each device has one, with one for each stream. Events that overlap on a stream
without one being inside the other are shown on another track of that stream, because slices of one
track nest. A call and what it started on a device are joined by a flow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt, printable
from portagpu.facts.captures.model import KINDS, ON_DEVICE, arrow, import_library
from portagpu.traces.analysis.arrays import NULL, integers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from portagpu.facts.captures.model import Capture, Kind

PACKETS: Final = 8192
"""Packets of one part."""
_PROTOBUFS: Final = "perfetto.protos.perfetto.trace.perfetto_trace_pb2"
_NEEDED: Final = 2
"""SEQ_NEEDS_INCREMENTAL_STATE: the packet refers to numbers of names."""
_CLEARED: Final = 1
_MAX_NAME: Final = 65_536
_MAX_LANES: Final = 64
_COLUMNS: Final = ("start_ns", "end_ns", "name", "correlation")


@dataclass(frozen=True, slots=True)
class Clock:
    """How captures share the time of one timeline."""

    offsets: tuple[int, ...]
    """What each capture adds to its times, so that the timeline begins at 0."""
    common: bool
    """Whether it is one clock: of one capture, or of captures that all say when 0 was."""


def clock(captures: Sequence[Capture]) -> Clock:
    """One clock for all captures; each begins at 0 where one of them does not say when it was."""
    firsts = [_first(each) for each in captures]
    epochs = [each.epoch_ns for each in captures]
    known = [each for each in epochs if each is not None]
    if len(known) == len(captures) and captures:
        base = min(e + f for e, f in zip(known, firsts, strict=True))
        return Clock(tuple(each - base for each in known), common=True)
    return Clock(tuple(-each for each in firsts), common=len(captures) < 2)


def parts(captures: Sequence[Capture]) -> Iterator[bytes]:
    """The timeline in parts; joined, they are the file."""
    writer = _Writer()
    times = clock(captures)
    pids: set[int] = set()
    for number, (capture, offset) in enumerate(zip(captures, times.offsets, strict=True)):
        yield from writer.capture(number, capture, offset, pids)
    yield writer.flush()


def count(captures: Sequence[Capture]) -> int:
    """How many events the timeline shows."""
    return sum(part.num_rows for each in captures for part in each.tables.values())


def _first(capture: Capture) -> int:
    import pyarrow.compute as pc

    starts = [
        pc.min(part.column("start_ns")).as_py()
        for part in capture.tables.values()
        if part.num_rows and "start_ns" in part.column_names
    ]
    return min((each for each in starts if each is not None), default=0)


_Track = list[tuple["Kind", Any, Any]]
"""Events of one line: kind, columns and rows of several kinds."""


class _Writer:
    """Packets of one sequence, and the numbers of names in it."""

    def __init__(self) -> None:
        self._pb: Any = import_library(_PROTOBUFS)
        self._np: Any = import_library("numpy")
        self._part = self._pb.Trace()
        self._numbers: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._uuid = 0
        self._began = False

    def flush(self) -> bytes:
        """The packets so far, as a part of the file."""
        data: bytes = self._part.SerializeToString()
        self._part = self._pb.Trace()
        return data

    def capture(
        self, number: int, capture: Capture, offset: int, pids: set[int]
    ) -> Iterator[bytes]:
        """The tracks and events of one capture."""
        rank = capture.rank
        label = f"rank {rank}" if rank is not None else f"capture {number}"
        tracks = self._tracks(capture)
        names = {each.pid: each.name for each in capture.processes}
        processes: dict[int | None, int] = {}
        devices: dict[int | None, int] = {}
        described = {each.index: each.name for each in capture.devices}
        for (on_device, first, second), track in sorted(
            tracks.items(), key=lambda each: tuple((part is None, part or 0) for part in each[0])
        ):
            if on_device:
                if first not in devices:
                    name = excerpt(described.get(first, "") if first is not None else "")
                    text = f"{label}: device {'?' if first is None else first} {name}".strip()
                    devices[first] = self._describe(text)
                text = f"stream {'?' if second is None else second}"
                parent = devices[first]
            else:
                if first not in processes:
                    name = excerpt(names.get(first or 0, "")) or "process"
                    processes[first] = self._process(f"{label}: {name}", first, pids)
                text = f"thread {'?' if second is None else second}"
                parent = processes[first]
            for lane, rows in enumerate(self._lanes(track)):
                uuid = self._describe(text + (f" ({lane + 1})" if lane else ""), parent)
                yield from self._slices(track, rows, uuid, offset, number)

    def _tracks(self, capture: Capture) -> dict[tuple[bool, int | None, int | None], _Track]:
        """(on a device, device or process, stream or thread) -> its events."""
        np = self._np
        found: dict[tuple[bool, int | None, int | None], _Track] = {}
        for kind in KINDS:
            part = capture.tables.get(kind)
            if part is None or not part.num_rows:
                continue
            on_device = kind in ON_DEVICE or (
                "device" in part.column_names and "tid" not in part.column_names
            )
            keys = [
                _numbers(part, each)
                for each in (("device", "stream") if on_device else ("pid", "tid"))
            ]
            order = np.lexsort((keys[1], keys[0]))
            first, second = keys[0][order], keys[1][order]
            cuts = np.flatnonzero((np.diff(first) != 0) | (np.diff(second) != 0)) + 1
            columns = {each: _column(part, each) for each in _COLUMNS}
            for rows in np.split(order, cuts):
                key = (on_device, _key(keys[0][rows[0]]), _key(keys[1][rows[0]]))
                found.setdefault(key, []).append((kind, columns, rows))
        return found

    def _lanes(self, track: _Track) -> list[list[tuple[int, int, int, int]]]:
        """The events in lanes in which slices nest: (start, end, piece, row), in order of time."""
        events: list[tuple[int, int, int, int]] = []
        for piece, (_, columns, rows) in enumerate(track):
            starts, ends = columns["start_ns"], columns["end_ns"]
            for row in rows.tolist():
                start, end = starts[row], ends[row]
                if start is not None:
                    events.append((start, start if end is None else max(start, end), piece, row))
        events.sort(key=lambda each: (each[0], -each[1]))
        lanes: list[list[tuple[int, int, int, int]]] = []
        open_ends: list[list[int]] = []
        for event in events:
            for lane, ends_of in zip(lanes, open_ends, strict=True):
                while ends_of and ends_of[-1] <= event[0]:
                    ends_of.pop()
                if not ends_of or event[1] <= ends_of[-1]:
                    lane.append(event)
                    ends_of.append(event[1])
                    break
            else:
                if len(lanes) < _MAX_LANES:
                    lanes.append([event])
                    open_ends.append([event[1]])
                else:
                    # cut at the end of what it overlaps: shown shorter, and not lost
                    end = min(event[1], open_ends[-1][-1])
                    lanes[-1].append((event[0], end, event[2], event[3]))
                    open_ends[-1].append(end)
        return lanes

    def _slices(
        self,
        track: _Track,
        lane: Iterable[tuple[int, int, int, int]],
        uuid: int,
        offset: int,
        number: int,
    ) -> Iterator[bytes]:
        open_ends: list[int] = []
        flow_base = (number + 1) << 48
        for start, end, piece, row in lane:
            while open_ends and open_ends[-1] <= start:
                self._end(open_ends.pop() + offset, uuid)
            kind, columns, _ = track[piece]
            packet = self._packet(max(0, start + offset))
            event = packet.track_event
            event.type = 1
            event.track_uuid = uuid
            event.name_iid = self._name(packet, columns["name"][row] or kind)
            event.category_iids.append(self._category(packet, kind))
            correlation = columns["correlation"][row]
            if correlation is not None and 0 < correlation < 1 << 48:
                event.flow_ids.append(flow_base | correlation)
            open_ends.append(end)
            if len(self._part.packet) >= PACKETS:
                yield self.flush()
        while open_ends:
            self._end(open_ends.pop() + offset, uuid)
        if len(self._part.packet) >= PACKETS:
            yield self.flush()

    def _end(self, at: int, uuid: int) -> None:
        event = self._packet(max(0, at)).track_event
        event.type = 2
        event.track_uuid = uuid

    def _packet(self, at: int | None = None) -> Any:
        packet = self._part.packet.add()
        packet.trusted_packet_sequence_id = 1
        packet.sequence_flags = _NEEDED if self._began else _NEEDED | _CLEARED
        self._began = True
        if at is not None:
            packet.timestamp = at
        return packet

    def _describe(self, name: str, parent: int | None = None) -> int:
        self._uuid += 1
        track = self._packet().track_descriptor
        track.uuid, track.name = self._uuid, name
        if parent is not None:
            track.parent_uuid = parent
        return self._uuid

    def _process(self, name: str, pid: int | None, pids: set[int]) -> int:
        """A process' track. Its number is another one where two hosts gave the same."""
        self._uuid += 1
        shown = pid if pid is not None and 0 <= pid < 1 << 30 else 1 << 30
        while shown in pids:
            shown += 1
        pids.add(shown)
        track = self._packet().track_descriptor
        track.uuid = self._uuid
        track.process.pid = shown
        track.process.process_name = name
        return self._uuid

    def _name(self, packet: Any, text: str) -> int:
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self._numbers) + 1
            packet.interned_data.event_names.add(iid=number, name=printable(text)[:_MAX_NAME])
        return number

    def _category(self, packet: Any, kind: str) -> int:
        number = self._categories.get(kind)
        if number is None:
            number = self._categories[kind] = len(self._categories) + 1
            packet.interned_data.event_categories.add(iid=number, name=kind)
        return number


def _numbers(part: Any, name: str) -> Any:
    """A column of numbers, with NULL where it has none."""
    np: Any = import_library("numpy")
    found = integers(part, name)
    return np.full(part.num_rows, NULL) if found is None else found


def _key(number: Any) -> int | None:
    return None if number == NULL else int(number)


class _Column:
    """A column read row by row, without a Python object for each value."""

    def __init__(self, values: Any, null: Any, words: list[str] | None) -> None:
        self._values, self._null, self._words = values, null, words

    def __getitem__(self, row: int) -> Any:
        if self._null is not None and self._null[row]:
            return None
        value = int(self._values[row])
        return self._words[value] if self._words is not None else value


class _NoColumn:
    def __getitem__(self, row: int) -> None:
        return None


def _column(part: Any, name: str) -> _Column | _NoColumn:
    pa: Any = arrow()
    if name not in part.column_names:
        return _NoColumn()
    values = part.column(name)
    null = values.is_null().to_numpy() if values.null_count else None
    if not pa.types.is_dictionary(values.type):
        return _Column(values.fill_null(0).to_numpy(), null, None)
    joined = values.unify_dictionaries().combine_chunks()
    if isinstance(joined, pa.ChunkedArray):
        joined = joined.chunk(0)
    words = [each or "" for each in joined.dictionary.to_pylist()]
    return _Column(joined.indices.fill_null(0).to_numpy(zero_copy_only=False), null, words)
