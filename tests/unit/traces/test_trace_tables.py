"""The readers of tables and JSON of both vendors' profilers: recordings, and authored texts.

Authored texts follow the pages that the readers name as their source; no tool wrote them.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("msgspec")

from portagpu.facts.captures.text_tables import batches, decimal_mark, number, whole_number
from portagpu.facts.readings import FormatError
from portagpu.traces.analysis import reading
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.facts.captures.model import Capture

RECORDINGS = ROOT / "tests/recordings"
ROCPROFV3 = RECORDINGS / "rocprofv3"


def read(folder: Path, text: str, name: str = "table.csv") -> Capture:
    path = folder / name
    path.write_text(text, "utf-8")
    return reading.read(path)


def counts(capture: Capture) -> dict[str, int]:
    return {kind: part.num_rows for kind, part in capture.tables.items()}


def totals(capture: Capture) -> list[dict[str, Any]]:
    assert capture.totals is not None
    found: list[dict[str, Any]] = capture.totals.to_pylist()
    return found


def metrics(capture: Capture) -> list[dict[str, Any]]:
    assert capture.metrics is not None
    found: list[dict[str, Any]] = capture.metrics.to_pylist()
    return found


# --- rocprofv3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("docs-kernel_trace.csv", {"kernel": 9}),
        ("docs-memory_copy_trace.csv", {"copy": 4}),
        ("docs-hip_runtime_trace.csv", {"api": 8}),
        ("docs-rccl_trace.csv", {"api": 16, "collective": 5}),
        ("docs-counter_collection.csv", {"kernel": 4}),
        ("hpctrain-agent_info-MI300A.csv", {"kernel": 9}),
        ("mi350x-train.json.gz", {"kernel": 400}),
    ],
)
def test_a_recording_of_rocprofv3_has_its_events(name: str, expected: dict[str, int]) -> None:
    capture = reading.read(ROCPROFV3 / name)
    assert counts(capture) == expected
    assert (capture.problems, capture.dropped) == ((), 0)


def test_grids_of_rocprofv3_become_blocks() -> None:
    kernels = reading.read(ROCPROFV3 / "docs-kernel_trace.csv").tables["kernel"].to_pylist()
    # 1024 work-items of 64 in the file
    assert {(e["grid_x"], e["grid_y"], e["block_x"]) for e in kernels} == {(16, 1024, 64)}
    assert sum(e["end_ns"] - e["start_ns"] for e in kernels) == 96160
    counted = reading.read(ROCPROFV3 / "docs-counter_collection.csv")
    assert {e["grid_x"] for e in counted.tables["kernel"].to_pylist()} == {1048576 // 64}
    assert [(e["launch"], e["metric"], e["value"]) for e in metrics(counted)] == [
        (launch, "SQ_WAVES", 16384.0) for launch in (1, 2, 3, 4)
    ]


def test_copies_and_collectives_of_rocprofv3_are_named_in_the_same_way() -> None:
    copies = reading.read(ROCPROFV3 / "docs-memory_copy_trace.csv").tables["copy"].to_pylist()
    assert [e["copy_kind"] for e in copies] == ["HtoD", "HtoD", "DtoH", "DtoH"]
    assert {e["device"] for e in copies} == {4}
    rccl = reading.read(ROCPROFV3 / "docs-rccl_trace.csv").tables["collective"].to_pylist()
    assert {e["operation"] for e in rccl} == {"all_reduce"}


def test_agents_in_the_same_file_or_next_to_it_number_the_gpus(tmp_path: Path) -> None:
    both = reading.read(ROCPROFV3 / "hpctrain-agent_info-MI300A.csv")
    assert [each.name for each in both.devices] == ["AMD Instinct MI300A"] * 4
    assert (both.devices[0].architecture, both.devices[0].units) == ("gfx942", 228)
    assert {e["device"] for e in both.tables["kernel"].to_pylist()} == {0}
    assert both.tables["kernel"].to_pylist()[0]["grid_x"] == 233472 // 256
    text = (ROCPROFV3 / "hpctrain-agent_info-MI300A.csv").read_text()
    (tmp_path / "77_agent_info.csv").write_text(text.partition('"Kind"')[0])
    trace = (ROCPROFV3 / "docs-kernel_trace.csv").read_text()
    apart = read(tmp_path, trace, "77_kernel_trace.csv")
    assert {e["device"] for e in apart.tables["kernel"].to_pylist()} == {0}, "Agent 4 is GPU 0"
    assert [each.pid for each in apart.processes] == [77]
    alone = read(tmp_path, trace, "78_kernel_trace.csv")
    assert {e["device"] for e in alone.tables["kernel"].to_pylist()} == {4}


@pytest.mark.parametrize(
    ("name", "lines", "kind", "first", "calls", "total_ns"),
    [
        ("docs-hip_api_stats.csv", 17, "api", "hipStreamCreateWithFlags", 4, 262497406),
        ("hpctrain-hip_api_stats-jacobi.csv", 22, "api", "hipMemcpy", 1005, 1248355080),
        ("hpctrain-kernel_stats-jacobi.csv", 7, "kernel", "JacobiIterationKernel", 1000, 545275480),
        ("hpctrain-rocpd-summary-text.txt", 4, "kernel", "__omp_offloading", 1001, 92043050),
        ("docs-summary.txt", 57, "api", "hsa_queue_create", 4, 280077621),
    ],
)
def test_totals_of_rocprofv3_are_read(
    name: str, lines: int, kind: str, first: str, calls: int, total_ns: int
) -> None:
    capture = reading.read(ROCPROFV3 / name)
    found = totals(capture)
    assert (len(found), capture.dropped) == (lines, 0)
    assert (found[0]["kind"], found[0]["calls"], found[0]["total_ns"]) == (kind, calls, total_ns)
    assert found[0]["name"].startswith(first)


def test_the_summary_of_all_domains_is_not_counted_twice() -> None:
    found = totals(reading.read(ROCPROFV3 / "docs-summary.txt"))
    queues = [e for e in found if e["name"] == "hsa_queue_create"]
    kernels = [e["total_ns"] for e in found if e["kind"] == "kernel"]
    copies = {e["name"]: e["total_ns"] for e in found if e["kind"] == "copy"}
    assert len(queues) == 1
    assert sum(kernels) == 184324 + 94482 + 91763 + 82521
    assert copies == {"Memcpy HtoD": 3691929, "Memcpy DtoH": 626417}


def test_names_and_devices_stand_apart_in_the_json_of_rocprofv3() -> None:
    capture = reading.read(ROCPROFV3 / "mi350x-train.json.gz")
    assert len(capture.devices) == 8
    assert {(d.name, d.architecture, d.units) for d in capture.devices} == {
        ("AMD Instinct MI350X", "gfx950", 256)
    }
    assert capture.span_ns == (63855948165371, 63875155697841)
    kernels = capture.tables["kernel"].to_pylist()
    first = kernels[0]
    assert first["name"] == "__amd_rocclr_copyBuffer"
    assert (first["start_ns"], first["end_ns"]) == (63857982592000, 63857982594840)
    assert (first["grid_x"], first["block_x"], first["device"]) == (1, 512, 0)
    with gzip.open(ROCPROFV3 / "mi350x-train.json.gz") as file:
        records = json.load(file)["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"]
    assert sum(e["end_ns"] - e["start_ns"] for e in kernels) == sum(
        e["end_timestamp"] - e["start_timestamp"] for e in records
    )


def test_calls_copies_and_ranges_of_the_json_have_their_names(tmp_path: Path) -> None:
    def record(kind: int, operation: int, start: int, **more: Any) -> dict[str, Any]:
        made = {"kind": kind, "operation": operation, "thread_id": 5}
        made["correlation_id"] = {"internal": start, "external": 0}  # type: ignore[assignment]
        return made | {"start_timestamp": start, "end_timestamp": start + 10} | more

    copy = record(2, 2, 20, bytes=4096, src_agent_id={"handle": 8}, dst_agent_id={"handle": 9})
    names = ["NONE", "MEMORY_COPY_HOST_TO_HOST", "MEMORY_COPY_HOST_TO_DEVICE"]
    document = {
        "metadata": {"pid": 3},
        "agents": [{"id": {"handle": 8}, "type": 1}, {"id": {"handle": 9}, "type": 2}],
        "strings": {
            "buffer_records": [
                {"kind": "HIP", "operations": ["hipMalloc"]},
                {"kind": "RCCL", "operations": ["ncclAllReduce", "ncclGroupStart"]},
                {"kind": "MEMORY_COPY", "operations": names},
                {"kind": "MARKER", "operations": ["roctxRangePushA"]},
            ],
            "marker_api": [{"key": 40, "value": "step <1>"}],
        },
        "buffer_records": {
            "hip_api": [record(0, 0, 10), record(0, 0, 15, end_timestamp=1)],
            "rccl_api": [record(1, 0, 30), record(1, 1, 35)],
            "memory_copy": [copy],
            "marker_api": [record(3, 0, 40)],
            "kernel_dispatch": [],
        },
    }
    text = json.dumps({"rocprofiler-sdk-tool": [document]})
    capture = read(tmp_path, text, "out.json")
    assert counts(capture) == {"kernel": 0, "copy": 1, "api": 2, "range": 1, "collective": 1}
    (found,) = capture.tables["copy"].to_pylist()
    assert (found["copy_kind"], found["bytes"], found["device"]) == ("HtoD", 4096, 0)
    assert capture.tables["range"].to_pylist()[0]["name"] == "step <1>"
    assert capture.tables["collective"].to_pylist()[0]["operation"] == "all_reduce"
    assert capture.dropped == 1


# --- rocprof, rocprofv2, rocprof-compute


@pytest.mark.parametrize(("machine", "kernels"), [("MI100", 3), ("MI200", 3), ("MI300X_A1", 0)])
def test_timestamps_of_rocprof_compute_are_kernels(machine: str, kernels: int) -> None:
    capture = reading.read(RECORDINGS / "rocprof-compute" / f"{machine}-timestamps.csv")
    assert counts(capture) == {"kernel": kernels}
    # in the file of the MI300X a spreadsheet rounded all times to 8.1097E+14
    assert capture.dropped == 3 - kernels
    for each in capture.tables["kernel"].to_pylist():
        assert (each["grid_x"], each["block_x"], each["device"]) == (4096, 256, 2)
        assert each["name"] == "vecCopy(double*, double*, double*, int, int)"


def test_counters_of_rocprof_compute_are_metrics() -> None:
    capture = reading.read(RECORDINGS / "rocprof-compute" / "MI200-pmc_perf.csv.gz")
    found = metrics(capture)
    assert {each["launch"] for each in found} == {0, 1, 2}
    assert len(found) == 2916
    assert counts(capture) == {"kernel": 3}


LONG_HEAD = (
    "GPU_ID,GUID,Correlation_Id,Dispatch_ID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,"
    "Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,Kernel_Name,Start_Timestamp,End_Timestamp,"
    "Kernel_ID,Counter_Name,Counter_Value\n"
)


def long_row(dispatch: int, start: int, counter: str, device: int = 1) -> str:
    launch = f"{device},5f,{dispatch + 1},{dispatch},4096,256,0,0,8,0,128"
    return f'{launch},"copy(int, int)",{start},{start + 10},0,{counter},{start}.0\n'


def test_a_launch_with_a_row_for_each_counter_counts_once(tmp_path: Path) -> None:
    rows = [
        long_row(dispatch, 1000 * device + 100 * dispatch, f"C{counter}", device)
        for counter in range(5)
        for device in (1, 2)
        for dispatch in (0, 1, 2)
    ]
    for order in (rows, sorted(rows), rows[::-1]):
        capture = read(tmp_path, LONG_HEAD + "".join(order), "results_pmc_perf_0.csv")
        kernels = capture.tables["kernel"].to_pylist()
        assert sorted(each["start_ns"] for each in kernels) == [
            1000, 1100, 1200, 2000, 2100, 2200,
        ]  # fmt: skip
        assert {(e["name"], e["grid_x"]) for e in kernels} == {("copy(int, int)", 16)}
        assert len(metrics(capture)) == 30
        assert (capture.dropped, capture.problems) == (0, ())


def test_passes_in_one_table_are_measured_again(tmp_path: Path) -> None:
    passes = [long_row(0, start, f"C{start}") for start in (100, 200, 300)]
    capture = read(tmp_path, LONG_HEAD + "".join(passes), "pmc_perf.csv")
    assert [each["start_ns"] for each in capture.tables["kernel"].to_pylist()] == [100]
    assert [each["metric"] for each in metrics(capture)] == ["C100", "C200", "C300"]
    assert "2 dispatches were measured again" in "".join(capture.problems)


def test_sums_of_whole_domains_are_no_kernels(tmp_path: Path) -> None:
    # the form of amd/HPCTrainingExamples, rocprofv3 --stats --hip-trace
    capture = read(
        tmp_path,
        '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n'
        '"HIP_API",24044,1660103043,69044.3,60.00,79,297454413,1941729.9\n'
        '"KERNEL_DISPATCH",10,1000,100.0,40.00,1,500,5.0\n',
        "77_domain_stats.csv",
    )
    assert capture.totals is None
    assert capture.details["all of HIP_API"] == "24,044 calls, 1,660,103,043 ns"
    assert (capture.dropped, capture.problems) == (0, ())


def test_text_of_rocprofv2_is_read() -> None:
    capture = reading.read(RECORDINGS / "rocprofv2" / "rocprofv2-hsa_async_copy.txt")
    assert counts(capture) == {"copy": 6, "api": 64}
    first = capture.tables["copy"].to_pylist()[0]
    assert (first["start_ns"], first["end_ns"]) == (947405228918635, 947405228926155)


def test_tables_of_rocprof_are_read(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        '"Index","KernelName","gpu-id","queue-id","queue-index","pid","tid","grd","wgr","lds",'
        '"scr","arch_vgpr","accum_vgpr","sgpr","wave_size","sig","obj","DispatchNs","BeginNs",'
        '"EndNs","CompleteNs","DurationNs"\n'
        '0,"add [clone .kd]",2,0,0,33,34,1000,256,512,0,28,4,32,64,"0x0","0x7f",10,20,30,40,10\n'
        '1,"late",2,0,0,33,34,256,256,0,0,28,4,32,64,"0x0","0x7f",10,30,20,40,10\n',
        "results.csv",
    )
    (found,) = trace.tables["kernel"].to_pylist()
    assert (found["name"], found["grid_x"], found["registers"]) == ("add", 4, 32)
    assert (trace.dropped, trace.metrics) == (1, None)
    sums = totals(
        read(
            tmp_path,
            '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'
            '"CopyDeviceToHost",4,671000,167750,97.8\n"hipMalloc",1,100,100,1.0\n"add",1,9,9,1.2\n',
            "results.stats.csv",
        )
    )
    assert [(each["kind"], each["name"]) for each in sums] == [
        ("copy", "Memcpy DtoH"),
        ("api", "hipMalloc"),
        ("kernel", "add"),
    ]


def test_json_of_rocprof_is_read_by_its_lanes(tmp_path: Path) -> None:
    def event(name: str, lane: str, **more: str) -> dict[str, Any]:
        args = {"BeginNs": "773902396463126", "EndNs": "773902396471606", "pid": "5", "tid": "6"}
        made = {"ph": "X", "name": name, "pid": lane, "tid": "1", "ts": "773902396463", "dur": "8"}
        return made | {"args": args | more}

    lanes = [
        {"args": {"name": name}, "ph": "M", "pid": pid, "name": "process_name"}
        for pid, name in ((2, "CPU HIP API"), (1, "COPY"), (8, "GPU2"))
    ]
    on_device = {"dev-id": "2", "queue-id": "0", "stream-id": "1"}
    events = [
        {},
        *lanes,
        event("CopyHostToDevice", "1", **on_device),
        event("hipMalloc", "2"),
        event("add", "8", **on_device),
        event("add", "8", **on_device | {"EndNs": "1"}),
    ]
    capture = read(tmp_path, json.dumps({"traceEvents": events, "otherData": {}}), "results.json")
    assert capture.source.format == "rocprof"
    assert counts(capture) == {"copy": 1, "api": 1, "kernel": 1}
    (found,) = capture.tables["kernel"].to_pylist()
    assert (found["start_ns"], found["end_ns"]) == (773902396463126, 773902396471606)
    assert (found["device"], found["stream"], found["pid"]) == (2, 1, 5)
    assert capture.dropped == 1


# --- nsys stats

NSYS_TEXT = """Generating SQLite file run.sqlite from run.nsys-rep
Processing [run.sqlite] with [/nsys/reports/cuda_gpu_kern_sum.py]...

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)  Instances  Avg (ns)  Med (ns)  Min (ns)  Max (ns)  StdDev (ns)  Name
 --------  ---------------  ---------  ---------  ---------  --------  --------  -----------  ----
 75.5  12,345,678  100  123,456.8  120,000.0  100,000  150,000  10,000.5  gemm<int, 4>(int)
 24.5  4,006,172  10  400,617.2  400,000.0  390,000  410,000  1,000.0  ncclDevKernel_AllReduce

Processing [run.sqlite] with [/nsys/reports/osrt_sum.py]...

 Time (%)  Total Time (ns)  Num Calls  Avg (ns)  Med (ns)  Min (ns)  Max (ns)  StdDev (ns)  Name
 --------  ---------------  ---------  --------  --------  --------  --------  -----------  ----
 100.0  100  1  100.0  100.0  100  100  0.0  poll
"""
NSYS_CSV = """Processing [run.sqlite] with [/nsys/reports/cuda_gpu_kern_sum.py]...

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
75.5,12345678,100,123456.8,120000.0,100000,150000,10000.5,"gemm<int, 4>(int)"
24.5,4006172,10,400617.2,400000.0,390000,410000,1000.0,ncclDevKernel_AllReduce
Processing [run.sqlite] with [/nsys/reports/cuda_gpu_mem_time_sum.py]...

Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation
90.1,1000,2,500.0,500.0,400,600,100.0,[CUDA memcpy Host-to-Device]
9.9,100,1,100.0,100.0,100,100,0.0,[CUDA memset]
"""
GERMAN = """Time (%);Total Time (ns);Instances;Avg (ns);Med (ns);Min (ns);Max (ns);StdDev (ns);Name
75,5;12.345.678;100;123.456,8;120.000,0;100.000;150.000;10.000,5;gemm<int, 4>(int)
24,5;4.006.172;10;400.617,2;400.000,0;390.000;410.000;1.000,0;ncclDevKernel_AllReduce
"""


@pytest.mark.parametrize("text", [NSYS_TEXT, NSYS_CSV, GERMAN, NSYS_CSV.replace("\n", "\r\n")])
def test_kernels_of_nsys_stats_are_the_same_in_every_form(tmp_path: Path, text: str) -> None:
    capture = read(tmp_path, text, "stats.txt")
    kernels = [each for each in totals(capture) if each["kind"] == "kernel"]
    assert [(e["name"], e["calls"], e["total_ns"], e["min_ns"]) for e in kernels] == [
        ("gemm<int, 4>(int)", 100, 12345678, 100000),
        ("ncclDevKernel_AllReduce", 10, 4006172, 390000),
    ]
    assert [e["median_ns"] for e in kernels] == [120000.0, 400000.0]
    assert [e["stddev_ns"] for e in kernels] == [10000.5, 1000.0]
    assert capture.dropped == 0
    assert not [e for e in totals(capture) if e["name"] == "poll"]


def test_progress_lines_of_nsys_stats_are_no_rows(tmp_path: Path) -> None:
    # between and after tables, as nsys 2022 to 2025 print them
    lines = (
        "SKIPPED: run.sqlite does not contain NV Tools Extension (NVTX) data.",
        "Exporting 640388 events: [=====================100%]",
        "Using run.sqlite for SQL queries.",
        "Generated:",
        "        /data/run.nsys-rep",
        "        /data/run.sqlite",
    )
    said = "\n".join(lines) + "\n"
    for text in (NSYS_TEXT, NSYS_CSV):
        plain = read(tmp_path, text, "stats.txt")
        noisy = read(tmp_path, text.replace("\n\n", f"\n{said}\n") + said, "stats.txt")
        assert totals(noisy) == totals(plain)
        assert (noisy.dropped, noisy.problems) == (0, ())


def test_copies_of_nsys_stats_have_their_direction(tmp_path: Path) -> None:
    found = [e for e in totals(read(tmp_path, NSYS_CSV)) if e["kind"] != "kernel"]
    assert [(e["kind"], e["name"], e["calls"]) for e in found] == [
        ("copy", "Memcpy HtoD", 2),
        ("set", "Memset", 1),
    ]


def test_the_trace_of_nsys_stats_has_events(tmp_path: Path) -> None:
    capture = read(
        tmp_path,
        "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),"
        "DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,Strm,Name\n"
        "100,50,7,8,1,1,128,1,1,32,0.001,0.002,,,,,NVIDIA H100 (1),1,13,gemm\n"
        "200,25,8,,,,,,,,,,1.5,60000,Pageable,Device,NVIDIA H100 (1),1,13,"
        "[CUDA memcpy Host-to-Device]\n"
        "300,-1,9,8,1,1,128,1,1,32,0.0,0.0,,,,,NVIDIA H100 (1),1,13,gemm\n",
    )
    assert counts(capture) == {"kernel": 1, "copy": 1, "set": 0}
    (kernel,) = capture.tables["kernel"].to_pylist()
    assert (kernel["start_ns"], kernel["end_ns"], kernel["shared_bytes"]) == (100, 150, 3000)
    assert (kernel["device"], kernel["stream"], kernel["grid_x"]) == (1, 13, 8)
    (copy,) = capture.tables["copy"].to_pylist()
    assert (copy["bytes"], copy["copy_kind"], copy["name"]) == (1_500_000, "HtoD", "Memcpy HtoD")
    assert capture.devices[0].name == "NVIDIA H100"
    assert capture.dropped == 1


@pytest.mark.parametrize(
    ("cells", "mark"),
    [
        (["1.234,5"], ","),
        (["1,234.5"], "."),
        (["12.345.678"], ","),
        (["12,345,678"], "."),
        (["75,5", "1.000"], ","),
        (["4.671e-04"], "."),
        (["100"], "."),
    ],
)
def test_the_notation_of_numbers_is_found(cells: list[str], mark: str) -> None:
    assert decimal_mark(cells) == mark


def test_numbers_of_any_notation_are_read() -> None:
    assert {number("1.234,5", ","), number("1,234.5"), number("1 234.5")} == {1234.5}
    assert whole_number("12.345.678", ",") == 12345678
    assert whole_number("9007199254740993") == 9007199254740993
    assert number("nan") is number("inf") is number("1e999") is number("") is None
    assert whole_number("9" * 400) is None


# --- ncu

NCU_RAW = """==PROF== Connected to process 1234 (/usr/bin/python)
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",\
"Grid Size","Device","CC","dram__bytes.sum","sm__warps_active.avg"
"","","","","","","","","","","","Mbyte","%"
"0","1234","python","127.0.0.1","gemm(int, float *)","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0",\
"1,234.50","12.30"
"1","1234","python","127.0.0.1","add","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0","2.50","n/a"
"""
NCU_DETAILS = """"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",\
"Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","1234","python","127.0.0.1","gemm(int, float *)","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0",\
"Memory","dram__bytes.sum","Mbyte","1,234.50"
"1","1234","python","127.0.0.1","add","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0",\
"Memory","dram__bytes.sum","Mbyte","2.50"
"""


@pytest.mark.parametrize("text", [NCU_RAW, NCU_DETAILS])
def test_metrics_of_ncu_are_the_same_on_both_pages(tmp_path: Path, text: str) -> None:
    capture = read(tmp_path, text)
    found = [each for each in metrics(capture) if each["metric"] == "dram__bytes.sum"]
    assert [(e["launch"], e["name"], e["unit"], e["value"], e["device"]) for e in found] == [
        (0, "gemm(int, float *)", "Mbyte", 1234.5, 0),
        (1, "add", "Mbyte", 2.5, 0),
    ]
    assert [each.pid for each in capture.processes] == [1234]


def test_rows_of_ncu_that_stop_before_the_columns_of_rules_are_read(tmp_path: Path) -> None:
    head, *rows = NCU_DETAILS.splitlines()
    rules = (
        ',"Rule Name","Rule Type","Rule Description","Estimated Speedup Type","Estimated Speedup"'
    )
    rule = (
        ',"0","9.0","SpeedOfLight","","","","SOLBottleneck","OPT","Use more, of it","global","34"'
    )
    advice = rows[0].partition(',"0","9.0"')[0] + rule
    for end in ("", ',"","","",""', ',"","","","",""'):
        text = "\n".join([head + rules, rows[0] + end, advice, rows[1] + end, ""])
        capture = read(tmp_path, text)
        assert [(e["launch"], e["value"]) for e in metrics(capture)] == [(0, 1234.5), (1, 2.5)]
        assert (capture.dropped, capture.problems) == (0, ())
    cut = read(tmp_path, "\n".join([head + rules, rows[0], rows[1][:-2]]))
    assert [(e["launch"], e["value"]) for e in metrics(cut)] == [(0, 1234.5)]
    assert "breaks off in its last line" in "".join(cut.problems)


@pytest.mark.parametrize("page", ["details", "raw"])
def test_times_of_ncu_are_sums_of_kernels(tmp_path: Path, page: str) -> None:
    time = '"SOL","gpu__time_duration.sum","usecond","{}"'
    head, first, second = NCU_DETAILS.splitlines()
    rows = [first, second, *(first.replace("0", str(n), 1) for n in (2, 3))]
    if page == "details":
        timed = [r.rpartition('"Memory"')[0] + time.format(n + 1) for n, r in enumerate(rows)]
        # Nsight Compute shows the time in another section too
        again = timed[0].replace("SOL", "Launch").replace("gpu__time_duration.sum", "Duration")
        text = "\n".join([head, *rows, *timed, again, "==PROF== Disconnected from process 1234"])
    else:
        head = head.partition(',"Section')[0] + ',"gpu__time_duration.sum"'
        timed = [r.partition(',"Memory"')[0] + f',"{n + 1}"' for n, r in enumerate(rows)]
        text = "\n".join([head, ",".join(['""'] * 11) + ',"usecond"', *timed, ""])
    capture = read(tmp_path, text)
    assert capture.totals is not None
    found = {each["name"]: each for each in capture.totals.to_pylist()}
    gemm = found["gemm(int, float *)"]
    assert (gemm["calls"], gemm["total_ns"], gemm["median_ns"], gemm["max_ns"]) == (
        3, 8000, 3000.0, 4000,
    )  # fmt: skip
    assert (found["add"]["calls"], found["add"]["total_ns"]) == (1, 2000)
    assert (capture.dropped, capture.problems) == (0, ())


# --- what no reader knows


@pytest.mark.parametrize("text", ["a,b,c\n1,2,3\n", "{}", "Name\n", "\x00" * 100])
def test_a_file_of_something_else_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(FormatError) as found:
        read(tmp_path, text, "other.txt")
    assert "no reader knows this file" in str(found.value)
    assert "\n" not in str(found.value)


def test_a_batch_of_wide_rows_has_fewer_of_them() -> None:
    wide = ([""] * 1_000_000 for _ in range(12))
    assert max(map(len, batches(wide))) < 6
