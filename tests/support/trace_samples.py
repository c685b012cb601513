"""One made-up timeline, written as nsys SQLite, as rocpd SQLite and as Kineto JSON, of any size.

    made = timeline(kernels=1000, devices=2)
    write_nsys(made, folder / "a.sqlite")
    write_rocpd(made, folder / "b.db")
    write_kineto(made, folder / "c.json")

Times are whole nanoseconds, which all three hold exactly (Kineto as microseconds with 3 decimals).
What one of the formats has no place for is off unless it is asked for: rocpd has no memsets (they
are kernels there), and no marks are in Kineto's JSON. A reader names a copy "Memcpy HtoD" (its
direction alone), and a call of the runtime without the version that nsys appends (``_v7000``).

From the command line: ``python -m tests.support.trace_samples nsys 1000000 out.sqlite``.
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from portagpu.facts.captures.labels import COLLECTIVE, encode
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from portagpu.facts.captures.labels import Label

SCHEMAS = ROOT / "tests/vendor_texts/trace_schemas"
NVIDIA_KERNELS = (
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
    ),
    (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
        "at::native::MeanOps<float, float, float, float>, unsigned int, float, 4> >"
        "(at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, "
        "unsigned int, float, 4>)"
    ),
    (
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
        "cutlass::bfloat16_t>, false, true, false>(Flash_fwd_params)"
    ),
    "triton_poi_fused_add_relu_0",
)
AMD_KERNELS = (
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT128x128x64_MI16x16x1_SN_LDSB1_AFC0",
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
    ),
    (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
        "at::native::MeanOps<float, float, float, float>, unsigned int, float, 4> >"
        "(at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, "
        "unsigned int, float, 4>)"
    ),
    "attn_fwd",
    "triton_poi_fused_add_relu_0",
)
COLLECTIVE_KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
CUDA_CALLS = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync")
HIP_CALLS = ("hipLaunchKernel", "hipMemcpyAsync", "hipMemsetAsync")

PER_STEP = 64
"""Kernels of a step on one device; the last of each quarter is a collective's."""
BATCH = 200_000
Columns = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Timeline:
    """Columns of whole numbers; names are numbers of ``names``."""

    names: tuple[str, ...]
    kernels: Columns  # start end name device stream thread correlation grid block
    copies: Columns  # start end device stream thread correlation bytes
    sets: Columns
    calls: Columns  # start end name thread correlation
    ranges: Columns  # start end name thread; a mark has end = start
    collectives: Columns  # start end thread bytes sequence
    devices: int
    pid: int = 4242
    rank: int | None = None
    world_size: int | None = None
    device_name: str = "Example GPU"
    labelled: bool = False
    """Whether collectives carry our labels, in the same form in all three; else each has what its
    vendor or torch writes, which holds less: a range without labels in nsys."""
    shuffled: NDArray[np.int64] | None = field(default=None, compare=False)
    """The order in which kernels are written; None is that of time on each device."""


def short(name: str) -> str:
    """A kernel's name without return type, template arguments, arguments and namespaces."""
    depth, plain = 0, ""
    for letter in name:
        depth += letter in "<("
        if not depth:
            plain += letter
        depth -= letter in ">)"
    return re.split(r"::| ", plain.strip())[-1]


def timeline(
    kernels: int = 1000,
    *,
    devices: int = 1,
    names: Sequence[str] = NVIDIA_KERNELS,
    collective_kernel: str | None = COLLECTIVE_KERNEL,
    call_names: Sequence[str] = CUDA_CALLS,
    seed: int = 0,
    start_ns: int = 1_000_000_000,
    calls: bool = True,
    copies: bool = True,
    sets: bool = False,
    marks: bool = False,
    shuffled: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    wait_ns: int = 0,
    pid: int = 4242,
    labelled: bool = False,
    per_step: int = PER_STEP,
) -> Timeline:
    """``kernels`` kernels, shared equally among ``devices``, in steps of ``per_step`` a device.

    Each step has a copy to the device, 4 collectives on a second stream next to compute, and the
    ranges step > forward, backward, optimizer. ``wait_ns`` lengthens the collectives' kernels, as
    a rank that waits for others has them. ``names`` are the compute kernels'.
    """
    rng = np.random.default_rng(seed)
    table = (*names, collective_kernel or names[0], *call_names, "step", "forward", "backward")
    table = (*table, "optimizer", "mark")
    first_call = len(names) + 1
    parts: list[dict[str, Columns]] = []
    offset = 1
    for device in range(devices):
        count = kernels // devices + (device < kernels % devices)
        options = (count, device, len(names), bool(collective_kernel), wait_ns, start_ns, per_step)
        parts.append(_one_device(rng, *options, offset, first_call))
        offset += count + 2 * parts[-1]["copies"]["start"].size
    if not copies or not sets:
        for part in parts:
            kept = {2} if sets else ({1} if copies else set())
            chosen = np.isin(part["calls"]["name"] - first_call, [0, *kept])
            part["calls"] = {key: value[chosen] for key, value in part["calls"].items()}
            part["copies"] = part["copies"] if copies else _none(part["copies"])
            part["sets"] = part["sets"] if sets else _none(part["sets"])
    joined = {
        kind: {key: np.concatenate([part[kind][key] for part in parts]) for key in parts[0][kind]}
        for kind in parts[0]
    }
    if not calls:
        joined["calls"] = _none(joined["calls"])
    if not marks:
        ranges = joined["ranges"]
        chosen = ranges["start"] < ranges["end"]
        joined["ranges"] = {key: value[chosen] for key, value in ranges.items()}
    order = rng.permutation(kernels) if shuffled else None
    return Timeline(
        names=table,
        **joined,
        devices=devices,
        pid=pid,
        rank=rank,
        world_size=world_size,
        labelled=labelled,
        shuffled=order,
    )


def _none(columns: Columns) -> Columns:
    return {key: value[:0] for key, value in columns.items()}


def _one_device(
    rng: np.random.Generator,
    count: int,
    device: int,
    compute_names: int,
    collective: bool,
    wait_ns: int,
    start_ns: int,
    per_step: int,
    first_correlation: int,
    first_call: int,
) -> dict[str, Columns]:
    """Host calls are 8 us ahead of the device, at least 2 us apart and at most 900 ns long."""
    index = np.arange(count, dtype=np.int64)
    in_step = index % per_step
    is_collective = (in_step % (per_step // 4) == per_step // 4 - 1) & collective
    duration = rng.integers(2000, 40_000, count)
    name = rng.integers(0, compute_names, count)
    name[is_collective] = compute_names
    advance = np.where(is_collective, 2000, duration + rng.integers(300, 4000, count))
    advance += np.where(in_step == per_step - 1, 80_000, 0)
    duration = duration + np.where(is_collective, wait_ns, 0)
    start = start_ns + 100_000 + 137 * device + np.cumsum(advance) - advance
    correlation = first_correlation + index
    of_device, thread = np.full(count, device), np.full(count, device)
    kernels = {
        "start": start,
        "end": start + duration,
        "name": name,
        "device": of_device,
        "stream": np.where(is_collective, 13, 7),
        "thread": thread,
        "correlation": correlation,
        "grid": 1 + name * 24,
        "block": np.where(is_collective, 512, 256),
    }
    calls = {
        "start": start - 8000,
        "end": start - 8000 + rng.integers(300, 900, count),
        "name": np.full(count, first_call),
        "thread": thread,
        "correlation": correlation,
    }
    first = index[in_step == 0]
    last = np.minimum(first + per_step, count) - 1
    number = np.arange(first.size, dtype=np.int64)
    moves = []
    for kind, ahead, length in (("copies", 30_000, 10_000), ("sets", 15_000, 1500)):
        at = start[first] - ahead
        moved = {
            "start": at,
            "end": at + length,
            "device": np.full(first.size, device),
            "stream": np.full(first.size, 7),
            "thread": np.full(first.size, device),
            "correlation": first_correlation + count + number + len(moves) * first.size,
            "bytes": np.full(first.size, 1 << 20 if kind == "copies" else 4096),
        }
        moves.append(moved)
        call = {
            "start": at - 8000,
            "end": at - 7400,
            "name": np.full(first.size, first_call + len(moves)),
            "thread": moved["thread"],
            "correlation": moved["correlation"],
        }
        calls = {key: np.concatenate([calls[key], call[key]]) for key in calls}
    third = np.minimum(first + per_step // 4, last)
    most = np.minimum(first + per_step - per_step // 8, last)
    launch, launched = calls["start"][:count], calls["end"][:count]
    spans = [
        (first, last, 300, 3),  # step; its name is the 4th after the first call's
        (first, third, 200, 4),
        (np.minimum(third + 1, last), most, 200, 5),
        (np.minimum(most + 1, last), last, 200, 6),
    ]
    ranges: dict[str, list[NDArray[np.int64]]] = {"start": [], "end": [], "name": [], "thread": []}
    for begin, end, pad, label in spans:
        whole = slice(None) if label < 5 else begin > (third if label == 5 else most)
        ranges["start"].append(launch[begin[whole]] - pad)
        ranges["end"].append(launched[end[whole]] + pad)
        ranges["name"].append(np.full(begin[whole].size, first_call + label))
        ranges["thread"].append(np.full(begin[whole].size, device))
    for column, mark in (("start", 1000), ("end", 1000)):
        ranges[column].append(launch[first] - mark)
    ranges["name"].append(np.full(first.size, first_call + 7))
    ranges["thread"].append(np.full(first.size, device))
    which = index[is_collective]
    return {
        "kernels": kernels,
        "copies": moves[0],
        "sets": moves[1],
        "calls": calls,
        "ranges": {key: np.concatenate(value) for key, value in ranges.items()},
        "collectives": {
            "start": launch[which] - 100,
            "end": launched[which] + 100,
            "thread": np.full(which.size, device),
            "bytes": np.full(which.size, 1 << 22),
            "sequence": 1 + np.arange(which.size, dtype=np.int64),
        },
    }


# --- nsys

_PROCESS = 1 << 24


def write_nsys(
    made: Timeline,
    path: Path,
    *,
    lazy: bool = True,
    leave_out: Sequence[str] = (),
) -> Path:
    """The timeline as ``nsys export --type sqlite`` writes it; ``lazy`` leaves empty tables out."""
    script = (SCHEMAS / "nsys-3.25.sql").read_text()
    base = (1 << 48) + made.pid * _PROCESS
    strings = [f"{each}_v7000" if each.startswith("cu") else each for each in made.names]
    shorts = [short(each) for each in made.names]
    count = len(strings)
    connection = _open(path)
    with connection:
        connection.executescript(script)
        both = enumerate([*strings, *shorts])
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", both)
        connection.executemany("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", _NSYS_META.items())
        for device in range(made.devices):
            values = {"vmId": 1 << 48, "id": device, "name": made.device_name, "smCount": 100}
            values |= {"totalMemory": 80 << 30, "threadsPerWarp": 32, "cuDevice": device}
            values |= {"computeMajor": 9, "computeMinor": 0, "uuid": f"GPU-{device:032x}"}
            _insert(connection, "TARGET_INFO_GPU", values)
            for stream in (7, 13):
                row = (stream, 0, 1, made.pid, 1 + device, 0, 1)
                sql = "INSERT INTO TARGET_INFO_CUDA_STREAM VALUES (?, ?, ?, ?, ?, ?, ?)"
                connection.execute(sql, row)
        fixed: dict[str, Any] = {
            "contextId": 1,
            "globalPid": base,
            "greenContextId": 0,
            "mangledName": None,
        }
        shape = {"gridY": 1, "gridZ": 1, "blockY": 1, "blockZ": 1, "registersPerThread": 32}
        shape |= {"staticSharedMemory": 0, "dynamicSharedMemory": 16384}
        shape |= {"localMemoryPerThread": 0, "localMemoryTotal": 0, "gridId": 1}
        shape |= {"tensorSizeMinusOneElements": "[]", "graphNodeId": None, "launchType": 1}
        moved = ("start", "end", "device", "stream", "correlation")
        device_columns = ("start", "end", "deviceId", "streamId", "correlationId")
        _fill(
            connection,
            "CUPTI_ACTIVITY_KIND_KERNEL",
            (*device_columns, "gridX", "blockX", "demangledName", "shortName"),
            _batches(made.kernels, (*moved, "grid", "block", "name", "name"), made.shuffled),
            fixed | shape,
            lambda rows: ((*row[:-1], row[-1] + count) for row in rows),
        )
        fixed.pop("mangledName")
        columns = (*device_columns, "bytes")
        copy = {"copyKind": 1, "srcKind": 1, "dstKind": 2, "copyCount": 1}
        batches = _batches(made.copies, (*moved, "bytes"))
        _fill(connection, "CUPTI_ACTIVITY_KIND_MEMCPY", columns, batches, fixed | copy)
        batches = _batches(made.sets, (*moved, "bytes"))
        _fill(
            connection,
            "CUPTI_ACTIVITY_KIND_MEMSET",
            columns,
            batches,
            fixed | {"value": 0, "memKind": 2},
        )

        def thread(rows: Iterator[Any]) -> Iterator[Any]:
            return ((*row[:-1], base + made.pid + row[-1]) for row in rows)

        _fill(
            connection,
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            ("start", "end", "nameId", "correlationId", "globalTid"),
            _batches(made.calls, ("start", "end", "name", "correlation", "thread")),
            {"eventClass": 0, "returnValue": 0, "callchainId": None},
            thread,
        )

        def ranges(rows: Iterator[Any]) -> Iterator[Any]:
            for start, end, name, of_thread in rows:
                mark = start == end
                text = made.names[name]
                yield (
                    start,
                    None if mark else end,
                    34 if mark else 59,
                    text,
                    base + made.pid + (of_thread),
                )

        columns = ("start", "end", "eventType", "text", "globalTid")
        batches = _batches(made.ranges, ("start", "end", "name", "thread"))
        _fill(connection, "NVTX_EVENTS", columns, batches, {"domainId": 0}, ranges)

        def collectives(rows: Iterator[Any]) -> Iterator[Any]:
            for start, end, of_thread, size, number in rows:
                name, payload = collective_range(made, size, number)
                yield start, end, 59, name, base + made.pid + of_thread, payload

        columns = (*columns, "jsonText")
        batches = _batches(made.collectives, ("start", "end", "thread", "bytes", "sequence"))
        _fill(connection, "NVTX_EVENTS", columns, batches, {"domainId": 0}, collectives)
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master")]
        for table in tables:
            empty = connection.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone() is None  # noqa: S608
            if table in leave_out or (lazy and empty):
                connection.execute(f'DROP TABLE "{table}"')
    connection.close()
    return path


_NSYS_META = {
    "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
    "EXPORT_PRODUCT_VERSION": "2026.2.1.210",
    "EXPORT_SCHEMA_VERSION": "3.25.0",
    "EXPORT_SCHEMA_VERSION_MAJOR": "3",
    "EXPORT_SCHEMA_VERSION_MINOR": "25",
    "EXPORT_SCHEMA_VERSION_MICRO": "0",
    "EXPORT_PARAM_LAZY": "true",
}


def collective_range(made: Timeline, size: int, sequence: int) -> tuple[str, str | None]:
    """The name and payload of the range that a collective carries, where it has one."""
    if not made.labelled:
        return "nccl:all_reduce", None
    labels: dict[str, Label] = {"bytes": size, "dtype": "bfloat16", "group": "0"}
    labels |= {"group_size": made.world_size or 1, "sequence": sequence}
    return encode("all_reduce", labels, COLLECTIVE, ascii_only=True), None


# --- rocpd

GUID = "0198c3a1-5f00-7abc-8def-0123456789ab"


def rocpd_schema(guid: str = GUID) -> tuple[str, str]:
    """The SQL of the tables and views, and what follows the tables' names."""
    suffix = "_" + guid.replace("-", "_")
    text = (SCHEMAS / "rocpd-3.sql").read_text()
    return text.replace("{{uuid}}", suffix).replace("{{guid}}", guid), suffix


def write_rocpd(made: Timeline, path: Path, *, guid: str = GUID) -> Path:
    """The timeline as ``rocprofv3 --output-format rocpd`` writes it.

    Which column holds what: rocprofiler-sdk, source/lib/output/generateRocpd.cpp. An event's
    stack_id is the internal correlation id, the same for a call and for what it started.
    """
    schema, suffix = rocpd_schema(guid)
    connection = _open(path)
    node = 7
    own: dict[str, Any] = {"nid": node, "pid": made.pid}
    categories = ("KERNEL_DISPATCH", "MEMORY_COPY", "HIP_RUNTIME_API_EXT", "RCCL_API")
    texts = ("", *made.names, *categories, "MARKER_CORE_RANGE_API", "roctxThreadRangeA")
    texts = tuple(dict.fromkeys((*texts, "roctxMarkA", "MEMORY_COPY_HOST_TO_DEVICE")))
    texts = tuple(dict.fromkeys((*texts, "ncclAllReduce")))
    number = {text: index for index, text in enumerate(texts, 1)}
    rank = (made.rank, made.world_size)
    environment = {} if made.rank is None else {"RANK": f"{rank[0]}", "WORLD_SIZE": f"{rank[1]}"}
    with connection:
        connection.executescript(schema)
        _many(connection, f"rocpd_string{suffix}", ("id", "string"), enumerate(texts, 1))
        values: dict[str, Any] = {"id": node, "hash": node, "machine_id": "0", "hostname": "node"}
        _insert(connection, f"rocpd_info_node{suffix}", values)
        moments = [made.kernels[key] for key in ("start", "end")]
        first = int(moments[0].min()) - 10_000_000 if moments[0].size else 1
        last = int(moments[1].max(initial=0)) + 10_000_000
        process = {"id": made.pid, "nid": node, "pid": made.pid, "command": "python train.py"}
        process |= {"init": first, "fini": last, "start": first, "end": last}
        process |= {"environment": json.dumps(environment)}
        _insert(connection, f"rocpd_info_process{suffix}", process)
        for thread in range(made.devices):
            row = {"id": made.pid + thread, "tid": made.pid + thread, **own}
            _insert(connection, f"rocpd_info_thread{suffix}", row)
        agents = [("CPU", 0, 0)]
        agents += [("GPU", 1 + device, device) for device in range(made.devices)]
        for kind, node_id, index in agents:
            name = "gfx942" if kind == "GPU" else "Example CPU"
            row = {"id": node_id, **own, "type": kind, "absolute_index": node_id, "name": name}
            row |= {"logical_index": node_id, "type_index": index, "vendor_name": "AMD"}
            product = made.device_name if kind == "GPU" else name
            row |= {"product_name": product, "model_name": product, "uuid": node_id}
            facts = {"cu_count": 100, "wave_front_size": 64, "size": 512} if kind == "GPU" else {}
            _insert(connection, f"rocpd_info_agent{suffix}", row | {"extdata": json.dumps(facts)})
        for stream in (0, 7, 13):
            named = "Default Stream" if not stream else f"Stream {stream}"
            _insert(connection, f"rocpd_info_stream{suffix}", {"id": stream, **own, "name": named})
        _insert(connection, f"rocpd_info_queue{suffix}", {"id": 0, **own, "name": "Default Queue"})
        code = {"id": 1, **own, "agent_id": 1, "storage_type": "MEMORY"}
        _insert(connection, f"rocpd_info_code_object{suffix}", code)
        for index, name in enumerate(made.names):
            symbol = {"id": 1 + index, **own, "code_object_id": 1, "kernel_name": f"{name}.kd"}
            symbol |= {"display_name": name, "sgpr_count": 64, "arch_vgpr_count": 32}
            symbol |= {"accum_vgpr_count": 0, "group_segment_size": 0, "private_segment_size": 0}
            names = {"formatted_kernel_name": name, "truncated_kernel_name": short(name)}
            row = symbol | {"extdata": json.dumps(names)}
            _insert(connection, f"rocpd_info_kernel_symbol{suffix}", row)

        events = 0

        def event(category: str, columns: Columns, extdata: list[str] | None = None) -> range:
            nonlocal events
            size = columns["start"].size
            numbers = range(events + 1, events + size + 1)
            events += size
            stack = columns.get("correlation", np.zeros(size, dtype=np.int64)).tolist()
            given = extdata or ["{}"] * size
            fixed = {"category_id": number[category], "correlation_id": 0}
            rows = ((i, s, s, e) for i, s, e in zip(numbers, stack, given, strict=True))
            names = ("id", "stack_id", "parent_stack_id", "extdata")
            _many(connection, f"rocpd_event{suffix}", names, rows, fixed)
            return numbers

        def region(category: str, columns: Columns, names: list[str], texts: list[str]) -> range:
            numbers = event(category, columns, texts)
            keys = ("start", "end", "thread")
            lists = [columns[key].tolist() for key in keys]
            rows = zip(*lists, [number[name] for name in names], numbers, strict=True)
            moved = ((s, e, t + made.pid, n, i) for s, e, t, n, i in rows)
            into = ("start", "end", "tid", "name_id", "event_id")
            _many(connection, f"rocpd_region{suffix}", into, moved, own)
            return numbers

        calls = made.calls
        names = [made.names[index] for index in calls["name"].tolist()]
        region("HIP_RUNTIME_API_EXT", calls, names, ["{}"] * len(names))
        spans = made.ranges["start"] < made.ranges["end"]
        ranges = {key: value[spans] for key, value in made.ranges.items()}
        messages = [made.names[index] for index in ranges["name"].tolist()]
        texts_of = [json.dumps({"message": text}) for text in messages]
        region("MARKER_CORE_RANGE_API", ranges, ["roctxThreadRangeA"] * len(messages), texts_of)
        marked = {key: value[~spans] for key, value in made.ranges.items()}
        messages = [made.names[index] for index in marked["name"].tolist()]
        if messages:
            numbers = event(
                "MARKER_CORE_RANGE_API",
                marked,
                [json.dumps({"message": text}) for text in messages],
            )
            threads = {"id": 1, **own, "name_id": number["MARKER_CORE_RANGE_API"]}
            _insert(connection, f"rocpd_track{suffix}", threads | {"tid": made.pid})
            rows = zip(marked["start"].tolist(), numbers, strict=True)
            into = ("timestamp", "event_id")
            _many(connection, f"rocpd_sample{suffix}", into, rows, {"track_id": 1})
        both = made.collectives
        size = both["start"].size
        if made.labelled:
            pairs = zip(both["bytes"].tolist(), both["sequence"].tolist(), strict=True)
            messages = [collective_range(made, *pair)[0] for pair in pairs]
            texts_of = [json.dumps({"message": text}) for text in messages]
            region("MARKER_CORE_RANGE_API", both, ["roctxThreadRangeA"] * size, texts_of)
            both = _none(both)
            size = 0
        numbers = region("RCCL_API", both, ["ncclAllReduce"] * size, ["{}"] * size)
        given = [(e, b // 2) for e, b in zip(numbers, both["bytes"].tolist(), strict=True)]
        arguments = [
            row
            for at, items in given
            for row in (
                (at, 2, "unsigned long", "count", str(items)),
                (at, 3, "ncclDataType_t", "datatype", "9"),
                (at, 4, "ncclRedOp_t", "op", "0"),
                (at, 5, "ncclComm*", "comm", "0x7f0000001000"),
            )
        ]
        into = ("event_id", "position", "type", "name", "value")
        _many(connection, f"rocpd_arg{suffix}", into, arguments)

        for batch in _column_batches(made.kernels, made.shuffled):
            numbers = event("KERNEL_DISPATCH", batch)
            keys = ("start", "end", "name", "device", "stream", "thread", "grid", "block")
            lists = [batch[key].tolist() for key in keys]
            fixed = {**own, "queue_id": 0, "workgroup_size_y": 1, "workgroup_size_z": 1}
            fixed |= {"grid_size_y": 1, "grid_size_z": 1, "private_segment_size": 0}
            fixed |= {"group_segment_size": 16384, "region_name_id": number[""]}
            columns = ("start", "end", "kernel_id", "agent_id", "stream_id", "tid")
            columns += ("workgroup_size_x", "grid_size_x", "event_id", "dispatch_id")
            made_rows = (
                (s, e, n + 1, d + 1, q, made.pid + t, b, g * b, i, i)
                for s, e, n, d, q, t, g, b, i in zip(*lists, numbers, strict=True)
            )
            _many(connection, f"rocpd_kernel_dispatch{suffix}", columns, made_rows, fixed)
        copies = made.copies
        numbers = event("MEMORY_COPY", copies)
        keys = ("start", "end", "device", "stream", "thread", "bytes")
        rows = zip(*[copies[key].tolist() for key in keys], numbers, strict=True)
        moved = ((s, e, d + 1, q, made.pid + t, b, i) for s, e, d, q, t, b, i in rows)
        into = ("start", "end", "dst_agent_id", "stream_id", "tid", "size", "event_id")
        fixed = {**own, "src_agent_id": 0, "name_id": number["MEMORY_COPY_HOST_TO_DEVICE"]}
        _many(connection, f"rocpd_memory_copy{suffix}", into, moved, fixed)
        if made.sets["start"].size:
            raise ValueError("rocpd has no memsets")
    connection.close()
    return path


# --- Kineto

BASE_NS = 1_790_857_026_000_000_000


def write_kineto(made: Timeline, path: Path, *, vendor: str = "cuda") -> Path:
    """The timeline as torch 2.13's profiler writes it (``export_chrome_trace``).

    The layout is that of a trace of torch 2.13 on a CPU, and of the recordings of GPUs that have
    kernels (HolisticTraceAnalysis and TraceLens, MIT).
    """
    runtime = "cuda_runtime"  # Kineto's word on ROCm too
    head = {
        "schemaVersion": 1,
        "deviceProperties": [
            {
                "id": device,
                "name": made.device_name,
                "totalGlobalMem": 80 << 30,
                "computeMajor": 9,
                "computeMinor": 0,
                "warpSize": 32 if vendor == "cuda" else 64,
                "numSms": 100,
            }
            for device in range(made.devices)
        ],
    }
    version: dict[str, Any] = {"cupti_version": 28, "cuda_runtime_version": 13000}
    head |= version if vendor == "cuda" else {"roctracer_version": 4.1, "hip_runtime_version": 7}
    if made.rank is not None:
        head["distributedInfo"] = {"rank": made.rank, "world_size": made.world_size}
    head |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
    with path.open("w") as file:
        file.write(json.dumps(head, indent=1)[:-2] + ',\n"traceEvents": [\n')
        file.write(_meta("process_name", made.pid, 0, {"name": "python"}))
        file.write(_meta("process_labels", made.pid, 0, {"labels": "CPU"}))
        for device in range(made.devices):
            file.write(_meta("process_name", device, 0, {"name": "python"}))
            file.write(_meta("process_labels", device, 0, {"labels": f"GPU {device}"}))
        _kineto_host(made, file, runtime)
        names = [json.dumps(name) for name in made.names]
        sizes: Sequence[tuple[str, Columns]] = (("gpu_memcpy", made.copies),)
        for category, columns in (*sizes, ("gpu_memset", made.sets)):
            text = "Memcpy HtoD (Pinned -> Device)" if columns is made.copies else "Memset (Device)"
            keys = ("start", "end", "device", "stream", "correlation", "bytes")
            for start, end, device, stream, correlation, size in _rows(columns, keys):
                file.write(
                    f'{{"ph":"X","cat":"{category}","name":"{text}","pid":{device},"tid":{stream},'
                    f'"ts":{_us(start)},"dur":{_us(end - start)},"args":{{"device":{device},'
                    f'"context":1,"stream":{stream},"correlation":{correlation},"bytes":{size}}}}},\n'
                )
        keys = ("start", "end", "name", "device", "stream", "correlation", "grid", "block")
        for batch in _column_batches(made.kernels, made.shuffled):
            file.write(
                "".join(
                    f'{{"ph":"X","cat":"kernel","name":{names[name]},"pid":{device},"tid":{stream},'
                    f'"ts":{_us(start)},"dur":{_us(end - start)},"args":{{"External id":'
                    f'{correlation},"queued":0,"device":{device},"context":1,"stream":{stream},'
                    f'"correlation":{correlation},"registers per thread":32,"shared memory":16384,'
                    f'"blocks per SM":1.5,"warps per SM":12.0,"grid":[{grid},1,1],'
                    f'"block":[{block},1,1],"est. achieved occupancy %":30}}}},\n'
                    for start, end, name, device, stream, correlation, grid, block in _rows(
                        batch, keys
                    )
                )
            )
        at = _us(int(made.kernels["end"].max(initial=0)))
        file.write(
            '{"ph":"i","s":"g","name":"Record Window End","pid":"","tid":"",'
            f'"ts":{at}}}\n],"traceName":"trace.json"}}\n'
        )
    return path


def _kineto_host(made: Timeline, file: TextIO, runtime: str) -> None:
    pid = made.pid
    for start, end, name, thread in _rows(made.ranges, ("start", "end", "name", "thread")):
        if start == end:
            raise ValueError("Kineto's JSON has no marks of the program")
        file.write(
            f'{{"ph":"X","cat":"user_annotation","name":{json.dumps(made.names[name])},'
            f'"pid":{pid},"tid":{pid + thread},"ts":{_us(start)},"dur":{_us(end - start)},'
            '"args":{"Record function id":0}},\n'
        )
    keys = ("start", "end", "thread", "bytes", "sequence")
    for start, end, thread, size, sequence in _rows(made.collectives, keys):
        if made.labelled:
            name = json.dumps(collective_range(made, size, sequence)[0])
            file.write(
                f'{{"ph":"X","cat":"user_annotation","name":{name},"pid":{pid},'
                f'"tid":{pid + thread},"ts":{_us(start)},"dur":{_us(end - start)},"args":{{}}}},\n'
            )
            continue
        arguments = {"Collective name": "allreduce", "dtype": "BFloat16"}
        arguments |= {"In msg nelems": size // 2, "Out msg nelems": size // 2, "Seq": sequence}
        arguments |= {"Group size": made.world_size or 1, "Process Group Name": "0"}
        file.write(
            f'{{"ph":"X","cat":"cpu_op","name":"record_param_comms","pid":{pid},'
            f'"tid":{pid + thread},"ts":{_us(start)},"dur":{_us(end - start)},'
            f'"args":{json.dumps(arguments)}}},\n'
        )
    keys = ("start", "end", "name", "thread", "correlation")
    for start, end, name, thread, correlation in _rows(made.calls, keys):
        file.write(
            f'{{"ph":"X","cat":"{runtime}","name":"{made.names[name]}","pid":{pid},'
            f'"tid":{pid + thread},"ts":{_us(start)},"dur":{_us(end - start)},'
            f'"args":{{"External id":{correlation},"cbid":211,"correlation":{correlation}}}}},\n'
        )


def _meta(name: str, pid: int, tid: int, arguments: Mapping[str, str]) -> str:
    event = {"ph": "M", "name": name, "ts": 0.0, "pid": pid, "tid": tid, "args": arguments}
    return json.dumps(event) + ",\n"


def _us(ns: int) -> str:
    """Nanoseconds as microseconds with three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


# --- writing rows


def _open(path: Path) -> sqlite3.Connection:
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    for pragma in ("journal_mode=off", "synchronous=off", "cache_size=-65536"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _column_batches(columns: Columns, order: NDArray[np.int64] | None = None) -> Iterator[Columns]:
    size = columns["start"].size
    for at in range(0, size, BATCH):
        chosen: Any = slice(at, at + BATCH) if order is None else order[at : at + BATCH]
        yield {key: value[chosen] for key, value in columns.items()}


def _rows(columns: Columns, keys: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for batch in _column_batches(columns):
        yield from zip(*[batch[key].tolist() for key in keys], strict=True)


def _batches(
    columns: Columns, keys: Sequence[str], order: NDArray[np.int64] | None = None
) -> Iterator[Iterator[tuple[Any, ...]]]:
    for batch in _column_batches(columns, order):
        yield zip(*[batch[key].tolist() for key in keys], strict=True)


def _fill(
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    batches: Iterator[Iterator[tuple[Any, ...]]],
    fixed: Mapping[str, Any],
    change: Callable[[Iterator[Any]], Iterator[Any]] = iter,
) -> None:
    for rows in batches:
        _many(connection, table, columns, change(rows), fixed)


def _many(
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    rows: Iterator[Any] | Sequence[Any] | Any,
    fixed: Mapping[str, Any] | None = None,
) -> None:
    """Rows of ``columns``; the columns in ``fixed`` have one value in all of them."""
    constant = dict(fixed or {})
    names = ", ".join(f'"{name}"' for name in (*columns, *constant))
    marks = ", ".join((*["?"] * len(columns), *[_literal(each) for each in constant.values()]))
    connection.executemany(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', rows)  # noqa: S608


def _insert(connection: sqlite3.Connection, table: str, values: Mapping[str, Any]) -> None:
    _many(connection, table, tuple(values), [tuple(values.values())])


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, str) else str(value)


WRITERS = {"nsys": write_nsys, "rocpd": write_rocpd, "kineto": write_kineto}

if __name__ == "__main__":
    WRITERS[sys.argv[1]](timeline(int(sys.argv[2])), Path(sys.argv[3]))  # type: ignore[operator]
