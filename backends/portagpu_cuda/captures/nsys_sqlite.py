"""``nsys export --type sqlite``: the schemas 3.x, by the tables and columns that a file has.

Tables are created when they get their first row, and rows are not in the order of time. Which
columns there are depends on the version: https://docs.nvidia.com/nsight-systems/, "SQLite Schema
Reference", and the exporter's ``export_schema_version_notes.txt``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.columns import (
    Numbered,
    Words,
    joined,
    narrow,
    narrowed,
    positive,
    take_apart,
    to_table,
)
from portagpu.facts.captures.model import (
    COPY_KINDS,
    EVENT_COLUMNS,
    Capture,
    Kind,
    Source,
    ToolMessage,
    arrow,
    import_library,
)
from portagpu.facts.captures.sqlite import (
    first_number,
    is_sqlite,
    opened,
    wholes,
)
from portagpu.facts.readings.model import FormatError
from portagpu_cuda.captures._nsys_session import (
    CALL,
    COPY,
    GRAPH,
    KERNEL,
    RANGE,
    SET,
    SYNC,
    Session,
    is_export,
    process_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    import pyarrow as pa

    from portagpu.facts.captures.columns import Columns
    from portagpu.facts.captures.sqlite_batches import Type

KIND: Final = "nsys SQLite"
NEWEST_SCHEMA: Final = 3
"""The newest major version that this was written for."""

_VERSION: Final = re.compile(r"_v\d+$")
"""Of a call of the runtime: cudaLaunchKernel_v7000."""
_OPERATOR: Final = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = .*", re.DOTALL)
"""What torch.autograd.profiler.emit_nvtx appends to an operator: numbers that differ each time."""
_MPI_RANK: Final = re.compile(r"MPI Rank (\d{1,9})")
_NO_STREAM: Final = 0xFFFFFFFF
_NUMBERS: Final = ("uint64Value", "int64Value", "doubleValue", "uint32Value", "int32Value")
_TYPES: Final = {"NvtxMark": 34, "NvtxPushPopRange": 59, "NvtxStartEndRange": 60}
_IMPORTED: Final = {"NvtxtMark": 65, "NvtxtPushPopRange": 70, "NvtxtStartEndRange": 71}
_DOMAIN_CREATE, _THREAD_NAME = 75, 39


def matches(head: bytes, path: Path) -> bool:
    """Whether the file is of this format; one that SQLite cannot open is taken too."""
    if not is_sqlite(head) or b"rocpd_" in head:
        return False
    if b"CUPTI_ACTIVITY_KIND_" in head or b"CREATE TABLE StringIds" in head:
        return True
    try:
        with opened(path) as file:
            return is_export(file)
    except FormatError:
        return True


def read(path: Path) -> Capture:
    """What the file holds. Raises FormatError, with one line that says what is wrong."""
    return read_columns(path, EVENT_COLUMNS)


def read_columns(path: Path, columns: Collection[str]) -> Capture:
    """Like :func:`read`, with no other columns of device events and calls than these.

    Correlations are left out where the file has no calls, if not all columns are wanted.
    """
    with opened(path) as file:
        if not is_export(file):
            raise FormatError(
                f"{path}: not an export of nsys: no table CUPTI_ACTIVITY_KIND_* or NVTX_EVENTS"
            )
        wanted = frozenset(columns)
        if CALL not in file.tables and not wanted >= EVENT_COLUMNS.keys():
            wanted -= {"correlation"}
        return _Export(file, wanted).capture()


class _Export(Session):
    """One open file with its events."""

    def capture(self) -> Capture:
        """All that the file holds."""
        version = self._meta.get("EXPORT_SCHEMA_VERSION", "")
        major = first_number(int(each) for each in re.findall(r"^\d{1,4}", version))
        if major is not None and major > NEWEST_SCHEMA:
            self._file.problems.append(
                f"the schema {version} is newer than {NEWEST_SCHEMA}.x: some of it may be misread"
            )
        ranges, collectives = self._ranges()
        found: tuple[tuple[Kind, pa.Table, str], ...] = (
            ("kernel", self._kernels(), KERNEL),
            ("copy", self._copies(), COPY),
            ("set", self._sets(), SET),
            ("api", self._calls(), CALL),
            ("range", ranges, RANGE),
            ("sync", self._syncs(), SYNC),
        )
        tables = {
            kind: events
            for kind, events, needed in found
            if events.num_rows or self.recorded(needed)
        }
        if collectives is not None:
            tables["collective"] = collectives
        product = self._meta.get("EXPORT_PRODUCT_VERSION", "")
        source = Source(str(self._file.path), KIND, "nsys", product, version)
        return Capture(
            source=source,
            tables=tables,
            devices=self.captured_devices(tables),
            processes=self.processes(tables),
            span_ns=self.span(tables),
            epoch_ns=first_number(
                row[0] for row in self._file.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
            ),
            messages=(*self.diagnostics(), *self._messages),
            problems=tuple(self._file.problems),
            dropped=self._file.dropped,
            details=self.details(),
        )

    # --- events

    def _kernels(self) -> pa.Table:
        names, shorts = Words(), Words()
        full, short = Numbered(self._strings, names), Numbered(self._strings, shorts)
        stored = self._file.tables.get(KERNEL, ())
        named = ("demangledName", "mangledName", "shortName")
        named_by = next((each for each in named if each in stored), "demangledName")
        plain = {
            "stream": "streamId",
            "correlation": "correlationId",
            "registers": "registersPerThread",
            "scratch_bytes": "localMemoryPerThread",
            **{f"{part}_{axis}": f"{part}{axis.upper()}" for part in _PARTS for axis in "xyz"},
        }
        columns = self._sources(plain)
        columns |= self._sources({"name": named_by, "short_name": "shortName"})
        if named_by in columns:
            columns["shortName"] = "whole"
        with_short = "short_name" in self._wanted
        static, dynamic = "staticSharedMemory", "dynamicSharedMemory"
        if "shared_bytes" in self._wanted:
            columns |= wholes(static, dynamic)
        if "graph" in self._wanted:
            columns |= wholes("graphId", "graphNodeId")

        def convert(batch: Columns) -> Columns:
            import pyarrow.compute as pc

            found = self._device_event(batch, plain)
            if named_by in batch and "name" in self._wanted:
                numbers = batch[named_by]
                if numbers.null_count and "shortName" in batch and not with_short:
                    numbers = pc.coalesce(numbers, batch["shortName"])
                found["name"] = full.of(numbers)
            if "shortName" in batch and with_short:
                found["short_name"] = short.of(batch["shortName"])
            if static in batch and dynamic in batch:
                found["shared_bytes"] = pc.add(batch[static], batch[dynamic])
            elif static in batch or dynamic in batch:
                found["shared_bytes"] = batch[static if static in batch else dynamic]
            graphs = [batch[each] for each in ("graphId", "graphNodeId") if each in batch]
            if graphs:
                # 0 means no graph; a node's number stands for its graph where the file has no other
                found["graph"] = pc.coalesce(*map(positive, graphs))
            return found

        batches = self._file.events(KERNEL, self._with_device(columns), convert)
        whole = {"name": names, "short_name": shorts}
        return self._with_graphs(to_table(batches, whole, "kernel"))

    def _with_graphs(self, kernels: pa.Table) -> pa.Table:
        """With one row for each launch of a graph whose kernels were not recorded one by one."""
        pa: Any = arrow()
        if GRAPH not in self._file.tables:
            return kernels
        names = Words()
        plain = {"stream": "streamId", "correlation": "correlationId", "graph": "graphId"}

        def convert(batch: Columns) -> Columns:
            found = self._device_event(batch, plain)
            codes = pa.array([names.code("(CUDA graph)")], pa.int32())
            found["name"] = pa.repeat(codes[0], len(batch["start"]))
            return found

        columns = self._with_device(self._sources(plain))
        batches = self._file.events(GRAPH, columns, convert)
        graphs = to_table(batches, {"name": names}, "kernel")
        if not graphs.num_rows:
            return kernels
        self._messages.append(
            ToolMessage(
                "warning",
                f"the kernels inside of CUDA graphs were not recorded: {graphs.num_rows:,} launches"
                " of graphs are one event each; nsys profile --cuda-graph-trace=node records them",
            )
        )
        return joined([kernels, graphs])

    def _copies(self) -> pa.Table:
        texts, kinds = {}, {}
        labels = self._file.rows("ENUM_CUDA_MEMCPY_OPER", "id", "name", "label")
        for number, name, label in labels or _COPY_LABELS:
            if isinstance(number, int):
                kind = _copy_kind(str(name))
                kinds[number] = kind or ""
                texts[number] = f"Memcpy {kind or label or number}"
        return self._moved(COPY, texts, kinds)

    def _sets(self) -> pa.Table:
        return self._moved(SET, {}, {})

    def _moved(self, of: str, texts: dict[int, str], kinds: dict[int, str]) -> pa.Table:
        """Copies, or sets where there are no ``texts``."""
        pa: Any = arrow()
        names, copy_kinds = Words(), Words()
        plain = {"stream": "streamId", "correlation": "correlationId", "bytes": "bytes"}
        plain["graph"] = "graphNodeId"
        codes, kind_codes = Numbered(texts, names), Numbered(kinds, copy_kinds)
        unclear = copy_kinds.code("")

        def convert(batch: Columns) -> Columns:
            import pyarrow.compute as pc

            found = self._device_event(batch, plain)
            if "graph" in found:
                found["graph"] = positive(found["graph"])
            if not texts:
                one = pa.scalar(names.code("Memset"), pa.int32())
                found["name"] = pa.repeat(one, len(batch["start"]))
            elif "copyKind" in batch:
                found["name"] = codes.of(batch["copyKind"])
                known = kind_codes.of(batch["copyKind"])
                found["copy_kind"] = pc.if_else(pc.equal(known, unclear), None, known)
            return found

        columns = self._with_device(self._sources(plain)) | wholes("copyKind")
        batches = self._file.events(of, columns, convert)
        words = {"name": names, "copy_kind": copy_kinds}
        return to_table(batches, words, "copy" if texts else "set")

    def _calls(self) -> pa.Table:
        plain = {number: _VERSION.sub("", text) for number, text in self._strings.items()}
        names = Words()
        codes = Numbered(plain, names)

        def convert(batch: Columns) -> Columns:
            found = self._host_event(batch)
            if "nameId" in batch:
                found["name"] = codes.of(batch["nameId"])
            if "correlationId" in batch:
                found["correlation"] = batch["correlationId"]
            return found

        columns = wholes("globalTid", "nameId", "correlationId")
        batches = self._file.events(CALL, columns, convert)
        return to_table(batches, {"name": names}, "api")

    def _syncs(self) -> pa.Table:
        labels = self._file.rows("ENUM_CUPTI_SYNC_TYPE", "id", "label") or _SYNC_LABELS
        names = Words()
        texts = {number: str(label) for number, label in labels if isinstance(number, int)}
        codes = Numbered(texts, names)
        plain = {"stream": "streamId", "correlation": "correlationId"}

        def convert(batch: Columns) -> Columns:
            import pyarrow.compute as pc

            found = self._device_event(batch, plain)
            if "stream" in found:
                none = pc.equal(found["stream"], _NO_STREAM)
                found["stream"] = pc.if_else(none, None, found["stream"])
            if "syncType" in batch:
                found["name"] = codes.of(batch["syncType"])
            return found

        columns = self._with_device(self._sources(plain)) | wholes("syncType")
        batches = self._file.events(SYNC, columns, convert)
        return to_table(batches, {"name": names}, "sync")

    def _ranges(self) -> tuple[pa.Table, pa.Table | None]:
        np: Any = import_library("numpy")
        pa: Any = arrow()
        marks, spans = self._range_types()
        names, domains, payloads = Words(), Words(), Words()
        texts = Numbered({key: _OPERATOR.sub("", text) for key, text in self._strings.items()})
        texts.words = names
        jsons = Numbered(self._strings, payloads)
        of_domain = Numbered(self._domains(), domains)
        no_domain = domains.code("")

        def convert(batch: Columns) -> Columns:
            import pyarrow.compute as pc

            kinds = batch["eventType"].fill_null(-1).to_numpy(zero_copy_only=False)
            chosen = np.isin(kinds, [*marks, *spans])
            if not chosen.all():
                batch = {key: value.filter(pa.array(chosen)) for key, value in batch.items()}
                kinds = kinds[chosen]
            found = self._host_event(batch)
            is_mark = pa.array(np.isin(kinds, [*marks]))
            found["end_ns"] = pc.if_else(is_mark, batch["start"], batch["end"])
            code = pa.nulls(len(kinds), pa.int32())
            if "text" in batch:
                code = names.of_texts(batch["text"], lambda text: _OPERATOR.sub("", text))
            if "textId" in batch:
                code = pc.coalesce(code, texts.of(batch["textId"]))
            found["name"] = code
            if "domainId" in batch:
                process = found.get("pid", pa.nulls(len(kinds), pa.int64())).fill_null(0)
                keys = pc.bit_wise_or(
                    pc.shift_left(process, 32),
                    pc.bit_wise_and(batch["domainId"].fill_null(0), (1 << 32) - 1),
                )
                known = of_domain.of(keys)
                unknown = domains.code(Numbered.MISSING)
                none = pc.or_(pc.equal(known, no_domain), pc.equal(known, unknown))
                found["domain"] = pc.if_else(none, None, known)
            found["payload"] = self._payload(batch, payloads, jsons)
            return found

        columns = wholes("eventType", "globalTid", "textId", "domainId", "jsonTextId")
        columns |= {"text": "text", "jsonText": "text"}
        numbers = [name for name in (*_NUMBERS, "floatValue") if self._file.has(RANGE, name)]
        any_number = " OR ".join(f"{name} IS NOT NULL" for name in numbers)
        if numbers and self._file.rows(RANGE, *numbers, where=any_number, most=1):
            reals = ("doubleValue", "floatValue")
            columns |= wholes(*numbers)
            columns |= {name: "real" for name in reals if name in numbers}
        batches: list[Columns] = []
        if self._file.has(RANGE, "eventType"):
            batches = self._file.events(RANGE, columns, convert, open_ended=True)
        words = {"name": names, "domain": domains, "payload": payloads}
        return take_apart(to_table(batches, words, "range"))

    @staticmethod
    def _payload(batch: Columns, payloads: Words, jsons: Numbered) -> pa.Array:
        import pyarrow.compute as pc

        pa: Any = arrow()
        code = pa.nulls(len(batch["start"]), pa.int32())
        if "jsonText" in batch:
            code = payloads.of_texts(batch["jsonText"])
        if "jsonTextId" in batch:
            code = pc.coalesce(code, jsons.of(batch["jsonTextId"]))
        for name in (*_NUMBERS, "floatValue"):
            values = batch.get(name)
            if values is None or values.null_count == len(values):
                continue
            compact = values.dictionary_encode()
            words = [payloads.code(f'{{"payload":{each}}}') for each in compact.dictionary.tolist()]
            code = pc.coalesce(code, pa.array(words, pa.int32()).take(compact.indices))
        return code

    def _range_types(self) -> tuple[set[int], set[int]]:
        """The numbers of marks and of ranges, by the file's own table where it has one."""
        known = _TYPES | _IMPORTED
        for number, name in self._file.rows("ENUM_NSYS_EVENT_TYPE", "id", "name"):
            if name in known and isinstance(number, int):
                known[name] = number
        marks = {number for name, number in known.items() if name.endswith("Mark")}
        return marks, set(known.values()) - marks

    def _domains(self) -> dict[int, str]:
        """Process and domain in one number -> the domain's name; domain 0 is everybody's."""
        found: dict[int, str] = {}
        if not self._file.has(RANGE, "eventType"):
            return found
        columns = ("eventType", "domainId", "globalTid", "text", "textId")
        where = f"eventType IN ({_DOMAIN_CREATE}, {_THREAD_NAME})"
        for kind, domain, thread, text, number in self._file.rows(RANGE, *columns, where=where):
            name = text or self._strings.get(number)
            process = (thread >> 24) & 0xFFFFFF if isinstance(thread, int) else 0
            if kind == _THREAD_NAME:
                if rank := _MPI_RANK.fullmatch(str(name)):
                    self._ranks[process] = int(rank[1])
            elif isinstance(domain, int) and domain and isinstance(name, str):
                found[(process << 32) | (domain & 0xFFFFFFFF)] = name
        return found

    # --- columns

    def _sources(self, plain: Mapping[str, str]) -> dict[str, Type]:
        """The file's columns of those columns of the schema that are wanted."""
        return wholes(*(source for column, source in plain.items() if column in self._wanted))

    def _with_device(self, columns: Mapping[str, Type]) -> dict[str, Type]:
        found = dict(columns) | wholes("deviceId")
        if "pid" in self._wanted or self._devices:
            found["globalPid"] = "whole"
        return found

    def _device_event(self, batch: Columns, plain: Mapping[str, str]) -> Columns:
        import pyarrow.compute as pc

        found = {"start_ns": batch["start"], "end_ns": batch["end"]}
        process = None
        if "globalPid" in batch:
            process = process_of(batch["globalPid"])
            if "pid" in self._wanted:
                found["pid"] = process
        if "deviceId" in batch:
            device = batch["deviceId"]
            if self._devices and process is not None:
                for (pid, number), index in self._devices.items():
                    own = pc.and_(pc.equal(process, pid), pc.equal(batch["deviceId"], number))
                    device = pc.if_else(own.fill_null(False), index, device)
            found["device"] = narrow(device, "device")
        return found | narrowed(batch, plain, self._wanted)

    @staticmethod
    def _host_event(batch: Columns) -> Columns:
        import pyarrow.compute as pc

        found = {"start_ns": batch["start"], "end_ns": batch["end"]}
        if "globalTid" in batch:
            found["pid"] = process_of(batch["globalTid"])
            found["tid"] = pc.bit_wise_and(batch["globalTid"], 0xFFFFFF)
        return found


_PARTS: Final = ("grid", "block")
_COPY_LABELS: Final = [
    (1, "CUDA_MEMCPY_KIND_HTOD", ""),
    (2, "CUDA_MEMCPY_KIND_DTOH", ""),
    (3, "CUDA_MEMCPY_KIND_HTOA", ""),
    (4, "CUDA_MEMCPY_KIND_ATOH", ""),
    (5, "CUDA_MEMCPY_KIND_ATOA", ""),
    (6, "CUDA_MEMCPY_KIND_ATOD", ""),
    (7, "CUDA_MEMCPY_KIND_DTOA", ""),
    (8, "CUDA_MEMCPY_KIND_DTOD", ""),
    (9, "CUDA_MEMCPY_KIND_HTOH", ""),
    (10, "CUDA_MEMCPY_KIND_PTOP", ""),
    (11, "CUDA_MEMCPY_KIND_UVM_HTOD", ""),
    (12, "CUDA_MEMCPY_KIND_UVM_DTOH", ""),
    (13, "CUDA_MEMCPY_KIND_UVM_DTOD", ""),
]
_SYNC_LABELS: Final = [
    (1, "Event sync"),
    (2, "Stream wait sync"),
    (3, "Stream sync"),
    (4, "Context sync"),
]
"""The numbers of CUPTI (cupti_activity.h), for files without the tables of them."""


def _copy_kind(symbol: str) -> str | None:
    """One of COPY_KINDS, of a symbol such as CUDA_MEMCPY_KIND_ATOD; an array is on the device."""
    ends = symbol.rpartition("_")[2].replace("A", "D")
    return next((each for each in COPY_KINDS if each.upper() == ends), None)
