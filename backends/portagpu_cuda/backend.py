"""A CUDA device as a backend: its description, and ranges for NVIDIA's profilers.

Ranges go through the package ``nvtx``, else through torch. NVTX looks once for a tool, at its first
call: ``NVTX_INJECTION64_PATH`` names its library, or one is linked in (nvtxInit.h). Without a tool
a push returns -2 (NVTX_NO_PUSH_POP_TRACKING in nvToolsExt.h) and a domain is a dummy one (nvtx
0.2.17, ``nvtx._lib.Domain``), and stays so: then nothing has to be called again.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch

from portagpu.devices.contract import Part
from portagpu.facts.arch import Arch
from portagpu.facts.captures.labels import DOMAIN
from portagpu.facts.host import pci_of_uuid
from portagpu_cuda.gpus import mig_profile
from portagpu_torch_gpu.device import (
    TorchGpu,
    TorchRanges,
    describe_device,
    dnn_version_number,
    in_text,
    nccl_version,
    pci_address,
    properties_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.devices.contract import Description
    from portagpu.facts.captures.labels import Label
    from portagpu.facts.captures.marked_blocks import RangeTool
    from portagpu.facts.host.tree import Tree
    from portagpu_torch_gpu.plugin import TorchGpuPlugin


_CUBLAS: Final = ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu13")
_NO_UUID: Final = "00000000-0000-0000-0000-000000000000"


def describe(index: int, root: Tree) -> tuple[Description, Any]:
    """The description of that visible device, and torch's properties of it."""
    properties = properties_of(index)
    uuid = device_uuid(properties)
    description = describe_device(
        index,
        properties,
        name="cuda",
        arch=Arch("nvidia", f"sm_{properties.major}{properties.minor}", properties.warp_size),
        uuid=uuid,
        pci=pci_address(properties) or pci_of_uuid(uuid, root),
        part=part(properties.name),
        library="NCCL",
        versions=versions(root),
        # cuBLAS's documentation, "Results reproducibility"; torch refuses to go on without it
        deterministic_env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    )
    return description, properties


def part(name: str) -> Part | None:
    """The MIG slice that a product name states ("... MIG 3g.40gb"); None for a whole GPU.

    Slices of one GPU may differ, and may leave some of it to nobody.
    """
    profile = mig_profile(name)
    return Part(profile, name.removesuffix(f" MIG {profile}")) if profile is not None else None


def device_uuid(properties: Any) -> str | None:
    """The UUID as NVML writes it: "GPU-..." for a whole GPU, "MIG-..." for a slice."""
    text = str(getattr(properties, "uuid", "") or "").lower()
    if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text) or text == _NO_UUID:
        return None
    return f"{'MIG' if part(properties.name) else 'GPU'}-{text}"


def versions(root: Tree) -> Mapping[str, str | None]:
    """Driver, runtime and libraries. The driver's is in a kernel file; NVML is not needed."""
    return {
        "driver": root.text("sys/module/nvidia/version") or None,
        "cuda": torch.version.cuda,
        "nccl": nccl_version(),
        "cudnn": cudnn_version(dnn_version_number()),
        "cublas": _cublas_version(),
    }


def cudnn_version(number: int | None) -> str | None:
    """ "9.10.2" from 91002 and "8.9.7" from 8907 (CUDNN_VERSION in cudnn_version.h)."""
    if not number:
        return None
    thousands = 10_000 if number >= 90_000 else 1_000
    major, rest = divmod(number, thousands)
    return f"{major}.{rest // 100}.{rest % 100}"


def _cublas_version() -> str | None:
    """The version of the wheel that brings cuBLAS; torch itself does not state it."""
    for name in _CUBLAS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


_NO_TOOL: Final = -2
_INT64: Final = range(-(2**63), 2**63)


@cache
def attached() -> RangeTool | None:
    """What hands ranges to the tool that is attached to this process; None where none is."""
    if not os.environ.get("NVTX_INJECTION64_PATH"):
        depth = torch.cuda.nvtx.range_push(DOMAIN)
        if depth == _NO_TOOL:
            return None
        torch.cuda.nvtx.range_pop()
    try:
        import nvtx
    except ImportError:
        return TorchRanges()
    listens = type(nvtx.get_domain(DOMAIN)).__name__ != "DummyDomain"
    return NvtxPackage(nvtx) if listens else TorchRanges()


def profiler_name() -> str | None:
    """The profiler that started this process: "nsys", "ncu" or None; from its variables.

    nsys sets the first when its session begins and the second from the start. The third is ncu's.
    """
    injected = os.path.basename(os.environ.get("NVTX_INJECTION64_PATH", ""))  # noqa: PTH119 - text
    if "NSYS_PROFILING_SESSION_ID" in os.environ or injected.startswith("libToolsInjection"):
        return "nsys"
    return "ncu" if "NV_NSIGHT_INJECTION_TRANSPORT_TYPE" in os.environ else None


class NvtxPackage(TorchRanges):
    """Domains, colours and payloads; labels are in the text too, where every reader finds them."""

    def __init__(self, nvtx: Any) -> None:
        self._nvtx = nvtx

    def push(self, name: str, labels: Mapping[str, Label], domain: str, color: int | None) -> None:
        if not domain:
            super().push(name, labels, domain, color)
            return
        target = self._nvtx.get_domain(domain)
        text = in_text(name, labels)
        target.push_range(target.get_event_attributes(text, color, None, payload(labels)))

    def pop(self, domain: str) -> None:
        if domain:
            self._nvtx.get_domain(domain).pop_range()
        else:
            super().pop(domain)


def payload(labels: Mapping[str, Label]) -> Any:
    """The labels as the package takes them: a number, or a record of NumPy; None without any.

    Without NumPy only a single number has a form. Integers beyond 64 bits are text.
    """
    if not labels:
        return None
    first = next(iter(labels.values()))
    if len(labels) == 1 and not isinstance(first, str | bool) and _kind(first) != "S":
        return first
    try:
        import numpy as np
    except ImportError:
        return None
    values = [
        (str(value).encode("utf-8", "backslashreplace") or b"\0") if _kind(value) == "S" else value
        for value in labels.values()
    ]
    kinds = [f"S{len(value)}" if isinstance(value, bytes) else _kind(value) for value in values]
    # a name that is empty or stands twice is none to NumPy, and surrogates are none to the package
    names = [
        f"{number}:{key}".encode("ascii", "replace").decode() if not key.isidentifier() else key
        for number, key in enumerate(labels)
    ]
    return np.array(tuple(values), dtype=list(zip(names, kinds, strict=True)))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i8" if value in _INT64 else "S"
    return "f8" if isinstance(value, float) else "S"


class CudaBackend(TorchGpu):
    """One NVIDIA GPU, or one MIG slice of it.

    torch's ``cudnn`` and ``nccl`` are cuDNN and NCCL here; ranges are NVTX's. A MIG slice has a
    name, memory and units of its own, so that it is not a product of the matrix but a member of its
    architecture.
    """

    __slots__ = ("blas_library", "dnn_library", "mig_profile")

    def __init__(self, plugin: TorchGpuPlugin, index: int) -> None:
        description, properties = describe(index, plugin.root)
        super().__init__(plugin, description, properties)
        self.mig_profile = self.part.name if self.part is not None else None
        self.dnn_library = "cuDNN"
        self.blas_library = "cuBLAS"
        plugin.remember(index, self.pci, self.uuid)

    def range_tool(self) -> RangeTool | None:
        return attached()

    def attached_profiler(self) -> str | None:
        return profiler_name()
