"""Ranges for AMD's profilers: ROCTx of rocprofiler-sdk through ctypes, else through torch.

torch's own calls go to roctracer's ROCTx (hipify's ``cuda_to_hip_mappings.py``), which rocprofv3
does not read. ROCTx has neither domains nor payloads, so both are in the name.

A tool comes in through rocprofiler-register: ``ROCP_TOOL_LIBRARIES`` lists it, it is preloaded, or
it is attached later to a process that was started with ``ROCP_TOOL_ATTACH``; ROCTx loads it at its
first call (``rocprofiler-sdk-roctx/roctx.cpp``, ``rocprofiler_register.cpp``). Where a variable
announces one, ROCTx is always called. Without one it is not: ROCTx does not say whether anything
listens, and counts its ranges either way.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from portagpu_torch_gpu.ranges import TorchRanges, for_c, in_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from portagpu.facts.captures.labels import Label
    from portagpu.facts.captures.marked_blocks import RangeTool

_NAMES: Final = ("librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so")
_ANNOUNCE: Final = (
    "ROCP_TOOL_LIBRARIES",
    "ROCP_TOOL_ATTACH",
    "ROCPROFILER_REGISTER_LIBRARY",
    "ROCPROFILER_REGISTER_FORCE_LOAD",
    "HSA_TOOLS_LIB",
)
"""Variables by which tools are loaded into a process; the last is roctracer's and older."""
_TOOL_OF_ROCPROFV3: Final = "librocprofiler-sdk-tool"
_ALL_THREADS: Final = 0
_FALSE: Final = frozenset({"", "0", "false", "off", "no", "n", "f"})


@cache
def library() -> ctypes.CDLL | None:
    """rocprofiler-sdk's ROCTx; None where it is not installed."""
    for path in _places():
        try:
            found = ctypes.CDLL(path)
        except OSError:
            continue
        found.roctxRangePushA.argtypes = found.roctxMarkA.argtypes = [ctypes.c_char_p]
        found.roctxMarkA.restype = None
        found.roctxRangePop.argtypes = []
        # roctx_thread_id_t (rocprofiler-sdk-roctx/types.h)
        found.roctxProfilerPause.argtypes = [ctypes.c_uint64]
        found.roctxProfilerResume.argtypes = [ctypes.c_uint64]
        return found
    return None


def _places() -> Iterator[str]:
    """Where the loader finds it, then ROCm's folder, then that of ROCm's Python packages."""
    yield from _NAMES
    folders = [
        Path(os.environ.get("ROCM_PATH") or "/opt/rocm", "lib"),
        Path(torch.__file__).parents[1] / "_rocm_sdk_core" / "lib",
    ]
    for folder in folders:
        yield from (str(folder / name) for name in _NAMES)


@cache
def attached() -> RangeTool | None:
    """What hands ranges to tools of this process; None where nothing announces a tool."""
    preloaded = os.environ.get("LD_PRELOAD", "")
    if not any(_is_set(name) for name in _ANNOUNCE) and "roc" not in preloaded:
        return None
    found = library()
    return TorchRanges() if found is None else Roctx(found)


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() not in _FALSE


def profiler_name() -> str | None:
    """The profiler that started this process: "rocprofv3" or None; from its variables."""
    loaded = os.environ.get("ROCP_TOOL_LIBRARIES", "") + os.environ.get("LD_PRELOAD", "")
    return "rocprofv3" if _TOOL_OF_ROCPROFV3 in loaded else None


def resume() -> bool:
    """Have the tool begin to record on all threads; False where ROCTx is not installed."""
    return _control("roctxProfilerResume")


def pause() -> bool:
    """Have the tool stop recording on all threads; False where ROCTx is not installed."""
    return _control("roctxProfilerPause")


def _control(function: str) -> bool:
    found = library()
    if found is None:
        return False
    # rocprofv3 without --selected-regions records the whole run, as nsys without a capture range
    whole = profiler_name() == "rocprofv3" and not _is_set("ROCPROF_SELECTED_REGIONS")
    if not whole:
        getattr(found, function)(_ALL_THREADS)
    return True


class Roctx:
    """rocprofiler-sdk's ROCTx."""

    def __init__(self, loaded: Any) -> None:
        self._push = loaded.roctxRangePushA
        self._pop = loaded.roctxRangePop
        self._mark = loaded.roctxMarkA

    def push(self, name: str, labels: Mapping[str, Label], domain: str, color: int | None) -> None:
        del color
        self._push(in_text(name, labels, domain).encode())

    def pop(self, domain: str) -> None:
        del domain
        self._pop()

    def mark(self, name: str) -> None:
        self._mark(for_c(name).encode())
