"""The ROCm backend: AMD's GPUs through torch, RCCL, and AMD SMI for readings.

This module imports neither torch nor a vendor's package.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from portagpu.availability import Need, count_reachable
from portagpu.variables import BY_RUNTIME
from portagpu_torch_gpu.plugin import TorchGpuPlugin

if TYPE_CHECKING:
    from portagpu.contract import Backend

_KFD: Final = "dev/kfd"


class RocmPlugin(TorchGpuPlugin):
    """Usable where torch is a ROCm build and the amdgpu driver lets this process compute."""

    name = "rocm"
    contract = (1, 1)
    need = Need(kind="rocm", build="ROCm", vendor="amd", maker="AMD")
    vendor = "amd"
    variables = BY_RUNTIME["rocm"]
    commands = (
        *(("amd-smi", what, "--json") for what in ("static", "metric", "topology")),
        *(("rocm-smi", "--showtopo"), ("rocminfo",)),
    )
    toolchain_module = "portagpu_rocm_build.machine_code"
    backend = "portagpu_rocm.backend"
    identity = "portagpu_rocm.identity"
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
