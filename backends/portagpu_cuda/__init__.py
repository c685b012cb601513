"""The CUDA backend: NVIDIA's GPUs through torch, NCCL, and NVML for readings.

This module imports neither torch nor a vendor's package.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Final

from portagpu.availability import Need
from portagpu.variables import BY_RUNTIME
from portagpu_torch_gpu.plugin import TorchGpuPlugin

if TYPE_CHECKING:
    from portagpu.contract import Backend


class CudaPlugin(TorchGpuPlugin):
    """Usable where torch is a CUDA build and NVIDIA's driver shows a GPU to this process."""

    name = "cuda"
    contract = (1, 1)
    need = Need(kind="cuda", build="CUDA", vendor="nvidia", maker="NVIDIA")
    vendor = "nvidia"
    variables = BY_RUNTIME["cuda"]
    commands = tuple(("nvidia-smi", *what.split()) for what in ("-q -x", "topo -m", "nvlink -s"))
    toolchain_module = "portagpu_cuda_build.machine_code"
    backend = "portagpu_cuda.backend"
    identity = "portagpu_cuda.identity"
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

        Only where NVML answers: without it, and for MIG slices by UUID, torch opens the driver.
        """
        if os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
            return None
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() != 0:
                return None
            library.nvmlShutdown()
        except (OSError, AttributeError):
            return None
        import torch

        return torch.cuda.device_count()

    def open(self, index: int) -> Backend:
        """Open the device of that index among the visible ones."""
        from portagpu_cuda.backend import CudaBackend

        return CudaBackend(self, index)


PLUGIN: Final = CudaPlugin()
