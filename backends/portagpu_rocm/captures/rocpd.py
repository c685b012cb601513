"""rocpd: the SQLite files of rocprofv3, schemas 3.x and 4.x.

The source of what is where: ROCm/rocm-systems, projects/rocprofiler-sdk, the tables in
``source/share/rocprofiler-sdk-rocpd/rocpd_tables.sql`` and their writer
``source/lib/output/generateRocpd.cpp``. Each process has its own tables, whose names end with its
uuid. AMD's views leave out a kernel whose queue, event, thread or region is missing, and give
microseconds where the tables have nanoseconds; here the tables are read, and every row is kept.
An event's ``stack_id`` is the same for a call and for what it started on a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.columns import (
    Numbered,
    Words,
    joined,
    json_object,
    narrow,
    positive,
    take_apart,
    to_table,
    translated,
)
from portagpu.facts.captures.model import (
    EVENT_COLUMNS,
    METRIC_COLUMNS,
    Capture,
    Kind,
    Source,
    arrow,
    import_library,
    table,
)
from portagpu.facts.captures.sqlite import SqliteFile, all_whole, is_sqlite, opened, wholes
from portagpu.facts.readings.model import FormatError
from portagpu_rocm.captures._rocpd import (
    CALL,
    EVENT,
    RANGE,
    RCCL,
    RocpdProcess,
    give_arguments,
    span_of,
)
from portagpu_rocm.captures._rocprof import direction

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import pyarrow as pa

    from portagpu.facts.captures.columns import Columns

KIND: Final = "rocpd"

_DISPATCH: Final = "rocpd_kernel_dispatch"
_COPY: Final = "rocpd_memory_copy"
_REGION: Final = "rocpd_region"
_SAMPLE: Final = "rocpd_sample"
_TABLES: Final = (_DISPATCH, _COPY, _REGION)
_OF_CALLS: Final = ("start_ns", "end_ns", "name", "pid", "tid", "correlation")
_RECORDED: Final[dict[Kind, tuple[str, ...]]] = {
    # what rocprofv3's own options say, in rocpd_info_process.extdata (config.hpp)
    "kernel": ("kernel_trace", "counter_collection"),
    "copy": ("memory_copy_trace",),
    "range": ("marker_api_trace",),
    "api": ("hip_runtime_api_trace", "hip_compiler_api_trace", "hsa_core_api_trace"),
    "collective": ("rccl_api_trace",),
}


def matches(head: bytes, path: Path) -> bool:
    """Whether the file is of this format."""
    if not is_sqlite(head):
        return False
    if b"rocpd_info_" in head:
        return True
    try:
        with opened(path) as file:
            return bool(_suffixes(file))
    except FormatError:
        return False


def read(path: Path) -> Capture:
    """What the file holds. Raises FormatError, with one line that says what is wrong."""
    return read_columns(path, EVENT_COLUMNS)


def read_columns(path: Path, columns: Collection[str]) -> Capture:
    """Like :func:`read`, with no other columns of device events than these."""
    with opened(path) as file:
        suffixes = _suffixes(file)
        if not suffixes:
            raise FormatError(
                f"{path}: not a file of rocprofv3: no table rocpd_kernel_dispatch, "
                "rocpd_memory_copy or rocpd_region"
            )
        return _Database(file, suffixes, frozenset(columns)).capture()


def _suffixes(file: SqliteFile) -> list[str]:
    """What follows the names of the tables of each process."""
    found = (each[len(name) :] for each in file.tables for name in _TABLES if each.startswith(name))
    return list(dict.fromkeys(each for each in found if not each or each.startswith("_")))


class _Database:
    """One open file: the tables of one process or of several."""

    def __init__(self, file: SqliteFile, suffixes: list[str], wanted: frozenset[str]) -> None:
        self._file, self._wanted = file, wanted
        self._numbers: dict[tuple[object, object], int] = {}
        self._parts = [_Part(file, suffix, wanted, self._numbers) for suffix in suffixes]
        nodes = {node for each in self._parts for node in each.nodes}
        for part in self._parts:
            part.number_devices(several_nodes=len(nodes) > 1)

    def capture(self) -> Capture:
        """All that the file holds."""
        pa: Any = arrow()
        tables: dict[Kind, list[pa.Table]] = {}
        metrics = []
        for part in self._parts:
            for kind, found in part.events().items():
                tables.setdefault(kind, []).append(found)
            metrics.append(part.metrics())
        spans = [each.span for each in self._parts if each.span]
        devices = {each.index: each for part in self._parts for each in part.devices}
        details: dict[str, str] = {}
        for part in self._parts:
            details |= part.details
        counters = [each for each in metrics if each is not None]
        return Capture(
            source=Source(
                path=str(self._file.path),
                format=KIND,
                tool="rocprofv3",
                schema=details.pop("schema_version", ""),
            ),
            tables={kind: joined(parts) for kind, parts in tables.items()},
            devices=tuple(devices[index] for index in sorted(devices)),
            processes=tuple(process for part in self._parts for process in part.processes),
            span_ns=(min(s[0] for s in spans), max(s[1] for s in spans)) if spans else None,
            metrics=pa.concat_tables(counters).unify_dictionaries() if counters else None,
            problems=tuple(self._file.problems),
            dropped=self._file.dropped,
            details=details,
        )


class _Part(RocpdProcess):
    """The tables of one process."""

    # --- events

    def events(self) -> dict[Kind, pa.Table]:
        """Kind -> events."""
        found: dict[Kind, pa.Table | None] = {"kernel": self._kernels(), "copy": self._copies()}
        return {
            kind: events
            for kind, events in (found | self._host()).items()
            if events is not None and (events.num_rows or self._recorded(kind))
        }

    def _recorded(self, kind: Kind) -> bool:
        """Whether a kind without events was recorded, by rocprofv3's own options."""
        options = [self._options.get(each) for each in _RECORDED[kind]]
        if all(each is None for each in options):
            return kind != "collective"
        return any(options)

    def _kernels(self) -> pa.Table | None:
        name = self._of(_DISPATCH)
        if name not in self._file.tables:
            return None
        texts, shorts, registers = self._symbols()
        names, short_names = Words(), Words()
        full, short_of = Numbered(texts, names), Numbered(shorts, short_names)
        has_short = any(shorts.values())
        none = short_names.code("")
        plain = {"shared_bytes": "group_segment_size", "scratch_bytes": "private_segment_size"}
        plain["graph"] = "graph_exec_id"

        def convert(batch: Columns) -> Columns:
            import pyarrow.compute as pc

            found = self._device_event(batch, plain)
            if "agent_id" in batch:
                found["device"] = self._device(batch["agent_id"])
            if "kernel_id" in batch:
                kernel = batch["kernel_id"]
                if "name" in self._wanted:
                    found["name"] = full.of(kernel)
                if has_short and "short_name" in self._wanted:
                    codes = short_of.of(kernel)
                    found["short_name"] = pc.if_else(pc.equal(codes, none), None, codes)
                for column, values in registers.items():
                    if values and column in self._wanted:
                        found[column] = narrow(translated(kernel, values), column)
            if "graph" in found:
                found["graph"] = positive(found["graph"])
            for axis in "xyz":
                grid, group = batch.get(f"grid_size_{axis}"), batch.get(f"workgroup_size_{axis}")
                if group is not None and f"block_{axis}" in self._wanted:
                    found[f"block_{axis}"] = narrow(group, f"block_{axis}")
                if grid is not None and group is not None and f"grid_{axis}" in self._wanted:
                    items = positive(group)
                    # the last block may be of fewer work-items
                    blocks = pc.divide(pc.add(grid, pc.subtract(items, 1)), items)
                    found[f"grid_{axis}"] = narrow(blocks, f"grid_{axis}")
            return found

        sources = ["agent_id", "kernel_id", *self._plain(plain)]
        for axis in "xyz":
            if f"grid_{axis}" in self._wanted:
                sources.append(f"grid_size_{axis}")
            if {f"grid_{axis}", f"block_{axis}"} & self._wanted:
                sources.append(f"workgroup_size_{axis}")
        batches = self._batches(name, [*sources, *self._where()], convert)
        words = {"name": names, "short_name": short_names}
        return to_table(batches, words, "kernel")

    def _symbols(self) -> tuple[dict[int, str], dict[int, str], dict[str, dict[int, int]]]:
        """Kernel -> name; kernel -> short name; column -> kernel -> registers of a thread."""
        columns = ("id", "display_name", "kernel_name", "extdata", "arch_vgpr_count")
        rows = self._file.rows(
            self._of("rocpd_info_kernel_symbol"), *columns, "accum_vgpr_count", "sgpr_count"
        )
        texts, shorts = {}, {}
        registers: dict[str, dict[int, int]] = {"registers": {}, "scalar_registers": {}}
        for number, shown, mangled, extdata, arch, accumulated, scalar in rows:
            if not all_whole(number):
                continue
            texts[number] = str(shown or mangled or "(kernel without a name)")
            short = json_object(extdata).get("truncated_kernel_name")
            shorts[number] = short if isinstance(short, str) and short else ""
            if all_whole(arch):
                vector = arch + (accumulated if all_whole(accumulated) else 0)
                registers["registers"][number] = vector
            if all_whole(scalar):
                registers["scalar_registers"][number] = scalar
        return texts, shorts, registers

    def _copies(self) -> pa.Table | None:
        pa: Any = arrow()
        name = self._of(_COPY)
        if name not in self._file.tables:
            return None
        np: Any = import_library("numpy")
        names, kinds = Words(), Words()
        types = {number: str(agent["type"]) for number, agent in self._agents.items()}
        directions = {number: direction(text) or "" for number, text in self._strings.items()}

        def kind_of(direction: int, source: int, target: int) -> str:
            letters = {"CPU": "H", "GPU": "D"}
            begin, end = (letters.get(types.get(each, "")) for each in (source, target))
            stated = directions.get(direction) or (f"{begin}to{end}" if begin and end else "")
            both = begin == end == "D" and source != target
            return "PtoP" if stated == "DtoD" and both else stated

        def convert(batch: Columns) -> Columns:
            import pyarrow.compute as pc

            found = self._device_event(batch, {"bytes": "size", "graph": "graph_exec_id"})
            size = len(batch["start"])
            empty = pa.nulls(size, pa.int64())
            ends = [batch.get(each, empty) for each in ("name_id", "src_agent_id", "dst_agent_id")]
            source, target = self._device(ends[1]), self._device(ends[2])
            found["device"] = pc.coalesce(target, source)
            if "graph" in found:
                found["graph"] = positive(found["graph"])
            rows = [each.fill_null(-1).to_numpy(zero_copy_only=False) for each in ends]
            different, places = np.unique(np.stack(rows), axis=1, return_inverse=True)
            known = [kind_of(*each) for each in different.T.tolist()]
            codes = [kinds.code(each) if each else None for each in known]
            texts = [names.code(f"Memcpy {each}" if each else "Memcpy") for each in known]
            found["copy_kind"] = pa.array(codes, pa.int32()).take(pa.array(places.reshape(-1)))
            found["name"] = pa.array(texts, pa.int32()).take(pa.array(places.reshape(-1)))
            return found

        sources = ["name_id", "src_agent_id", "dst_agent_id", "size", "graph_exec_id"]
        batches = self._batches(name, [*sources, *self._where()], convert)
        return to_table(batches, {"name": names, "copy_kind": kinds}, "copy")

    def _host(self) -> dict[Kind, pa.Table | None]:
        """Regions of the host: calls, ranges of ROCTx, and calls of RCCL as collectives."""
        import pyarrow.compute as pc

        pa: Any = arrow()
        region = self._of(_REGION)
        if region not in self._file.tables:
            return {}
        names = Words()
        of_names = Numbered(self._strings, names)
        collected: dict[str, list[Columns]] = {"api": [], "range": [], "collective": []}

        def convert(batch: Columns) -> Columns:
            found = self._host_event(batch)
            if "name_id" in batch:
                found["name"] = of_names.of(batch["name_id"])
            found["event"] = batch.get("event_id", pa.nulls(len(batch["start"]), pa.int64()))
            found["kind"] = pa.array(self._category(found["event"]))
            return found

        columns = wholes("name_id", "event_id", "pid", "tid", "track_id")
        batches = self._file.events(region, columns, convert)
        for batch in batches:
            kind = batch.pop("kind")
            for number, name in ((CALL, "api"), (RANGE, "range"), (RCCL, "collective")):
                chosen = pc.equal(kind, number)
                if pc.any(chosen).as_py():
                    part = {key: value.filter(chosen) for key, value in batch.items()}
                    collected[name].append(part)
        collected["range"] += self._marks(names)
        messages = Words()
        self._name_ranges(collected["range"], messages)
        arguments = give_arguments(
            collected["collective"], names, self._file, self._of("rocpd_arg"), self._last_event
        )
        for batch in (*collected["api"], *collected["range"], *collected["collective"]):
            batch.pop("event", None)
        ranges = [{k: v for k, v in b.items() if k != "correlation"} for b in collected["range"]]
        found, ours = take_apart(to_table(ranges, {"name": messages}, "range"))
        words = {"name": names, **arguments}
        collectives = to_table(collected["collective"], words, "collective")
        calls = to_table(collected["api"], {"name": names}, "api")
        if collectives.num_rows:
            known = pc.is_valid(collectives.column("operation"))
            # what starts no collective, such as ncclCommInitRank, is a call like others
            plain = collectives.filter(pc.invert(known)).select(
                [each for each in collectives.column_names if each in _OF_CALLS]
            )
            collectives = collectives.filter(known)
            calls = joined([each for each in (calls, plain) if each.num_rows] or [calls])
        if ours is not None:
            collectives = joined([each for each in (collectives, ours) if each.num_rows])
        return {"api": calls, "range": found, "collective": collectives}

    def _marks(self, names: Words) -> list[Columns]:
        """ROCTx's marks: what begins and ends in the same nanosecond is a sample in rocpd."""
        pa: Any = arrow()

        def convert(batch: Columns) -> Columns:
            track = batch.get("track_id", pa.nulls(len(batch["timestamp"]), pa.int64()))
            whole = {
                "start": batch["timestamp"],
                "end": batch["timestamp"],
                "pid": translated(track, self._tracks["pid"]),
                "tid": translated(track, self._tracks["tid"]),
                "event_id": batch.get("event_id", pa.nulls(len(track), pa.int64())),
            }
            chosen = pa.array(self._category(whole["event_id"]) == RANGE)
            whole = {key: value.filter(chosen) for key, value in whole.items()}
            found = self._host_event(whole)
            found["name"] = pa.repeat(pa.scalar(names.code("mark"), pa.int32()), len(whole["pid"]))
            return found | {"event": whole["event_id"]}

        columns = wholes("track_id", "event_id")
        return self._file.events(
            self._of(_SAMPLE), columns, convert, start="timestamp", end="timestamp"
        )

    def _name_ranges(self, ranges: list[Columns], messages: Words) -> None:
        """Give ranges the message that the program wrote, which is in the event's JSON."""
        pa, np = arrow(), import_library("numpy")
        span = span_of(ranges, self._last_event)
        nameless = messages.code("(range without a name)")
        codes = np.full(span.size + 1, nameless, np.int32)

        def convert(batch: Columns) -> Columns:
            compact = batch["extdata"].dictionary_encode()
            found = []
            for text in compact.dictionary.to_pylist():
                message = json_object(text.decode("utf-8", "replace")).get("message")
                named = message if isinstance(message, str) else ""
                found.append(messages.code(named) if named else nameless)
            places = span.places(batch["id"])
            codes[places] = np.asarray(found, np.int32)[compact.indices.to_numpy()]
            codes[-1] = nameless
            return {}

        if ranges:
            columns: Any = {"id": "whole", "extdata": "text"}
            self._file.batches(self._of(EVENT), columns, convert, between=span)
        for each in ranges:
            each["name"] = pa.array(codes[span.places(each["event"])], pa.int32())

    def _batches(self, name: str, sources: list[str], convert: Any) -> list[Columns]:
        return self._file.events(name, wholes(*sources), convert)

    # --- counters

    def metrics(self) -> pa.Table | None:
        """Counters of kernels: one row for each launch and counter."""
        import pyarrow.compute as pc

        pa: Any = arrow()
        name = self._of("rocpd_pmc_event")
        columns: Any = {"event_id": "whole", "pmc_id": "whole", "value": "real"}
        if not self._file.has(name, *columns):
            return None
        batches = [each for each in self._file.batches(name, columns) if len(each["value"])]
        if not batches:
            return None
        launches = self._file.batches(
            self._of(_DISPATCH),
            wholes("event_id", "dispatch_id", "kernel_id", "agent_id"),
        )
        if not launches or len(launches[0]) < 4:
            return None
        counted = {each: pa.chunked_array([b[each] for b in batches]) for each in columns}
        launch = {each: pa.chunked_array([b[each] for b in launches]) for each in launches[0]}
        places = pc.index_in(counted["event_id"], value_set=launch["event_id"])
        ours = pc.is_valid(places)
        places = places.filter(ours)
        rows = self._file.rows(self._of("rocpd_info_pmc"), "id", "name", "units")
        texts = {row[0]: str(row[1] or "") for row in rows if all_whole(row[0])}
        units = {row[0]: str(row[2] or "") for row in rows if all_whole(row[0])}
        symbols = self._file.rows(
            self._of("rocpd_info_kernel_symbol"), "id", "display_name", "kernel_name"
        )
        kernels = {row[0]: str(row[1] or row[2] or "") for row in symbols if all_whole(row[0])}
        counter = counted["pmc_id"].filter(ours).combine_chunks()

        def worded(texts: dict[int, str], numbers: Any) -> Any:
            found = Numbered(texts)
            return found.words.column([found.of(numbers)])

        taken = {each: values.take(places).combine_chunks() for each, values in launch.items()}
        return table(
            {
                "launch": taken["dispatch_id"],
                "name": worded(kernels, taken["kernel_id"]),
                "device": self._device(taken["agent_id"]),
                "metric": worded(texts, counter),
                "unit": worded(units, counter),
                "value": counted["value"].filter(ours),
            },
            METRIC_COLUMNS,
        )
