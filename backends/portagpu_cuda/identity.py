"""The description of a CUDA device."""

from __future__ import annotations

import importlib.metadata
import re
from typing import TYPE_CHECKING, Any, Final

import torch

from portagpu.devices.contract import Part
from portagpu.facts.arch import Arch
from portagpu.facts.host import pci_of_uuid
from portagpu_cuda.gpus import mig_profile
from portagpu_torch_gpu import describe as shared
from portagpu_torch_gpu.torchlibs import dnn_version_number, nccl_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.devices.contract import Description
    from portagpu.facts.host.tree import Tree

_CUBLAS: Final = ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu13")
_NO_UUID: Final = "00000000-0000-0000-0000-000000000000"


def describe(index: int, root: Tree) -> tuple[Description, Any]:
    """The description of that visible device, and torch's properties of it."""
    properties = shared.properties_of(index)
    uuid = device_uuid(properties)
    description = shared.describe(
        index,
        properties,
        name="cuda",
        arch=Arch("nvidia", f"sm_{properties.major}{properties.minor}", properties.warp_size),
        uuid=uuid,
        pci=shared.pci_address(properties) or pci_of_uuid(uuid, root),
        part=part(properties.name),
        library="NCCL",
        versions=versions(root),
        # cuBLAS's documentation, "Results reproducibility"; torch refuses to go on without it
        deterministic_env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    )
    return description, properties


def part(name: str) -> Part | None:
    """The MIG slice that a product name tells ("... MIG 3g.40gb"); None for a whole GPU.

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
