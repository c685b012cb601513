"""The CUDA backend: NVIDIA's GPUs through torch, NCCL, and NVML for readings.

This module imports neither torch nor a vendor's package.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from portagpu.devices.availability import Need
from portagpu.devices.plugin_parts import Variables
from portagpu_torch_gpu.plugin import TorchGpuPlugin

if TYPE_CHECKING:
    from portagpu.devices.contract import Backend


class CudaPlugin(TorchGpuPlugin):
    """Usable where torch is a CUDA build and NVIDIA's driver shows a GPU to this process."""

    name = "cuda"
    contract = (1, 6)
    need = Need(kind="cuda", build="CUDA", vendor="nvidia", maker="NVIDIA")
    vendor = "nvidia"
    variables = Variables(
        # CUDA C++ Programming Guide, environment variables
        one_by_one={"CUDA_LAUNCH_BLOCKING": "1"},
        # NCCL user guide, "Environment Variables"
        no_peer_copies={"NCCL_P2P_DISABLE": "1"},
        caches={
            "CUDA_CACHE_PATH": "cuda",
            "TRITON_CACHE_DIR": "triton",
            "TORCHINDUCTOR_CACHE_DIR": "inductor",
        },
        # CUDA-GDB documentation, "GPU core dump support"
        faults={"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "0"},
        # torch, c10/cuda/CUDAAllocatorConfig.h: the first of these that is set
        allocator=("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
        # torch.utils.cpp_extension, _get_cuda_arch_flags
        arch_list="TORCH_CUDA_ARCH_LIST",
        arch_form=(r"sm_(\d+)(\d)([af]?)", r"\1.\2\3"),
    )
    commands = tuple(("nvidia-smi", *what.split()) for what in ("-q -x", "topo -m", "nvlink -s"))
    toolchain_module = "portagpu_cuda_build.machine_code"
    cost_model_module = "portagpu_cuda.cost_model"
    tuners_module = "portagpu_cuda.libraries"
    storage_module = "portagpu_cuda.libraries"
    backend = "portagpu_cuda.backend"
    prober = "portagpu_cuda.gpus"
    library = "NVML"

    def driver_problem(self, count: int) -> str:
        """The control device is what every CUDA program opens first (WSL has another one)."""
        if self.root.exists("dev/nvidiactl") or self.root.exists("dev/dxg"):
            return ""
        return (
            f"this machine has {count} NVIDIA GPU(s) and no /dev/nvidiactl: load NVIDIA's driver, "
            "or start the container with its GPUs"
        )

    def may_be_here(self, count: int) -> bool:
        """Under WSL the kernel's files show no GPU, and NVML does."""
        return count > 0 or self.root.exists("dev/dxg")

    def count_without_opening(self) -> int | None:
        """torch's own count, which asks NVML and honours CUDA_VISIBLE_DEVICES.

        Only where NVML answers: without it, and for MIG slices by UUID, torch opens the driver. Not
        where a GPU is cut by MIG: CUDA then shows one slice, and NVML counts GPUs. A count of 0 is
        unknown, for the driver's own words say why.
        """
        if os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-") or not _nvml_counts():
            return None
        import torch

        return torch.cuda.device_count() or None

    def open(self, index: int) -> Backend:
        """Open the device of that index among the visible ones."""
        from portagpu_cuda.backend import CudaBackend

        return CudaBackend(self, index)


def _nvml_counts() -> bool:
    """Whether NVML answers and counts the GPUs as CUDA does, because none is in MIG mode.

    Names and numbers are those of nvml.h.
    """
    import ctypes

    count, handle = ctypes.c_uint(), ctypes.c_void_p()
    mode, pending = ctypes.c_uint(), ctypes.c_uint()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return False
        try:
            if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
                return False
            for index in range(count.value):
                found = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
                modes = ctypes.byref(mode), ctypes.byref(pending)
                # a device that is not such a GPU answers with an error
                if found == 0 and nvml.nvmlDeviceGetMigMode(handle, *modes) == 0 and mode.value:
                    return False
        finally:
            nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return False
    return True


PLUGIN: Final = CudaPlugin()
