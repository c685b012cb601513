"""What is known of AMD's GPUs, drivers and tools, as data. Imports neither torch nor a library.

The rules of masks are read from ROCm's sources.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from portagpu.base.environment import ASYNCHRONY, Switch
from portagpu.facts.vendors import (
    Blanks,
    Fabric,
    MaskRules,
    Numbers,
    Repeated,
    Runtime,
    TorchRules,
    Tuning,
    UuidMatch,
    Vendor,
)

# RvdFilter in ROCm/rocm-systems, projects/rocr-runtime, core/runtime/amd_filter_device.cpp @92bf721
_ROCR: Final = MaskRules(
    layer="ROCr",
    variables=("ROCR_VISIBLE_DEVICES",),
    numbers=Numbers.C_LITERAL,
    blanks=Blanks.EVERYWHERE,
    repeated=Repeated.ENDS,
    uuid_prefixes=("GPU-",),
    uuid_match=UuidMatch.ONE_THAT_STARTS,
    uuid_case_counts=False,
    uuid_characters=(5, 20),
    # token.at(0) throws, and hsa_init returns the error
    empty_entry_fails=True,
)

# Device::init in ROCm/rocm-systems, projects/clr, rocclr/device/rocm/rocdevice.cpp @01280b9, over
# the values that rocclr/utils/flags.cpp keeps: an empty one becomes " " since ROCm 5.6 (ROCm/clr
# b5799c4), which is not a number. UUIDs since ROCm 6.2 (ROCm/clr 52db98e).
_HIP: Final = MaskRules(
    layer="HIP",
    variables=("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    numbers=Numbers.PLAIN,
    blanks=Blanks.NOWHERE,
    repeated=Repeated.SKIPPED,
    uuid_prefixes=("GPU-",),
    uuid_match=UuidMatch.FIRST_THAT_STARTS,
    uuid_case_counts=True,
    removes_quotes=True,
    empty_hides_since="ROCm 5.6",
    uuids_since="ROCm 6.2",
)

# instinct.docs.amd.com/projects/amdgpu-docs, pages MI300X and "IOMMU"
_GUIDE: Final = "AMD Instinct system optimization"

VENDOR: Final = Vendor(
    name="amd",
    pci_ids=(0x1002,),
    torch_build="rocm",
    masks=Runtime(
        name="rocm",
        vendor="amd",
        layers=(_ROCR, _HIP),
        # torch: torch/cuda/__init__.py of 2.13, _parse_visible_devices and _device_count_amdsmi
        torch=TorchRules(
            variables=("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
            counted="ROCR_VISIBLE_DEVICES",
            bare_uuids=True,
        ),
        child_variable="HIP_VISIBLE_DEVICES",
        # ROCm's page of variables has it up to 7.1.1 and no longer in 10.1
        leaving={"CUDA_VISIBLE_DEVICES": "which ROCm's documentation no longer lists"},
        # Device::init reads it only where IS_HIP is false; AMD's page on GPU isolation says that it
        # applies to HIP too
        unread={
            "GPU_DEVICE_ORDINAL": "OpenCL reads it, HIP's source does not, whatever its "
            "documentation says"
        },
    ),
    visibility=(
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "AMD_VISIBLE_DEVICES",
        "HSA_OVERRIDE_GFX_VERSION",
    ),
    driver_version="sys/module/amdgpu/version",
    chip_list="usr/share/libdrm/amdgpu.ids",
    makers=("amd", "ati", r"advanced micro devices(?: inc)?", "amd ati"),
    brands=("radeon",),
    # rocm-smi --showtopo
    fabrics=(Fabric(kind="xgmi", legend=("XGMI", "xGMI")),),
    disguises={
        "HSA_OVERRIDE_GFX_VERSION": "makes the GPUs pose as another architecture: unset it to "
        "trust what is identified",
    },
    tuning=Tuning(
        product="instinct",
        translated="the IOMMU translates the GPUs' addresses, which slows their transfers: boot "
        f"with iommu=pt, on Intel's CPUs with intel_iommu=on too ({_GUIDE})",
        balancing="automatic NUMA balancing is on, which disturbs transfers and collectives: "
        f"echo 0 > /proc/sys/kernel/numa_balancing ({_GUIDE})",
        moved="the kernel may move the GPUs' PCI resources, so that it does not find all of them: "
        f"boot with pci=realloc=off ({_GUIDE})",
    ),
    libraries=("amdsmi", "pyrsmi"),
    out_of_memory=(
        # torch's caching allocator (pytorch, c10/cuda/CUDACachingAllocator.cpp, hipified)
        "hip out of memory",
        # hipErrorOutOfMemory as torch says it
        "hip error: out of memory",
        "hip driver error: out of memory",
        # status names: hipblasStatus_t, hipsparseStatus_t, hipsolverStatus_t, hipfftResult,
        # rocblas_status, miopenStatus_t
        "hipblas_status_alloc_failed",
        "hipsparse_status_alloc_failed",
        "hipsolver_status_alloc_failed",
        "hipfft_alloc_failed",
        "rocblas_status_memory_error",
        "miopenstatusallocfailed",
        # RCCL says errors with NCCL's words (src/include/checks.h and alloc.h)
        "failure 2 'out of memory'",
        "failure 'out of memory'",
        "failed to cuda malloc",
        "failed to cuda calloc",
    ),
    switches=(
        # HIP documentation, "HIP environment variables", debug variables: 1 waits before a command,
        # 2 after it, 3 both
        Switch("AMD_SERIALIZE_KERNEL", "launches run one by one", ASYNCHRONY, "[1-3]"),
        Switch("AMD_SERIALIZE_COPY", "copies run one by one", ASYNCHRONY, "[1-3]"),
        Switch("HIP_LAUNCH_BLOCKING", "each launch waits for its end", ASYNCHRONY, "0*[1-9].*"),
        # ROCm documentation, "System debugging", ROCr level environment variables for debug
        Switch("HSA_ENABLE_SDMA", "kernels copy, and not the copy engines", on="0"),
        Switch("HSA_ENABLE_INTERRUPT", "the host polls for the end of work", on="0"),
        Switch("HSA_DISABLE_CACHE", "the GPU's L2 cache is off", on="1"),
    ),
    tables=Path(__file__).resolve().parent / "tables",
)
