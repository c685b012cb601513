"""A CUDA device as a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu_cuda import identity
from portagpu_cuda.nvtx_ranges import attached, profiler_name
from portagpu_torch_gpu.device import TorchGpu

if TYPE_CHECKING:
    from portagpu.facts.captures.marked_blocks import RangeTool
    from portagpu_torch_gpu.plugin import TorchGpuPlugin


class CudaBackend(TorchGpu):
    """One NVIDIA GPU, or one MIG slice of it.

    torch's ``cudnn`` and ``nccl`` are cuDNN and NCCL here; ranges are NVTX's. A MIG slice has a
    name, memory and units of its own, so that it is no product of the matrix but a member of its
    architecture.
    """

    __slots__ = ("blas_library", "dnn_library", "mig_profile")

    def __init__(self, plugin: TorchGpuPlugin, index: int) -> None:
        description, properties = identity.describe(index, plugin.root)
        super().__init__(plugin, description, properties)
        self.mig_profile = self.part.name if self.part is not None else None
        self.dnn_library = "cuDNN"
        self.blas_library = "cuBLAS"
        plugin.remember(index, self.pci, self.uuid)

    def range_tool(self) -> RangeTool | None:
        return attached()

    def attached_profiler(self) -> str | None:
        return profiler_name()
