"""The device ``demo``: torch on the host's CPU, with events and without streams."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch

from portagpu import (
    Arch,
    Backend,
    Capability,
    Comm,
    Description,
    Event,
    Precision,
    Sizing,
    Support,
    Unsupported,
)
from portagpu_cpu.strided import make_contiguous

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from portagpu import Plugin

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

# what torch does with each dtype on any CPU; one that is not listed is refused
_SUPPORT: Final = {
    Support.NATIVE: (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    ),
    Support.EMULATED: (
        torch.float16,
        torch.bfloat16,
    ),
}
_FP8: Final = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
)


def _fp8_support(dtype: torch.dtype) -> Support:
    """Whether torch multiplies that format: oneDNN, which does it on CPUs with AMX, may refuse."""
    ones = torch.ones(16, 32).to(dtype)
    scale = torch.ones(())
    try:
        torch._scaled_mm(ones, ones.t(), scale, scale, out_dtype=torch.bfloat16)
    except RuntimeError:
        return Support.STORAGE
    return Support.EMULATED


@dataclass(frozen=True, slots=True)
class DemoProperties:
    """The fields of torch's device properties that portable code reads."""

    name: str
    total_memory: int
    multi_processor_count: int
    warp_size: int


class DemoEvent(Event):
    """A point in time; work on this device is done when its call returns."""

    __slots__ = ("_recorded_ns", "_timing")

    def __init__(self, timing: bool) -> None:
        self._timing = timing
        self._recorded_ns: int | None = None

    def record(self, stream: None = None) -> None:
        """Take the time."""
        del stream
        self._recorded_ns = time.perf_counter_ns()

    def wait(self, stream: None = None) -> None:
        """What was recorded has already happened."""

    def query(self) -> bool:
        """True: what was recorded has already happened."""
        return True

    def synchronize(self) -> None:
        """What was recorded has already happened."""

    def elapsed_time(self, end_event: DemoEvent) -> float:
        """Milliseconds from this event to ``end_event``; RuntimeError as torch raises it."""
        if not (self._timing and end_event._timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded_ns is None or end_event._recorded_ns is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._recorded_ns - self._recorded_ns) / 1e6


class DemoBackend(Backend):
    """The host's CPU. It has no streams, graphs, pinned memory or peak that could be reset."""

    __slots__ = ("_properties",)

    def __init__(self, plugin: Plugin, index: int) -> None:
        cores = len(os.sched_getaffinity(0))
        self._properties = DemoProperties(
            name="PortaGPU demo device",
            total_memory=os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES,
            multi_processor_count=cores,
            warp_size=1,
        )
        super().__init__(plugin, _describe(index, cores, self._properties.name))
        # its library is Gloo, which does not look at strides
        make_contiguous()

    def activate(self) -> None:
        """torch's calls without a device already use the CPU."""

    def get_device_properties(self) -> DemoProperties:
        """Name, memory and cores."""
        return self._properties

    def synchronize(self) -> None:
        """Work is done when its call returns."""

    def mem_get_info(self) -> tuple[int, int]:
        """(free, total) bytes of the machine's memory."""
        return os.sysconf("SC_AVPHYS_PAGES") * _PAGE_BYTES, self._properties.total_memory

    def memory_stats(self) -> Mapping[str, int]:
        """The process's resident memory; proc(5), statm, and getrusage(2), ru_maxrss in KiB."""
        current = int(Path("/proc/self/statm").read_text("ascii").split()[1]) * _PAGE_BYTES
        peak = max(current, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return {
            f"{kind}_bytes.all.{key}": value
            for kind in ("allocated", "reserved")
            for key, value in (("current", current), ("peak", peak))
        }

    def reset_peak_memory_stats(self) -> None:
        """Not claimed: getrusage(2) has no way to start again."""
        raise Unsupported("the demo backend cannot reset the peak of its memory")

    def empty_cache(self) -> None:
        """Give what the C library's heap holds back to the kernel; malloc_trim(3) is glibc's."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)

    def generator(self) -> torch.Generator:
        """torch's default CPU generator."""
        return torch.default_generator

    def Stream(self, priority: int = 0) -> Any:  # noqa: N802 - torch's name
        """Not claimed."""
        del priority
        raise Unsupported("the demo backend has no streams")

    def current_stream(self) -> Any:
        """Not claimed."""
        raise Unsupported("the demo backend has no streams")

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Not claimed; None changes nothing, as in torch."""
        if stream is not None:
            raise Unsupported("the demo backend has no streams")
        return nullcontext()

    def Event(  # noqa: N802 - torch's name
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> DemoEvent:
        """An event on the monotonic clock."""
        del blocking
        if interprocess:
            raise Unsupported("the demo backend does not share events between processes")
        return DemoEvent(enable_timing)

    def annotate(self, name: str) -> AbstractContextManager[Any]:
        """A range in torch's profiler."""
        return torch.profiler.record_function(name)


def _describe(index: int, cores: int, product: str) -> Description:
    return Description(
        name="demo",
        index=index,
        device=torch.device("cpu"),
        arch=Arch("cpu", platform.machine(), 1),
        product=product,
        target=None,  # unknown is None
        capabilities=frozenset({Capability.EVENTS, Capability.AUTOCAST, Capability.COLLECTIVES}),
        precision=Precision(
            MappingProxyType(
                {dtype: support for support, dtypes in _SUPPORT.items() for dtype in dtypes}
                | {dtype: _fp8_support(dtype) for dtype in _FP8}
            ),
            # the bfloat16 units of some CPUs take subnormal numbers for zero
            flushes=frozenset({torch.bfloat16}),
        ),
        comm=Comm(
            c10d_name="gloo",
            library="Gloo",
            version=None,
            device_type="cpu",
            reduce_ops=frozenset({"SUM", "PRODUCT", "MIN", "MAX"}),
            local_env=MappingProxyType({"GLOO_SOCKET_IFNAME": "lo"}),
        ),
        sizing=Sizing(
            warp_size=1,
            unit_count=cores,
            max_threads_per_block=1,
            max_threads_per_unit=1,
            max_blocks_per_unit=1,
        ),
        versions={"torch": torch.__version__},
    )
