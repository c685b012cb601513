"""GPUs as real machines printed them: what torch reports of each, value by value with its source.

``recorded`` was printed on a machine of that kind, by torch or by the tool that the source names.
``documented`` is what torch always reports and no recording here shows; it is from the vendor's
documentation or the targets' facts. A value that neither gives is left out. Where the source says
so, an entry joins what two machines printed: it stands for a product, not for one machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

MIB: Final = 1 << 20

_TRACES: Final = "torch.profiler deviceProperties, AMD-AGI/TraceLens 171dd747 tests/traces"
_CAPTURES: Final = "nvidia-smi, utkuozdemir/nvidia_gpu_exporter e656cd81 internal/captures"
_ACHATBOT: Final = "torch's repr, ai-bot-pro/achatbot 859e2161 deploy/modal, skywork_r1v.py"

# CUDA C++ Programming Guide, table of compute capabilities; HIP: warpSize of gfx9 and gfx11
_NVIDIA: Final = {"warp_size": 32, "max_threads_per_block": 1024, "is_integrated": 0}
_WAVE64: Final = {"warp_size": 64, "max_threads_per_block": 1024, "is_integrated": 0}

NOT_IN_STUB: Final = frozenset(
    {
        "max_threads_per_block",
        "pci_bus_id",
        "pci_device_id",
        "pci_domain_id",
        "regs_per_multiprocessor",
        "shared_memory_per_block_optin",
    }
)
"""Properties that torch's type stub leaves out: the names are in libtorch_python.so of the wheels
2.11.0+cu130 and 2.13.0+cu130, which have the same ones. ROCm builds have no
``shared_memory_per_block_optin`` (pytorch PR 198198 would add it)."""


@dataclass(frozen=True, slots=True)
class RecordedGpu:
    """One device of a torch build ("cuda" or "rocm"), and what a backend must make of it."""

    id: str
    kind: str
    source: str
    recorded: dict[str, Any]
    documented: dict[str, Any] = field(default_factory=dict)
    arch: str = ""
    target: str | None = None
    """The target of the matrix, where it has one for this device today."""
    uuid: str | None = None
    pci: str | None = None
    wave: int | None = None
    """Elements of one launch wave of random numbers, where published (pytorch PR 176584)."""


CUDA: Final = (
    RecordedGpu(
        "h100",
        "cuda",
        f"{_TRACES}/h100; bus: {_CAPTURES} h100-80gb-hbm3",
        {
            "name": "NVIDIA H100 80GB HBM3",
            "total_memory": 85018279936,
            "major": 9,
            "minor": 0,
            "multi_processor_count": 132,
            "warp_size": 32,
            "max_threads_per_block": 1024,
            "max_threads_per_multi_processor": 2048,
            "pci_domain_id": 0,
            "pci_bus_id": 0,
            "pci_device_id": 9,
        },
        {},
        "sm_90",
        None,
        None,
        "0000:00:09.0",
        270336,
    ),
    RecordedGpu(
        "h200",
        "cuda",
        f"{_ACHATBOT}; bus: {_CAPTURES} h200",
        {
            "name": "NVIDIA H200",
            "total_memory": 143156 * MIB,
            "major": 9,
            "minor": 0,
            "multi_processor_count": 132,
            "uuid": "91a535d7-4157-249a-65e5-73883afa626e",
            "L2_cache_size": 60 * MIB,
            "pci_domain_id": 0,
            "pci_bus_id": 0x83,
            "pci_device_id": 0,
        },
        {**_NVIDIA, "max_threads_per_multi_processor": 2048},
        "sm_90",
        "nvidia-h200-sxm",
        "GPU-91a535d7-4157-249a-65e5-73883afa626e",
        "0000:83:00.0",
        270336,
    ),
    RecordedGpu(
        "a100-mig",
        "cuda",
        "nvidia-smi -q -x, netdata 04b1cf54 nvidia_smi/testdata/a100-sxm4-mig.xml: a MIG device",
        {
            "total_memory": 19968 * MIB,
            "multi_processor_count": 42,
            "pci_domain_id": 0,
            "pci_bus_id": 0,
            "pci_device_id": 4,
        },
        # the recording has the GPU's name; the suffix is how the driver names its slices
        {
            **_NVIDIA,
            "name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
            "major": 8,
            "minor": 0,
            "max_threads_per_multi_processor": 2048,
        },
        "sm_80",
        None,
        None,
        "0000:00:04.0",
    ),
    RecordedGpu(
        "l40s",
        "cuda",
        f"{_CAPTURES} l40s; memory, units: torch's repr in a published article",
        {
            "name": "NVIDIA L40S",
            "total_memory": 45589 * MIB,
            "major": 8,
            "minor": 9,
            "multi_processor_count": 142,
            "pci_domain_id": 0,
            "pci_bus_id": 1,
            "pci_device_id": 0,
        },
        {**_NVIDIA, "max_threads_per_multi_processor": 1536},
        "sm_89",
        None,
        None,
        "0000:01:00.0",
    ),
    RecordedGpu(
        "b200",
        "cuda",
        f"{_ACHATBOT}; threads: a device query in pytorch/ao PR 4002",
        {
            "name": "NVIDIA B200",
            "total_memory": 182642 * MIB,
            "major": 10,
            "minor": 0,
            "multi_processor_count": 148,
            "uuid": "d186e4e8-5421-22be-0d31-ba7ed89e6a79",
            "L2_cache_size": 126 * MIB,
            "warp_size": 32,
            "max_threads_per_block": 1024,
            "max_threads_per_multi_processor": 2048,
        },
        {},
        "sm_100",
        None,
        "GPU-d186e4e8-5421-22be-0d31-ba7ed89e6a79",
    ),
)

ROCM: Final = (
    RecordedGpu(
        "mi100",
        "rocm",
        "rocprof-compute sysinfo, ROCm/rocprofiler-compute 95b600ea tests/workloads/vcopy/MI100",
        {"multi_processor_count": 120, "warp_size": 64, "max_threads_per_block": 1024},
        # gfx908 is recorded as the architecture; torch's name and suffixes for it are not
        {
            "name": "AMD Instinct MI100",
            "gcnArchName": "gfx908:sramecc+:xnack-",
            "major": 9,
            "minor": 0,
            "total_memory": 32 * 1024 * MIB,
            "max_threads_per_multi_processor": 2560,
        },
        "gfx908",
    ),
    RecordedGpu(
        "mi210",
        "rocm",
        f"{_TRACES}/mi210; UUID, bus: rocminfo in ROCm/rocm-blogs c9a603f2",
        {
            "name": "AMD Instinct MI210",
            "total_memory": 68702699520,
            "major": 9,
            "minor": 0,
            "multi_processor_count": 104,
            "warp_size": 64,
            "max_threads_per_block": 1024,
            "max_threads_per_multi_processor": 2048,
            "uuid": "62316662-3237-6664-3838-353763306433",
            "pci_bus_id": 25344 >> 8,
            "pci_device_id": 0,
        },
        {"gcnArchName": "gfx90a:sramecc+:xnack-", "pci_domain_id": 0},
        "gfx90a",
        None,
        "GPU-b1fb27fd8857c0d3",
        "0000:63:00.0",
    ),
    RecordedGpu(
        "mi250x",
        "rocm",
        "torch's repr in users' notes on LUMI; bus: rocm-smi --showbus on LUMI",
        {
            "name": "AMD Instinct MI250X",
            "gcnArchName": "gfx90a:sramecc+:xnack-",
            "total_memory": 65520 * MIB,
            "major": 9,
            "minor": 0,
            "multi_processor_count": 110,
            "pci_domain_id": 0,
            "pci_bus_id": 0xC9,
            "pci_device_id": 0,
        },
        {**_WAVE64, "max_threads_per_multi_processor": 2048},
        "gfx90a",
        None,
        None,
        "0000:c9:00.0",
    ),
    RecordedGpu(
        "mi300x-spx",
        "rocm",
        f"torch's repr, ROCm/ROCm issue 4203; threads: {_TRACES}/mi300",
        {
            "name": "AMD Instinct MI300X",
            "gcnArchName": "gfx942:sramecc+:xnack-",
            "total_memory": 196592 * MIB,
            "major": 9,
            "minor": 4,
            "multi_processor_count": 304,
            "uuid": "66333330-6463-3464-3030-646565323262",
            "L2_cache_size": 4 * MIB,
            "warp_size": 64,
            "max_threads_per_block": 1024,
            "max_threads_per_multi_processor": 2048,
        },
        {},
        "gfx942",
        "amd-mi300x",
        "GPU-f330dc4d00dee22b",
        None,
        622592,
    ),
    RecordedGpu(
        "mi300x-nameless",
        "rocm",
        "torch.profiler deviceProperties of a vLLM trace: eight devices whose name is empty",
        {
            "name": "",
            "total_memory": 206141652992,
            "major": 9,
            "minor": 4,
            "multi_processor_count": 304,
            "warp_size": 64,
            "max_threads_per_block": 1024,
            "max_threads_per_multi_processor": 2048,
            "shared_memory_per_block": 65536,
            "shared_memory_per_multiprocessor": 65536,
        },
        {"gcnArchName": "gfx942:sramecc+:xnack-", "is_integrated": 0},
        "gfx942",
        "amd-mi300x",
        None,
        None,
        622592,
    ),
    RecordedGpu(
        "mi300x-cpx",
        "rocm",
        "KFD topology, node 2, ROCm/k8s-device-plugin ed764684 testdata/topo-mi300-cpx",
        {
            "multi_processor_count": 152 // 4,  # simd_count / simd_per_cu
            "warp_size": 64,
            "pci_domain_id": 0,
            "pci_bus_id": 1280 >> 8,  # location_id
            "pci_device_id": 0,
            "uuid": "65336161-3134-3066-3961-356639653331",  # unique_id
        },
        # the partition's memory is not in the tree: the GPU's eighth
        {
            "name": "AMD Instinct MI300X",
            "gcnArchName": "gfx942:sramecc+:xnack-",
            "major": 9,
            "minor": 4,
            "total_memory": 196592 // 8 * MIB,
            "max_threads_per_block": 1024,
            "max_threads_per_multi_processor": 2048,
        },
        "gfx942",
        None,
        "GPU-e3aa140f9a5f9e31",
        "0000:05:00.0",
    ),
    RecordedGpu(
        "mi355x",
        "rocm",
        "system description, MLCommons training_results_v5.1 441d65f4 AMD/systems/MI355X",
        {"name": "AMD Instinct MI355X"},
        # the suffixes are in pytorch/ao's issues; units and memory are AMD's specification
        {
            **_WAVE64,
            "gcnArchName": "gfx950:sramecc+:xnack-",
            "major": 9,
            "minor": 5,
            "multi_processor_count": 256,
            "total_memory": 288 * 1024 * MIB,
            "max_threads_per_multi_processor": 2048,
        },
        "gfx950",
        None,
        None,
        None,
        524288,
    ),
    RecordedGpu(
        "rx7900xtx",
        "rocm",
        "torch's repr (2.9 nightly, ROCm 6.4), ROCm/ROCm issue 5040; wave: KFD node properties",
        {
            "name": "Radeon RX 7900 XTX",
            "gcnArchName": "gfx1100",
            "total_memory": 24560 * MIB,
            "major": 11,
            "minor": 0,
            "multi_processor_count": 48,
            "uuid": "35626461-6536-3132-3434-633261393430",
            "pci_domain_id": 0,
            "pci_bus_id": 45,
            "pci_device_id": 0,
            "L2_cache_size": 6 * MIB,
            "warp_size": 32,
        },
        {"max_threads_per_block": 1024, "max_threads_per_multi_processor": 2048},
        "gfx1100",
        None,
        "GPU-5bdae61244c2a940",
        "0000:2d:00.0",
        98304,
    ),
)
ALL: Final = (*CUDA, *ROCM)
