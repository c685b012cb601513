"""What rocpd says of one process (agents, names, tracks, options, and what events belong to) and of
its calls of RCCL: collectives with bytes, type and group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.base.errors import CollectiveError
from portagpu.devices.collectives.launcher import place_of_rank
from portagpu.facts.captures.columns import (
    Words,
    decoded,
    json_object,
    narrow,
    narrowed,
    translated,
)
from portagpu.facts.captures.model import (
    EVENT_COLUMNS,
    CapturedDevice,
    Process,
    arrow,
    import_library,
)
from portagpu.facts.captures.sqlite import SqliteFile, all_whole, wholes
from portagpu_rocm.captures._rocprof import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pyarrow as pa

    from portagpu.facts.captures.columns import Columns
    from portagpu.facts.captures.sqlite_batches import Type


EVENT: Final = "rocpd_event"
CALL, RANGE, RCCL, KFD = range(4)
"""What an event is by its category: a call of HIP or HSA, of ROCTx, of RCCL, or of the driver."""
_MAX_CATEGORIES: Final = 1 << 22
_UNKNOWN: Final = -(1 << 63)


class RocpdProcess:
    """The tables of one process, without its events."""

    def __init__(
        self,
        file: SqliteFile,
        suffix: str,
        wanted: frozenset[str],
        numbers: dict[tuple[object, object], int],
    ) -> None:
        self._file, self._suffix, self._wanted, self._numbers = file, suffix, wanted, numbers
        self._strings = file.texts(self._of("rocpd_string"), "id", "string")
        own = file.texts(self._of("rocpd_info_category"), "id", "name")
        self._categories = own or self._strings
        self._agents = self._read_agents()
        self.nodes = {agent["nid"] for agent in self._agents.values() if agent["type"] == "GPU"}
        self._devices: dict[int, int] = {}
        self._tracks = self._read_tracks()
        self._pids = self._translation("rocpd_info_process", "pid")
        self._tids = self._translation("rocpd_info_thread", "tid")
        self.processes, self.span, self._options = self._read_processes()
        self._stacks, self._kinds = self._read_events()

    def _of(self, name: str) -> str:
        return name + self._suffix

    # --- what the process was

    def _read_agents(self) -> dict[int, dict[str, Any]]:
        names = ("id", "nid", "type", "type_index", "name", "product_name", "model_name", "extdata")
        rows = self._file.rows(self._of("rocpd_info_agent"), *names)
        return {row[0]: dict(zip(names, row, strict=True)) for row in rows if all_whole(row[0])}

    def number_devices(self, several_nodes: bool) -> None:
        """Number the GPUs: as their node does, or one after another where there are several."""
        for number, agent in self._agents.items():
            if agent["type"] != "GPU":
                continue
            index = agent["type_index"]
            index = index if all_whole(index) and 0 <= index < 1 << 31 else number
            if several_nodes:
                index = self._numbers.setdefault((agent["nid"], index), len(self._numbers))
            self._devices[number] = index

    @property
    def devices(self) -> list[CapturedDevice]:
        """The GPUs that the process saw."""
        found = []
        for number, index in self._devices.items():
            agent = self._agents[number]
            facts = json_object(agent["extdata"])
            name = str(agent["product_name"] or agent["model_name"] or agent["name"] or "")
            units, warp = facts.get("cu_count"), facts.get("wave_front_size")
            found.append(
                CapturedDevice(
                    index,
                    vendor="amd",
                    name=name,
                    architecture=str(agent["name"] or ""),
                    units=units if all_whole(units) else None,
                    warp_size=warp if all_whole(warp) else None,
                )
            )
        return found

    @property
    def details(self) -> dict[str, str]:
        """The schema's version and the machine's kernel."""
        rows = self._file.rows(self._of("rocpd_metadata"), "tag", "value")
        found = {str(tag): str(value) for tag, value in rows if tag == "schema_version"}
        for (release,) in self._file.rows(self._of("rocpd_info_node"), "release"):
            if release:
                found["kernel release"] = str(release)
        return found

    def _read_processes(
        self,
    ) -> tuple[list[Process], tuple[int, int] | None, dict[str, Any]]:
        hosts = dict(self._file.rows(self._of("rocpd_info_node"), "id", "hostname"))
        names = ("pid", "nid", "init", "fini", "command", "environment", "extdata")
        processes: list[Process] = []
        spans, options = [], {}
        for pid, node, init, fini, command, environment, extdata in self._file.rows(
            self._of("rocpd_info_process"), *names
        ):
            if not all_whole(pid):
                continue
            options = json_object(extdata)
            rank, world_size = _rank(json_object(environment), options)
            # the arguments of a command may hold what nobody should read
            name = str(command or "").partition(" ")[0].rpartition("/")[2]
            processes.append(Process(pid, rank, name, str(hosts.get(node) or ""), world_size))
            if all_whole(init) and all_whole(fini) and 0 < init < fini:
                spans.append((init, fini))
        span = (min(s[0] for s in spans), max(s[1] for s in spans)) if spans else None
        return processes, span, options

    def _translation(self, of: str, column: str) -> dict[int, int]:
        """Row -> what it stands for; empty where each row's number is that already."""
        rows = self._file.rows(self._of(of), "id", column)
        found = {row: number for row, number in rows if all_whole(row) and all_whole(number)}
        return {} if all(row == number for row, number in found.items()) else found

    def _read_tracks(self) -> dict[str, dict[int, int]]:
        """Column -> track -> value: schema 4 has these columns there, and not in each table."""
        names = ("id", "pid", "tid", "agent_id", "queue_id", "stream_id")
        rows = self._file.rows(self._of("rocpd_track"), *names)
        return {
            name: {
                row[0]: row[place] for row in rows if all_whole(row[0]) and all_whole(row[place])
            }
            for place, name in enumerate(names[1:], 1)
        }

    def _read_events(self) -> tuple[Any, Any]:
        """The stack of each event and its category, by the event's number."""
        np: Any = import_library("numpy")
        name = self._of(EVENT)
        last = self._file.highest(name, "id") or 0
        if last * 4 > self._file.file.stat().st_size or last < 1:
            if last > 0:
                self._file.problems.append(
                    f"{name}: the events' numbers are too far apart: calls and kernels"
                    " cannot be joined"
                )
            last = 0
        stacks = np.full(last + 1, _UNKNOWN, np.int64)
        kinds = np.zeros(last + 1, np.int8)
        known = {n: c for n, c in self._category_codes().items() if 0 <= n < _MAX_CATEGORIES}
        codes = np.zeros(max(known, default=0) + 2, np.int8)
        codes[list(known)] = list(known.values())

        def convert(batch: Columns) -> Columns:
            numbers = batch["id"].fill_null(0).to_numpy(zero_copy_only=False)
            inside = (numbers > 0) & (numbers <= last)
            numbers = numbers[inside]
            if "stack_id" in batch:
                values = batch["stack_id"].fill_null(_UNKNOWN).to_numpy(zero_copy_only=False)
                stacks[numbers] = values[inside]
            if "category_id" in batch:
                values = batch["category_id"].fill_null(-1).to_numpy(zero_copy_only=False)[inside]
                # the last code stands for a category that is not known
                kinds[numbers] = codes[np.where(values < 0, -1, np.minimum(values, len(codes) - 1))]
            return {}

        category = ["category_id"] if self._file.has(self._of("rocpd_region")) else []
        if last:
            self._file.batches(name, wholes("id", "stack_id", *category), convert)
        return stacks, kinds

    def _category_codes(self) -> dict[int, int]:
        """Category -> RANGE, RCCL or KFD; all others are calls."""
        begins = {"MARKER_": RANGE, "RCCL_": RCCL, "KFD_": KFD}
        return {
            number: code
            for number, text in self._categories.items()
            for begin, code in begins.items()
            if text.startswith(begin)
        }

    # --- columns

    def _plain(self, plain: Mapping[str, str]) -> list[str]:
        return [source for column, source in plain.items() if column in self._wanted]

    def _where(self) -> list[str]:
        wanted = {"queue_id": "queue", "stream_id": "stream", "event_id": "correlation"}
        wanted |= {"pid": "pid", "tid": "tid"}
        return [
            "track_id",
            *(source for source, column in wanted.items() if column in self._wanted),
        ]

    def _through_track(self, batch: Columns) -> Columns:
        if "track_id" not in batch:
            return batch
        known = {
            name: translated(batch["track_id"], values)
            for name, values in self._tracks.items()
            if name not in batch
        }
        batch |= known
        return batch

    def _device_event(self, batch: Columns, plain: Mapping[str, str]) -> Columns:
        found = self._host_event(batch, self._wanted)
        sources = {"stream": "stream_id", "queue": "queue_id", **plain}
        return found | narrowed(batch, sources, self._wanted)

    def _host_event(self, batch: Columns, wanted: Collection[str] = EVENT_COLUMNS) -> Columns:
        pa: Any = arrow()
        self._through_track(batch)
        found = {"start_ns": batch["start"], "end_ns": batch["end"]}
        for column, translation in (("pid", self._pids), ("tid", self._tids)):
            if column in batch and column in wanted:
                numbers = batch[column]
                found[column] = translated(numbers, translation) if translation else numbers
        if "event_id" in batch and "correlation" in wanted:
            stacks = self._stacks[self._places(batch["event_id"])]
            # 0 means no call: what the kernel driver reports has it
            found["correlation"] = pa.array(stacks, mask=(stacks == _UNKNOWN) | (stacks == 0))
        return found

    @property
    def _last_event(self) -> int:
        return len(self._stacks) - 1

    def _places(self, events: pa.Array) -> Any:
        """Where events are in the arrays of all events; what is not there is at 0."""
        np: Any = import_library("numpy")
        numbers = events.fill_null(0).to_numpy(zero_copy_only=False)
        return np.where((numbers > 0) & (numbers < len(self._stacks)), numbers, 0)

    def _category(self, events: pa.Array) -> Any:
        return self._kinds[self._places(events)]

    def _device(self, agents: pa.Array) -> pa.Array:
        return narrow(translated(agents, self._devices), "device")


def _rank(environment: dict[str, Any], options: dict[str, Any]) -> tuple[int | None, int | None]:
    """Rank and number of ranks, by the launcher's variables, else by rocprofv3's options."""
    try:
        place = place_of_rank({key: str(value) for key, value in environment.items()})
    except (CollectiveError, ValueError):
        return None, None
    if place.launcher != "alone":
        return place.rank, place.world_size
    rank, size = options.get("mpi_rank"), options.get("mpi_size")
    if isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size:
        return rank, size
    return None, None


_TYPES: Final = (
    # the numbers of ncclDataType_t (rccl.h), as torch names them, and their bytes
    ("int8", 1, "ncclInt8"),
    ("uint8", 1, "ncclUint8"),
    ("int32", 4, "ncclInt32"),
    ("uint32", 4, "ncclUint32"),
    ("int64", 8, "ncclInt64"),
    ("uint64", 8, "ncclUint64"),
    ("float16", 2, "ncclFloat16"),
    ("float32", 4, "ncclFloat32"),
    ("float64", 8, "ncclFloat64"),
    ("bfloat16", 2, "ncclBfloat16"),
    ("float8_e4m3fn", 1, "ncclFloat8e4m3"),
    ("float8_e5m2", 1, "ncclFloat8e5m2"),
)
_ARGUMENTS: Final = ("count", "sendcount", "recvcount", "datatype", "comm")
"""The arguments of RCCL's calls that are read, in the order in which they are used."""


class Span(NamedTuple):
    """Numbers of events from ``first`` to ``last``."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """How many numbers."""
        return self.last - self.first + 1

    def places(self, events: pa.Array) -> Any:
        """Where events are in an array of all these numbers; all others come after it."""
        numbers = events.fill_null(0).to_numpy(zero_copy_only=False)
        inside = (numbers >= self.first) & (numbers <= self.last)
        return import_library("numpy").where(inside, numbers - self.first, self.size)


def span_of(calls: list[Columns], last_event: int) -> Span:
    """From the lowest to the highest number of the known events of some calls."""
    import pyarrow.compute as pc

    found = [pc.min_max(each["event"]).as_py() for each in calls]
    known = [each for each in found if each["min"] is not None]
    if not known:
        return Span(1, 0)
    first = max(1, min(each["min"] for each in known))
    last = min(last_event, max(each["max"] for each in known))
    return Span(first, max(last, first - 1))


def give_arguments(
    calls: list[Columns], names: Words, file: SqliteFile, table: str, last_event: int
) -> dict[str, Words]:
    """Give RCCL's calls operation, bytes, type and group, by the arguments in ``table``.

    ``names`` are the words of the calls' names. Returns the words of the new columns.
    """
    if not calls:
        return {}
    pa, np = arrow(), import_library("numpy")
    span = span_of(calls, last_event)
    texts, codes = _arguments(file, table, span)
    sizes = np.asarray([int(each) if _is_count(each) else -1 for each in texts])
    by_text = {str(place): place for place in range(len(_TYPES))}
    by_text |= {kind[2]: place for place, kind in enumerate(_TYPES)}
    kinds = np.asarray([by_text.get(text, -1) for text in texts])
    bytes_of = np.asarray([*(kind[1] for kind in _TYPES), 0])
    operations, types, groups = Words(), Words(), Words()
    for text in OPERATIONS.values():
        operations.code(text)
    for kind in _TYPES:
        types.code(kind[0])
    by_name = {
        names.code(f"nccl{text}"): operations.code(word) for text, word in OPERATIONS.items()
    }
    for each in calls:
        count, sent, received, kind, group = codes[:, span.places(each["event"])]
        count = np.where(count >= 0, count, np.where(sent >= 0, sent, received))
        items, kind = sizes[count], kinds[kind]
        unknown = (items < 0) | (kind < 0)
        each["bytes"] = pa.array(items * bytes_of[kind], pa.int64(), mask=unknown)
        each["dtype"] = pa.array(kind.astype(np.int32), mask=kind < 0)
        named = {code: groups.code(texts[code]) for code in np.unique(group[group >= 0]).tolist()}
        each["group"] = translated(pa.array(group, pa.int64()), named).cast(pa.int32())
        each["operation"] = translated(each["name"].cast(pa.int64()), by_name).cast(pa.int32())
    return {"operation": operations, "dtype": types, "group": groups}


def _arguments(file: SqliteFile, table: str, span: Span) -> tuple[list[str], Any]:
    """Texts, the last of which is empty; and by argument and event the place of its text, or -1."""
    pa, np = arrow(), import_library("numpy")
    given = Words()
    codes = np.full((len(_ARGUMENTS), span.size + 1), -1, np.int32)

    def convert(batch: Columns) -> Columns:
        if len(batch) < len(columns):
            return {}
        compact = batch["name"].dictionary_encode()
        texts = map(decoded, compact.dictionary.to_pylist())
        which = [_ARGUMENTS.index(text) if text in _ARGUMENTS else -1 for text in texts]
        argument = np.asarray([*which, -1], np.int8)[compact.indices.to_numpy()]
        places = span.places(batch["event_id"])
        chosen = (argument >= 0) & (places < span.size)
        values = given.of_texts(batch["value"].filter(pa.array(chosen))).fill_null(-1)
        codes[argument[chosen], places[chosen]] = values.to_numpy()
        return {}

    columns: dict[str, Type] = {"event_id": "whole", "name": "text", "value": "text"}
    # arguments follow in the order of events, and there is no index: those of the HIP calls, often
    # many more, are left out
    first, last = (file.first_row(table, "event_id", n) for n in (span.first, span.last + 1))
    between = (first, last) if first is not None and last is not None else None
    file.batches(table, columns, convert, between)
    if between and (codes[:, :-1] < 0).all():
        file.batches(table, columns, convert)
    return [*given.texts, ""], codes


def _is_count(text: str) -> bool:
    """Whether a text is a number of items whose bytes 64 bits can hold."""
    return text.isascii() and text.isdigit() and len(text) < 18
