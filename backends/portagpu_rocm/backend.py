"""A ROCm device as a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu_rocm import identity
from portagpu_rocm.roctx import attached, pause, profiler_name, resume
from portagpu_torch_gpu.device import TorchGpu

if TYPE_CHECKING:
    from portagpu.facts.captures.marked_blocks import RangeTool
    from portagpu_torch_gpu.plugin import TorchGpuPlugin


class RocmBackend(TorchGpu):
    """One AMD GPU, or one compute partition of it.

    torch calls the device ``cuda``, MIOpen ``cudnn`` and RCCL ``nccl``; ranges are ROCTx's.
    ``integrated`` is True on an APU, whose allocations may spill into the host's memory.
    ``multi_processor_count`` is HIP's, which counts RDNA's workgroup processors of two units each.
    """

    __slots__ = ("blas_library", "compute_partition", "dnn_library", "memory_partition")

    def __init__(self, plugin: TorchGpuPlugin, index: int) -> None:
        description, properties = identity.describe(index, plugin.root)
        super().__init__(plugin, description, properties)
        self.compute_partition, self.memory_partition = identity.modes(plugin.root, self.pci)
        self.dnn_library = "MIOpen"
        self.blas_library = identity.blas_library()
        plugin.remember(index, self.pci, self.uuid)

    def range_tool(self) -> RangeTool | None:
        return attached()

    def attached_profiler(self) -> str | None:
        return profiler_name()

    def profiler_start(self) -> None:
        """ROCTx's resume: HIP's own call (hipProfilerStart) is a dummy that no profiler follows."""
        if not resume():
            super().profiler_start()

    def profiler_stop(self) -> None:
        """ROCTx's pause; see :meth:`profiler_start`."""
        if not pause():
            super().profiler_stop()
