"""What bounds a run: captures that are each bound by one thing, and ones that lack data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")

from portagpu.facts.captures.model import (
    METRIC_COLUMNS,
    Capture,
    CapturedDevice,
    Source,
    ToolMessage,
    table,
)
from portagpu.facts.vendors import problems
from portagpu.runs.results.verdicts import Verdict
from portagpu.traces.analysis.diagnose import CANNOT, diagnose, known_findings, own_table, threshold
from tests.support.trace_summaries import MS, collectives, device, ranges, rows, summary

if TYPE_CHECKING:
    from portagpu.runs.results.run import Result
    from portagpu.traces.analysis.model import Summary

SOURCE = Source("a", "x")
WAITS = ("input-bound", "launch-bound", "host-bound")
ALL = (*WAITS, "copy-bound", "communication-bound", "memory-bound", "compute-bound")
LOADER = "step/enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def found(given: Summary, *captures: Capture) -> dict[str, Result]:
    """Kind -> its finding."""
    return {each.id.rpartition("/")[2]: each for each in diagnose(given, captures)}


def verdicts(given: Summary, *captures: Capture) -> dict[str, str]:
    return {name: str(each.verdict) for name, each in found(given, *captures).items()}


def bound_by(given: Summary) -> list[str]:
    return [name for name, verdict in verdicts(given).items() if verdict == "FAIL"]


def kernels(number: int, total: float) -> Any:
    return rows(
        [{"name": "gemm", "category": "gemm", "total_ns": int(total * MS), "calls": number}]
    )


INPUT = [{"path": "step", "host_ns": 100 * MS}, {"path": LOADER, "host_ns": 55 * MS}]
NO_INPUT = [{"path": "step", "host_ns": 100 * MS}, {"path": LOADER, "host_ns": 1 * MS}]


def waiting(vendor: str = "cuda", **given: Any) -> Summary:
    """A run whose device is idle for 60 of 100 ms, and nothing explains it."""
    return summary(
        **{
            "devices": (device(busy=40),),
            "rows": kernels(10, 40),
            "ranges": ranges(NO_INPUT),
            "api_ns": {f"{vendor}LaunchKernel": 1 * MS, f"{vendor}StreamSynchronize": 20 * MS},
            **given,
        }
    )


BOUND = {
    "input-bound": waiting(ranges=ranges(INPUT)),
    "launch-bound": waiting(rows=kernels(10_000, 40), api_ns={"cudaLaunchKernel": 50 * MS}),
    "host-bound": waiting(),
    "copy-bound": summary(
        devices=(device(copy=30, exposed_copy=25, compute=70),),
        rows=rows(
            [
                {"kind": "copy", "name": "HtoD", "total_ns": 30 * MS, "bytes": 750 * MS},
                {"name": "gemm", "category": "gemm", "total_ns": 70 * MS},
            ]
        ),
    ),
    "communication-bound": summary(
        devices=(device(communication=40, exposed_communication=30, compute=68),)
    ),
}


@pytest.mark.parametrize("name", BOUND)
def test_a_run_is_bound_by_one_thing_alone(name: str) -> None:
    assert bound_by(BOUND[name]) == [name]


def test_a_busy_device_is_bound_by_none() -> None:
    result = found(summary())
    assert {name: str(each.verdict) for name, each in result.items()} == {
        **dict.fromkeys(ALL[:5], "PASS"),
        "memory-bound": "INCONCLUSIVE",
        "compute-bound": "INCONCLUSIVE",
    }
    assert CANNOT in result["memory-bound"].reason


@pytest.mark.parametrize("vendor", ["cuda", "hip"])
def test_launches_of_both_vendors_are_known(vendor: str) -> None:
    many = waiting(rows=kernels(10_000, 40), api_ns={f"{vendor}LaunchKernel": 50 * MS})
    assert bound_by(many) == ["launch-bound"]
    reason = found(waiting(vendor))["host-bound"].reason
    assert "the host waited 20 ms for the device" in reason


def test_a_finding_has_evidence_threshold_source_and_next_step() -> None:
    result = found(BOUND["input-bound"])["input-bound"]
    assert "idle for 60.0% of 100 ms" in result.reason
    assert "got its input for 55 ms" in result.reason
    assert result.value == 0.6
    assert result.expected is not None
    assert result.expected["reference"] == threshold("idle")[0]
    assert "nsys-ai" in result.expected["source"]
    assert all(result.extra[key] for key in ("cause", "remedy", "source"))


def test_long_kernels_are_not_launch_bound_however_long_launches_take() -> None:
    # the host waits in launches when the queue is full
    blocked = waiting(api_ns={"cudaLaunchKernel": 35 * MS}, rows=kernels(100, 40))
    assert "launch-bound" not in bound_by(blocked)


def test_a_device_that_runs_dry_after_every_short_kernel_is_launch_bound() -> None:
    """Also where the host's time is not in the launch itself, but in what the program does."""
    eager = waiting(devices=(device(busy=5, gaps=900),), rows=kernels(1000, 5))
    assert bound_by(eager) == ["launch-bound"]
    # the time of the first launch, in which the kernel is loaded
    loading = device(busy=5, gaps=900, longest_gap=90)
    assert bound_by(waiting(devices=(loading,), rows=kernels(1000, 5))) == ["host-bound"]


def test_a_copy_is_reported_with_its_rate() -> None:
    reason = found(BOUND["copy-bound"])["copy-bound"].reason
    assert "only copies ran for 25.0%" in reason
    assert "HtoD: 715.3 MiB at 25 GB/s" in reason


def test_the_rank_that_others_wait_for_is_named() -> None:
    rank = {"duration_ns": 1 * MS, "skew_ns": 9 * MS, "last_rank": 3}
    slow = summary(
        devices=BOUND["communication-bound"].devices, collectives=collectives([rank, rank])
    )
    reason = found(slow)["communication-bound"].reason
    assert "up to 18 ms for others, mostly for rank 3" in reason


def test_only_the_devices_that_wait_are_named() -> None:
    two = waiting(devices=(device(), device(busy=40, rank=1)))
    results = diagnose(two)
    assert {each.device for each in results if each.failed} == {"rank 1 device 0"}


@pytest.mark.parametrize(
    ("lacks", "names"),
    [
        ({"events": {"kernel": 1, "copy": 0, "range": 0}}, {"launch-bound"}),
        ({"api_ns": {"mystery": 5}}, {"launch-bound"}),
        ({"events": {"kernel": 1, "copy": 0, "api": 0}}, {"input-bound"}),
        ({"ranges": ranges([{"path": "step", "host_ns": 5}])}, {"input-bound"}),
        ({"events": {"kernel": 1}}, {"launch-bound", "input-bound", "copy-bound"}),
        (
            {"rows": rows([{"name": "Zq7", "category": "unknown", "total_ns": 40 * MS}])},
            {"communication-bound"},
        ),
    ],
)
def test_what_the_capture_lacks_is_not_an_answer(lacks: dict[str, Any], names: set[str]) -> None:
    results = found(waiting(**lacks))
    open_ = {name for name, each in results.items() if each.verdict is Verdict.INCONCLUSIVE}
    assert open_ - {"memory-bound", "compute-bound"} == names
    assert all(CANNOT in results[name].reason for name in names)
    assert all(results[name].extra["remedy"] for name in names)


def test_a_busy_device_needs_no_host_side() -> None:
    """Whoever feeds a device that is never idle does it fast enough."""
    result = verdicts(summary(events={"kernel": 10, "copy": 0}))
    assert [result[name] for name in WAITS] == ["PASS"] * 3


def test_sums_without_events_answer_nothing() -> None:
    results = found(summary(devices=()))
    assert set(results) == set(ALL)
    assert {str(each.verdict) for each in results.values()} == {"INCONCLUSIVE"}
    assert "only the sums" in results["copy-bound"].reason


@pytest.mark.parametrize(
    ("events", "why"),
    [({"operator": 5}, "no record of a device"), ({"kernel": 0}, "no kernel, copy or set")],
)
def test_a_capture_without_a_device_says_so(events: dict[str, int], why: str) -> None:
    results = found(summary(devices=(), rows=rows([]), events=events))
    assert list(results) == ["no-device"]
    assert why in results["no-device"].reason


def test_missing_events_are_a_finding() -> None:
    assert "incomplete" not in found(summary(dropped=0))
    assert "20 of 50 events" in found(summary(dropped=20))["incomplete"].reason
    message = ToolMessage("error", "buffers \x1b[31mfull")
    reported = found(summary(messages=(message,)))["incomplete"].reason
    assert "the profiler said: buffers [31mfull" in reported


def counted(**values: float) -> Capture:
    """One launch with counters: metric -> percent."""
    metrics = {
        "launch": [0] * len(values),
        "name": ["gemm"] * len(values),
        "metric": list(values),
        "unit": ["%" if "throughput" in key else None for key in values],
        "value": list(values.values()),
    }
    return Capture(source=SOURCE, metrics=table(metrics, METRIC_COLUMNS))


SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"


@pytest.mark.parametrize(
    ("counters", "compute", "memory"),
    [
        ({SM: 85, MEMORY: 30}, "UNVERIFIED", "PASS"),
        ({SM: 20, MEMORY: 88}, "PASS", "UNVERIFIED"),
        ({SM: 70, MEMORY: 88}, "PASS", "UNVERIFIED"),
        ({SM: 20, MEMORY: 30}, "PASS", "PASS"),
        ({"MfmaUtil": 75, "VALUBusy": 10, "MemUnitBusy": 40}, "UNVERIFIED", "PASS"),
    ],
)
def test_counters_of_both_vendors_state_the_roof(
    counters: dict[str, float], compute: str, memory: str
) -> None:
    result = verdicts(summary(), counted(**counters))
    assert (result["compute-bound"], result["memory-bound"]) == (compute, memory)


def test_below_both_roofs_are_latencies() -> None:
    reason = found(summary(), counted(**{SM: 20, MEMORY: 30}))["compute-bound"].reason
    assert "latencies" in reason


def test_counters_alone_answer_what_they_can() -> None:
    result = found(summary(devices=(), rows=rows([])), counted(**{SM: 85, MEMORY: 30}))
    assert set(result) == {"compute-bound", "memory-bound"}


def with_flops(flops: float) -> Capture:
    kernel = {"start_ns": [0], "end_ns": [1], "name": ["gemm"], "flops": [flops]}
    return Capture(source=SOURCE, tables={"kernel": table(kernel)})


H100 = CapturedDevice(0, vendor="nvidia", name="NVIDIA H100 80GB HBM3")


def test_flops_are_compared_with_the_peak_of_the_target() -> None:
    # 98 ms of kernels at 700 of 989.4 TFLOPS
    given = summary(hardware=(H100,))
    result = found(given, with_flops(700e12 * 0.098))
    assert result["compute-bound"].value == pytest.approx(700 / 989.4, abs=1e-4)
    assert str(result["compute-bound"].verdict) == "UNVERIFIED"
    assert CANNOT in result["memory-bound"].reason
    assert "nvidia-h100-sxm" in result["compute-bound"].reason
    assert verdicts(given, with_flops(1e12))["compute-bound"] == "PASS"


def test_the_peak_of_an_unknown_device_is_not_guessed() -> None:
    own = CapturedDevice(0, vendor="nvidia", name="Somebody's GPU 9000")
    result = found(summary(hardware=(own,)), with_flops(1e12))
    assert "Somebody's GPU 9000 are not known" in result["compute-bound"].reason
    assert str(result["compute-bound"].verdict) == "INCONCLUSIVE"


def test_the_worst_comes_first() -> None:
    order = [str(each.verdict) for each in diagnose(BOUND["input-bound"])]
    assert order[0] == "FAIL"
    assert order[-1] == "PASS"


def test_every_threshold_and_finding_states_its_source() -> None:
    assert all(each["source"] and each["of"] for each in own_table()["threshold"])
    assert all(each.source and each.remedy and each.means for each in known_findings().values())
    assert not [each for each in problems() if "trace_words" in each]


# ---- from captures


def captured(**tables: list[tuple[float, float, str]]) -> Capture:
    """A capture of one device: kind -> (start ms, end ms, name) of each event."""
    made: dict[Any, Any] = {}
    for kind, given in tables.items():
        values: dict[str, list[Any]] = {
            "start_ns": [int(each[0] * MS) for each in given],
            "end_ns": [int(each[1] * MS) for each in given],
            "name": [each[2] for each in given],
            "pid": [1] * len(given),
            "tid": [1] * len(given),
        }
        if kind in ("kernel", "copy"):
            values |= {"device": [0] * len(given), "stream": [7] * len(given)}
            values["bytes"] = [25_000_000 if kind == "copy" else None] * len(given)
        made[kind] = table(values)
    return Capture(source=SOURCE, tables=made)


GEMM, ALL_REDUCE = "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def every(period: float, start: float, length: float, name: str) -> list[tuple[float, float, str]]:
    """An event of 100 ms that repeats."""
    number = int(100 / period)
    return [(at * period + start, at * period + start + length, name) for at in range(number)]


CAPTURED = {
    "input-bound": captured(
        kernel=every(10, 6, 4, GEMM),
        copy=[],
        api=every(10, 5.9, 0.05, "hipLaunchKernel"),
        range=every(10, 0, 10, "step") + every(10, 0.1, 5.5, "dataloader"),
    ),
    "launch-bound": captured(
        kernel=every(0.02, 0.01, 0.005, GEMM),
        copy=[],
        api=every(0.02, 0, 0.018, "hipLaunchKernel"),
        range=every(10, 0, 10, "step") + every(10, 0, 0.1, "dataloader"),
    ),
    "host-bound": captured(
        kernel=every(10, 6, 4, GEMM),
        copy=[],
        api=every(10, 5.9, 0.05, "hipLaunchKernel"),
        range=every(10, 0, 10, "step") + every(10, 0, 0.1, "dataloader"),
    ),
    "copy-bound": captured(
        kernel=every(10, 4, 6, GEMM), copy=every(10, 0, 4, "HtoD"), api=[], range=[]
    ),
    "communication-bound": captured(
        kernel=every(10, 0, 6, GEMM) + every(10, 5, 5, ALL_REDUCE), copy=[], api=[], range=[]
    ),
    "": captured(
        kernel=every(10, 0, 9.9, GEMM) + every(10, 1, 5, ALL_REDUCE),
        copy=every(10, 2, 4, "HtoD"),
        api=every(10, 0, 9, "hipLaunchKernel"),
        range=every(10, 0, 9, "dataloader"),
    ),
}


@pytest.mark.parametrize("name", CAPTURED)
def test_a_capture_is_bound_by_one_thing_alone(name: str) -> None:
    from portagpu.traces.analysis.summary import summarize

    given = summarize([CAPTURED[name]])
    assert bound_by(given) == ([name] if name else [])
