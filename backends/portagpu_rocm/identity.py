"""The description of a ROCm device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from portagpu.devices.contract import Part
from portagpu.facts.arch import Arch, base_name
from portagpu.facts.host import Tree, gpus_on_machine, pci_of_uuid
from portagpu.facts.host.gpus import PCI_DEVICES
from portagpu_torch_gpu import describe as shared
from portagpu_torch_gpu.torchlibs import dnn_version_number, nccl_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.devices.contract import Description


def describe(index: int, root: Tree) -> tuple[Description, Any]:
    """The description of that visible device, and torch's properties of it.

    The capability numbers of this build are the gfx numbers and mean nothing to another vendor's.
    """
    properties = shared.properties_of(index)
    uuid = device_uuid(properties)
    pci = shared.pci_address(properties) or pci_of_uuid(uuid, root)
    description = shared.describe(
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

    ``driver`` is the one of a driver that was installed beside the kernel's own, which has none.
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
