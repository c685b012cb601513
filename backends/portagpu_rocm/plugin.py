"""The ROCm backend: AMD's GPUs through torch, RCCL, and AMD SMI for readings.

This module imports neither torch nor a vendor's package.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from portagpu.devices.availability import Need, count_reachable
from portagpu.devices.plugin_parts import Variables
from portagpu_torch_gpu.plugin import TorchGpuPlugin

if TYPE_CHECKING:
    from portagpu.devices.contract import Backend

_KFD: Final = "dev/kfd"


class RocmPlugin(TorchGpuPlugin):
    """Usable where torch is a ROCm build and the amdgpu driver lets this process compute."""

    name = "rocm"
    contract = (1, 6)
    need = Need(kind="rocm", build="ROCm", vendor="amd", maker="AMD")
    vendor = "amd"
    variables = Variables(
        # HIP documentation, "Debugging with HIP"; hipify maps CUDA_LAUNCH_BLOCKING to it
        one_by_one={"AMD_SERIALIZE_KERNEL": "3", "AMD_SERIALIZE_COPY": "3"},
        # RCCL reads NCCL's (RCCL documentation, "Environment variables")
        no_peer_copies={"NCCL_P2P_DISABLE": "1"},
        caches={
            # MIOpen documentation, "Environment variables", find database and kernel cache
            "MIOPEN_USER_DB_PATH": "miopen",
            "MIOPEN_CUSTOM_CACHE_DIR": "miopen-kernels",
            # torch.cuda.tunable: %d is the device; results are of one architecture and toolkit
            "PYTORCH_TUNABLEOP_FILENAME": "tunableop%d.csv",
            "TRITON_CACHE_DIR": "triton",
            "TORCHINDUCTOR_CACHE_DIR": "inductor",
        },
        # ROCr-Runtime: dumps are on by default since ROCm 7, as large as the GPU's memory
        faults={"HSA_DISABLE_COREDUMP_ON_EXCEPTION": "1"},
        # torch, c10/cuda/CUDAAllocatorConfig.h: the first of these that is set
        allocator=("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
        # pytorch PR 177974, in torch 2.11; PR 179930: ROCm 7.0
        expandable_from=((2, 11), (7, 0)),
        # torch.utils.cpp_extension, _get_rocm_arch_flags
        arch_list="PYTORCH_ROCM_ARCH",
        arch_form=(r"(gfx\w+)", r"\1"),
    )
    commands = (
        *(("amd-smi", what, "--json") for what in ("static", "metric", "topology")),
        *(("rocm-smi", "--showtopo"), ("rocminfo",)),
    )
    toolchain_module = "portagpu_rocm_build.machine_code"
    cost_model_module = "portagpu_rocm.cost_model"
    tuners_module = "portagpu_rocm.libraries"
    storage_module = "portagpu_rocm.libraries"
    backend = "portagpu_rocm.backend"
    prober = "portagpu_rocm.gpus"
    library = "AMD SMI"

    def driver_problem(self, count: int) -> str:
        """Every HIP program opens /dev/kfd; the groups ``render`` and ``video`` may."""
        if not self.root.exists(_KFD):
            return (
                f"this machine has {count} AMD GPU(s) and no /dev/kfd: load the amdgpu driver, or "
                "start the container with --device=/dev/kfd --device=/dev/dri"
            )
        if not os.access(self.root.root / _KFD, os.R_OK | os.W_OK):
            return "/dev/kfd may not be opened: add this user to the groups render and video"
        return ""

    def count_without_opening(self) -> int | None:
        """What the masks leave of the device files: torch counts through HIP, which opens them."""
        return count_reachable(self.need, self.root)

    def open(self, index: int) -> Backend:
        """Open the device of that index among the visible ones."""
        from portagpu_rocm.backend import RocmBackend

        return RocmBackend(self, index)


PLUGIN: Final = RocmPlugin()
