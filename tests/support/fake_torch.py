"""A torch build of either vendor whose devices compute nothing, for running the backends' code.

Below ``torch._C``, where a GPU build calls the driver, this keeps books; everything above is the
installed torch's own Python. It shows that calls are made with the right arguments for the right
device and that what raises is passed on, and nothing about any hardware: it earns no badge.

Where torch's Python cannot be asked, the texts of errors are those of torch 2.13's sources: the
headers c10/cuda/CUDAEvent.h and CUDAStream.h of the wheel, aten/src/ATen/cuda/CUDAGraph.cpp, and
the drivers' own strings for "invalid device ordinal" and for capturing.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from tests.support.recorded_gpus import RecordedGpu

CUDA_DEVICE_TYPE = 1
DEFAULT_STREAM = 0
# what CUDAStream::priority_range makes of each driver's range
PRIORITIES = {"cuda": (0, -3), "rocm": (0, -1)}
BACKEND_MODULES = (
    "portagpu_torch_gpu.device",
    "portagpu_torch_gpu.device",
    "portagpu_cuda.backend",
    "portagpu_cuda.backend",
    "portagpu_rocm.backend",
    "portagpu_cuda.backend",
    "portagpu_rocm.backend",
    "portagpu_rocm.backend",
)


class Uuid:
    """Only its text is known, as with torch's own."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


@dataclass
class FakeDriver:
    """The state after one fake build; ``calls`` is what reached it, with the device each time."""

    kind: str
    gpus: Sequence[RecordedGpu]
    current: int = 0
    capturing: bool = False
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    streams: dict[int, int] = field(default_factory=dict)
    ids: Any = field(default_factory=lambda: itertools.count(1))
    clock: Any = field(default_factory=lambda: itertools.count(1))

    def error(self, text: str) -> RuntimeError:
        return RuntimeError(f"{'HIP' if self.kind == 'rocm' else 'CUDA'} error: {text}")

    def call(self, name: str, *arguments: Any) -> None:
        if self.capturing and name in {"synchronize", "empty_cache"}:
            raise self.error("operation not permitted when stream is capturing")
        self.calls.append((name, *arguments))

    def init(self) -> None:
        if not self.gpus:
            maker = "HIP" if self.kind == "rocm" else "CUDA"
            raise RuntimeError(f"No {maker} GPUs are available")
        generators = tuple(torch.Generator() for _ in self.gpus)
        torch.cuda.default_generators = generators

    def check(self, index: int) -> int:
        if not 0 <= index < len(self.gpus):
            raise self.error("invalid device ordinal")
        return index

    def set_device(self, index: int) -> None:
        self.current = self.check(index)
        self.call("set_device", index)

    def exchange(self, index: int) -> int:
        before = self.current
        if index >= 0:
            self.current = self.check(index)
        return before

    def properties(self, index: int) -> SimpleNamespace:
        gpu = self.gpus[self.check(index)]
        values = {**gpu.documented, **gpu.recorded}
        if "uuid" in values:
            values["uuid"] = Uuid(values["uuid"])
        return SimpleNamespace(**values)

    def memory_stats(self, index: int) -> dict[str, Any]:
        self.call("memory_stats", self.check(index))
        base = 1000 * (index + 1)
        empty = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
        # the keys that torch's own table of them reads (torch 2.13, torch/cuda/memory.py)
        kinds = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
        kinds += ("inactive_split_bytes", "allocation", "active", "segment", "inactive_split")
        stats: dict[str, Any] = {
            kind: {pool: dict(empty) for pool in ("all", "small_pool", "large_pool")}
            for kind in kinds
        }
        stats |= {"oversize_allocations": dict(empty), "oversize_segments": dict(empty)}
        stats["allocated_bytes"]["all"] |= {"current": base, "peak": base + 1}
        stats["reserved_bytes"]["all"] |= {"current": base + 2, "peak": base + 3}
        return {**stats, "num_ooms": 0, "num_alloc_retries": 0}

    def mem_get_info(self, index: int) -> tuple[int, int]:
        total = self.properties(index).total_memory
        return total - (1 << 20), total

    def set_stream(self, stream_id: int, device_index: int, device_type: int) -> None:
        assert device_type == CUDA_DEVICE_TYPE, f"a stream of device type {device_type}"
        self.current = device_index
        self.streams[device_index] = stream_id

    def current_stream(self, index: int) -> tuple[int, int, int]:
        return self.streams.get(index, DEFAULT_STREAM), index, CUDA_DEVICE_TYPE


def install(monkeypatch: pytest.MonkeyPatch, kind: str, gpus: Sequence[RecordedGpu]) -> FakeDriver:
    """Make the installed torch a build of that kind with these devices, until the test's end."""
    # it looks for the real driver when a profiler imports it; the first import takes 2 CPU seconds

    driver = FakeDriver(kind, gpus)
    _versions(monkeypatch, kind)
    _functions(monkeypatch, driver)
    _streams(monkeypatch, driver)
    _events(monkeypatch, driver)
    _graphs(monkeypatch, driver)
    # tools that take the ranges
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/tool.so")
    monkeypatch.setenv("ROCP_TOOL_LIBRARIES", "/tool.so")
    # they bind torch's classes when they are imported, and handles must not outlive the fake
    for name in BACKEND_MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return driver


def _versions(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8" if kind == "cuda" else None)
    hip = "6.4.43482-0f2d60242" if kind == "rocm" else None  # RCCL's log of MI300X
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    number = 3005001 if kind == "rocm" else 91002
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: number)
    # the versions that the logs of MI300X and B200 state
    version = (2, 22, 3) if kind == "rocm" else (2, 27, 7)
    packed = version[0] << 32 | version[1] << 16 | version[2]
    monkeypatch.setattr(torch._C, "_nccl_version", lambda: packed, raising=False)
    monkeypatch.setattr(torch._C, "_nccl_version_suffix", lambda: b"", raising=False)


def _functions(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    below = {
        "_cuda_init": driver.init,
        "_cuda_getDeviceCount": lambda: len(driver.gpus),
        "_cuda_getDevice": lambda: driver.current,
        "_cuda_setDevice": driver.set_device,
        "_accelerator_getDeviceIndex": lambda: driver.current,
        "_cuda_synchronize": lambda: driver.call("synchronize", driver.current),
        "_cuda_memoryStats": driver.memory_stats,
        "_cuda_resetPeakMemoryStats": lambda index: driver.call("reset_peak", index),
        "_cuda_emptyCache": lambda: driver.call("empty_cache"),
        "_cuda_ipc_collect": lambda: driver.call("ipc_collect"),
        "_cuda_setMemoryFraction": lambda fraction, index: driver.call("fraction", index),
        "_cuda_canDeviceAccessPeer": lambda index, peer: True,
        "_cuda_memorySnapshot": lambda *asked: {"segments": []},
        "_host_emptyCache": lambda: None,
        "_cuda_getCurrentStream": driver.current_stream,
        "_cuda_getDefaultStream": lambda index: (DEFAULT_STREAM, index, CUDA_DEVICE_TYPE),
        "_cuda_setStream": driver.set_stream,
    }
    for name, function in below.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    monkeypatch.setattr(torch._C, "_has_cuda", True)
    above = {
        "_initialized": False,
        "_queued_calls": [],
        "_cached_device_count": None,
        "_cudart": SimpleNamespace(
            cudaMemGetInfo=driver.mem_get_info,
            cudaProfilerStart=lambda: driver.call("profiler_start") or 0,
            cudaProfilerStop=lambda: driver.call("profiler_stop") or 0,
            cudaError=SimpleNamespace(success=0),
        ),
        "_exchange_device": driver.exchange,
        "_maybe_exchange_device": driver.exchange,
        "_get_device_properties": driver.properties,
        "_is_in_bad_fork": lambda: False,
        "default_generators": (),
    }
    for name, value in above.items():
        monkeypatch.setattr(torch.cuda, name, value, raising=False)
    nvtx = SimpleNamespace(
        markA=driver.marks.append,
        rangePushA=lambda text: driver.ranges.append(text) or len(driver.ranges) - 1,
        rangePop=lambda: (driver.ranges.pop(), len(driver.ranges))[1],
    )
    monkeypatch.setattr(torch.cuda.nvtx, "_nvtx", nvtx)


def _make_base(monkeypatch: pytest.MonkeyPatch, base: type, **members: Any) -> None:
    """Give one of torch's dummy base classes the members that a GPU build's has."""
    monkeypatch.setattr(base, "__init__", lambda self, *args, **options: None)
    for name, member in members.items():
        monkeypatch.setattr(base, name, member, raising=False)


def _streams(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    least, greatest = PRIORITIES[driver.kind]

    def new(cls: type, priority: int = 0, **known: int) -> Any:
        stream = object.__new__(cls)
        stream.stream_id = known.get("stream_id")
        if stream.stream_id is None:
            stream.stream_id = next(driver.ids)
        stream.device_index = known.get("device_index", driver.current)
        stream.device_type = CUDA_DEVICE_TYPE
        stream.device = torch.device("cuda", stream.device_index)
        stream.cuda_stream = stream.stream_id
        stream.pointer = known.get("stream_ptr")
        stream.priority = max(greatest, min(least, priority))
        return stream

    def same(one: Any, other: Any) -> bool:
        return (one.stream_id, one.device_index) == (other.stream_id, other.device_index)

    _make_base(
        monkeypatch,
        torch._C._CudaStreamBase,
        __new__=staticmethod(new),
        __eq__=same,
        query=lambda self: True,
        synchronize=lambda self: driver.call("stream_synchronize", self.device_index),
        priority_range=staticmethod(lambda: (least, greatest)),
    )


def _events(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    def new(cls: type, enable_timing: bool, blocking: bool, interprocess: bool, **more: Any) -> Any:
        event = object.__new__(cls)
        event.timing, event.blocking, event.interprocess = enable_timing, blocking, interprocess
        event.recorded = None
        event.cuda_event = 0
        return event

    def record(self: Any, stream: Any) -> None:
        driver.call("record", stream.device_index)
        self.recorded = float(next(driver.clock))

    def elapsed(self: Any, other: Any) -> float:
        if not (self.timing and other.timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.recorded is None or other.recorded is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return other.recorded - self.recorded

    _make_base(
        monkeypatch,
        torch._C._CudaEventBase,
        __new__=staticmethod(new),
        record=record,
        wait=lambda self, stream: driver.call("wait", stream.device_index),
        query=lambda self: True,
        synchronize=lambda self: None,
        elapsed_time=elapsed,
    )


def _graphs(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    def new(cls: type, keep_graph: bool = False) -> Any:
        graph = object.__new__(cls)
        graph.captured = False
        return graph

    def begin(self: Any, pool: Any = None, capture_error_mode: str = "global") -> None:
        driver.call("capture", driver.current, driver.streams.get(driver.current), pool)
        driver.capturing = True

    def end(self: Any) -> None:
        driver.capturing = False
        self.captured = True

    def replay(self: Any) -> None:
        if not self.captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        driver.call("replay")

    _make_base(
        monkeypatch,
        torch._C._CUDAGraph,
        __new__=staticmethod(new),
        capture_begin=begin,
        capture_end=end,
        replay=replay,
        reset=lambda self: None,
        pool=lambda self: (0, 1),
    )
    monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", None)
    memory, graphs = torch.cuda.memory, torch.cuda.graphs
    # these modules bound torch's functions, or stand-ins for them, when they were imported
    monkeypatch.setattr(graphs, "_cuda_isCurrentStreamCapturing", lambda: driver.capturing)
    monkeypatch.setattr(graphs, "_graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: driver.capturing)
    for name in ("beginAllocateCurrentThreadToPool", "endAllocateToPool", "releasePool"):
        monkeypatch.setattr(memory, f"_cuda_{name}", lambda index, pool: driver.call("pool", index))
    monkeypatch.setattr(torch.cuda, "MemPool", lambda: SimpleNamespace(id=(0, 9)))
    monkeypatch.setattr(
        memory, "_record_memory_history", lambda *given, **options: driver.call("record_history")
    )
    monkeypatch.setattr(memory, "_dump_snapshot", lambda name: driver.call("dump"))
