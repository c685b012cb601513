"""Data of NVIDIA's GPUs, drivers and tools. Imports neither torch nor a library.

CUDA's reader of masks is closed source. Its rules are from NVIDIA's documentation and, where that
is open, from torch's own reader, whose authors compared it with driver 525.60.13
(pytorch/pytorch#92315).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from portagpu.base.environment import ASYNCHRONY, Switch
from portagpu.facts.vendors import (
    Blanks,
    DriverFiles,
    Fabric,
    MaskRules,
    Numbers,
    Repeated,
    Runtime,
    TorchRules,
    UuidMatch,
    Vendor,
)

# https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html;
# one MIG slice a process: MIG user guide, "Device Enumeration", and the run in pytorch#92315
_CUDA: Final = MaskRules(
    layer="CUDA",
    variables=("CUDA_VISIBLE_DEVICES",),
    numbers=Numbers.LEADING,
    blanks=Blanks.AT_NUMBERS,
    repeated=Repeated.HIDES_ALL,
    uuid_prefixes=("GPU-", "MIG-"),
    uuid_match=UuidMatch.ONE_THAT_STARTS,
    uuid_case_counts=True,
    one_kind=True,
    slice_prefix="MIG-",
    most_slices=1,
)

VENDOR: Final = Vendor(
    name="nvidia",
    pci_ids=(0x10DE,),
    torch_build="cuda",
    masks=Runtime(
        name="cuda",
        vendor="nvidia",
        layers=(_CUDA,),
        # torch: torch/cuda/__init__.py of 2.13, _parse_visible_devices and _device_count_nvml
        torch=TorchRules(variables=("CUDA_VISIBLE_DEVICES",), asks_for=("MIG-",)),
        child_variable="CUDA_VISIBLE_DEVICES",
        foreign=("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    ),
    visibility=("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    # NVIDIA's driver, README, "The /proc filesystem interface" and "device nodes"
    driver_files=DriverFiles(
        devices=r"nvidia\d+",
        device="nvidia{minor}",
        listing="proc/driver/nvidia/gpus",
        address="Bus Location",
        uuid="GPU UUID",
        minor="Device Minor",
        product="Model",
    ),
    driver_version="sys/module/nvidia/version",
    makers=("nvidia",),
    # nvidia-smi topo -m, legend
    fabrics=(Fabric(kind="nvlink", counted="NV{count}", legend=("NV#", "# NVLinks")),),
    unusable_drivers={
        "nouveau": "is bound to nouveau, with which torch does not compute: install its maker's "
        "driver"
    },
    unsliced="has MIG enabled and no slice, so that nothing can run on it: make slices "
    "(nvidia-smi mig -cgi), or disable MIG",
    libraries=(r"cupy(?:-.+)?", r"nvidia-nccl(?:-.+)?", "nvidia-ml-py", "pynvml"),
    out_of_memory=(
        # torch's caching allocator, which raises OutOfMemoryError; older builds, and code that
        # wraps it, raise a RuntimeError with the text (pytorch, c10/cuda/CUDACachingAllocator.cpp)
        "cuda out of memory",
        # cudaErrorMemoryAllocation as torch says it, and after the words of NCCL
        # (src/include/checks.h)
        "cuda error: out of memory",
        "cuda driver error: out of memory",
        "failure 2 'out of memory'",
        "failure 'out of memory'",
        # status names: cublasStatus_t, cudnnStatus_t, cusolverStatus_t, cusparseStatus_t,
        # cufftResult
        "cublas_status_alloc_failed",
        "cudnn_status_alloc_failed",
        "cusolver_status_alloc_failed",
        "cusparse_status_alloc_failed",
        "cufft_alloc_failed",
        # NCCL (src/include/alloc.h)
        "failed to cuda malloc",
        "failed to cuda calloc",
    ),
    switches=(
        # CUDA C++ Programming Guide, "CUDA Environment Variables"
        Switch("CUDA_LAUNCH_BLOCKING", "each launch waits for its end", ASYNCHRONY, "0*[1-9].*"),
    ),
    tables=Path(__file__).resolve().parent / "tables",
)
