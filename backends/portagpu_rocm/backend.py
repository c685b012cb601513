"""A ROCm device as a backend: its description, and ranges for AMD's profilers.

Ranges go through ROCTx of rocprofiler-sdk with ctypes, else through torch. torch's own calls go to
roctracer's ROCTx (hipify's ``cuda_to_hip_mappings.py``), which rocprofv3 does not read. ROCTx has
neither domains nor payloads, so both are in the name.

A tool comes in through rocprofiler-register: ``ROCP_TOOL_LIBRARIES`` lists it, it is preloaded, or
it is attached later to a process that was started with ``ROCP_TOOL_ATTACH``; ROCTx loads it at its
first call (``rocprofiler-sdk-roctx/roctx.cpp``, ``rocprofiler_register.cpp``). Where a variable
announces one, ROCTx is always called. Without one it is not: ROCTx does not say whether anything
listens, and counts its ranges either way.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from portagpu.devices.contract import Part
from portagpu.facts.arch import Arch, base_name
from portagpu.facts.host import Tree, gpus_on_machine, pci_of_uuid
from portagpu.facts.host.gpus import PCI_DEVICES
from portagpu_torch_gpu.device import (
    TorchGpu,
    TorchRanges,
    describe_device,
    dnn_version_number,
    for_c,
    in_text,
    nccl_version,
    pci_address,
    properties_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from portagpu.devices.contract import Description
    from portagpu.facts.captures.labels import Label
    from portagpu.facts.captures.marked_blocks import RangeTool
    from portagpu_torch_gpu.plugin import TorchGpuPlugin


def describe(index: int, root: Tree) -> tuple[Description, Any]:
    """The description of that visible device, and torch's properties of it.

    The capability numbers of this build are the gfx numbers and mean nothing to another vendor's.
    """
    properties = properties_of(index)
    uuid = device_uuid(properties)
    pci = pci_address(properties) or pci_of_uuid(uuid, root)
    description = describe_device(
        index,
        properties,
        name="rocm",
        arch=Arch("amd", base_name(properties.gcnArchName), properties.warp_size),
        uuid=uuid,
        pci=pci,
        part=part(root, pci, properties.name or None),
        library="RCCL",
        versions=versions(root),
        # rocBLAS's documentation, "Atomic operations": they have been off since its version 4.0
        deterministic_env={"ROCBLAS_DEFAULT_ATOMICS_MODE": "0"},
    )
    return description, properties


def device_uuid(properties: Any) -> str | None:
    """ROCr's "GPU-5bdae61244c2a940": HIP's 16 bytes are the text of those 16 digits.

    torch prints the bytes in the form of an NVIDIA UUID ("35626461-6536-..."). None where they are
    no such text. The partitions of one GPU share it.
    """
    digits = str(getattr(properties, "uuid", "") or "").replace("-", "")
    try:
        text = bytes.fromhex(digits).decode("ascii").lower()
        number = int(text, 16)
    except ValueError:
        return None
    return f"GPU-{text}" if len(text) == 16 and number else None


def versions(root: Tree) -> Mapping[str, str | None]:
    """Driver, runtime and libraries. torch names no version of the BLAS libraries.

    ``driver`` is the one of a driver that was installed in addition to the kernel's own, which
    states none.
    """
    return {
        "driver": root.text("sys/module/amdgpu/version") or None,
        "hip": torch.version.hip,
        "rocm": rocm_version(),
        "rccl": nccl_version(),
        "miopen": miopen_version(dnn_version_number()),
        "hipblas": None,
        "hipblaslt": None,
    }


def rocm_version() -> str | None:
    """What ``torch.version.rocm`` states, where it does, else the first two numbers of HIP's.

    HIP's are those of the ROCm release that it is of ("6.4.43482-..." of ROCm 6.4.0).
    """
    stated: str | None = getattr(torch.version, "rocm", None)
    match = re.match(r"\d+\.\d+", torch.version.hip or "")
    return stated or (match[0] if match else None)


def miopen_version(number: int | None) -> str | None:
    """ "3.5.1" from 3005001 (pytorch, torch/csrc/cuda/shared/cudnn.cpp, ``getVersionInt``)."""
    if not number:
        return None
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


def modes(root: Tree, pci: str | None) -> tuple[str | None, str | None]:
    """The GPU's compute ("SPX", "CPX") and memory ("NPS1") partitioning, from amdgpu's sysfs."""
    if pci is None:
        return None, None
    current = f"{PCI_DEVICES}/{pci}/current"
    compute, memory = (root.text(f"{current}_{kind}_partition") for kind in ("compute", "memory"))
    return compute or None, memory or None


def part(root: Tree, pci: str | None, product: str | None) -> Part | None:
    """The compute partition that the device is; None where the GPU has one (SPX) or shows none.

    All have as many units and as much memory (Linux, ``amdgpu_amdkfd_xcp_memory_size``).
    """
    compute, memory = modes(root, pci)
    if compute in (None, "SPX"):
        return None
    count = sum(len(gpu.partitions) for gpu in gpus_on_machine(root) if gpu.pci == pci)
    return Part(f"{compute} {memory}" if memory else f"{compute}", product, count or None)


def blas_library() -> str:
    """What torch's matrix products call first: hipBLASLt, hipBLAS or Composable Kernel."""
    names = {"cublas": "hipBLAS", "cublaslt": "hipBLASLt", "ck": "Composable Kernel"}
    preferred = str(torch.backends.cuda.preferred_blas_library()).rpartition(".")[2].lower()
    return names.get(preferred, "hipBLAS and hipBLASLt")


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


class RocmBackend(TorchGpu):
    """One AMD GPU, or one compute partition of it.

    torch calls the device ``cuda``, MIOpen ``cudnn`` and RCCL ``nccl``; ranges are ROCTx's.
    ``integrated`` is True on an APU, whose allocations may spill into the host's memory.
    ``multi_processor_count`` is HIP's, which counts RDNA's workgroup processors of two units each.
    """

    __slots__ = ("blas_library", "compute_partition", "dnn_library", "memory_partition")

    def __init__(self, plugin: TorchGpuPlugin, index: int) -> None:
        description, properties = describe(index, plugin.root)
        super().__init__(plugin, description, properties)
        self.compute_partition, self.memory_partition = modes(plugin.root, self.pci)
        self.dnn_library = "MIOpen"
        self.blas_library = blas_library()
        plugin.remember(index, self.pci, self.uuid)

    def range_tool(self) -> RangeTool | None:
        return attached()

    def attached_profiler(self) -> str | None:
        return profiler_name()

    def profiler_start(self) -> None:
        """ROCTx's resume: HIP's own call (hipProfilerStart) is a dummy that no profiler follows."""
        if not resume():
            super().profiler_start()

    def profiler_stop(self) -> None:
        """ROCTx's pause; see :meth:`profiler_start`."""
        if not pause():
            super().profiler_stop()
