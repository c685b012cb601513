"""Optional calls of a device: each raises Unsupported until a backend implements it.

A backend that claims a capability must implement its calls. The other calls may be left out. Since
contract 1.2, except the older ``Graph``, ``graph`` and ``pin``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from portagpu.base.errors import Unsupported

if TYPE_CHECKING:
    import os
    from contextlib import AbstractContextManager

    import torch

    from portagpu.devices.objects import Graph as GraphType
    from portagpu.devices.objects import Stream as StreamType


class OptionalCalls:
    """Calls with torch's names and meanings that some devices have.

    Those of a capability raise Unsupported where it is not claimed; see
    :class:`portagpu.devices.contract.Capability`.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        name: str

    def _raise_unsupported(self, what: str) -> NoReturn:
        raise Unsupported(f"the {self.name} backend {what}")

    def Graph(self) -> GraphType:  # noqa: N802 - one name for every vendor's graph
        """A graph to capture work into. Raises Unsupported where GRAPHS is not claimed."""
        self._raise_unsupported("does not capture graphs; run the work eagerly")

    def graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
    ) -> AbstractContextManager[Any]:
        """Capture the block's work into a graph, with the options of ``torch.cuda.graph``.

        :param cuda_graph: an object of :meth:`Graph`, which holds the captured work after the
            block.
        :param pool: memory to share with another graph; None is a pool of its own.
        :param stream: the stream that captures; by default a side stream of the device.
        :param capture_error_mode: "global", "thread_local" or "relaxed": which threads' unsafe
            calls end the capture with an error.
        :returns: a context manager.
        :raises Unsupported: where GRAPHS is not claimed.
        """
        del cuda_graph, pool, stream, capture_error_mode
        self._raise_unsupported("does not capture graphs; run the work eagerly")

    def graph_pool_handle(self) -> Any:
        """A pool of memory for graphs to share. Raises Unsupported where GRAPHS is not claimed."""
        self._raise_unsupported("does not capture graphs; run the work eagerly")

    def is_current_stream_capturing(self) -> bool:
        """Whether a graph is captured from the current stream; GRAPHS, and False without."""
        return False

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` in page-locked host memory. Raises Unsupported where it is not claimed.

        Ask ``gpu.supports("pinned-memory")`` first, for instance to set a DataLoader's
        ``pin_memory``.
        """
        del tensor
        self._raise_unsupported("has no page-locked memory; use the tensor as it is")

    def set_stream(self, stream: Any) -> None:
        """Put this thread's work on ``stream`` from now on; None changes nothing.

        Raises Unsupported where STREAMS is not claimed, or the backend is older than contract 1.2.
        """
        if stream is not None:
            self._raise_unsupported(
                "cannot set a stream for good; use a block: with pg.stream(stream)"
            )

    def default_stream(self) -> StreamType:
        """The stream that work is put on where nobody chose another, inside blocks too; STREAMS."""
        self._raise_unsupported("does not name its default stream; use pg.current_stream()")

    def ExternalStream(self, stream_ptr: int) -> StreamType:  # noqa: N802 - torch's name
        """A stream that another library made, from its pointer; EXTERNAL_STREAMS.

        The backend's own streams have their pointer as ``cuda_stream``, whoever the vendor is.
        """
        del stream_ptr
        self._raise_unsupported("takes no streams of other libraries; use pg.Stream()")

    def memory_snapshot(self, mempool_id: Any = None) -> Any:
        """What the allocator holds, as ``torch.cuda.memory_snapshot`` lists it; ALLOCATOR.

        Each segment has at least ``device``, an index, and ``total_size`` in bytes.
        """
        del mempool_id
        self._raise_unsupported("has no allocator that could be listed; see pg.memory_stats()")

    def record_memory_history(self, *arguments: Any, **options: Any) -> None:
        """``torch.cuda.memory._record_memory_history`` with its arguments; ALLOCATOR.

        :param arguments: as torch's: first ``enabled``, where None ends the recording.
        :param options: as torch's, such as ``max_entries``.
        :raises Unsupported: where ALLOCATOR is not claimed.
        """
        del arguments, options
        self._raise_unsupported("records no history of its memory; see pg.max_memory_allocated()")

    def dump_memory_snapshot(self, filename: str | os.PathLike[str]) -> None:
        """Write the recorded history, for https://pytorch.org/memory_viz; ALLOCATOR."""
        del filename
        self._raise_unsupported("records no history of its memory; see pg.max_memory_allocated()")

    def MemPool(self, *arguments: Any, **options: Any) -> Any:  # noqa: N802 - torch's name
        """A pool of the allocator: ``torch.cuda.MemPool``; ALLOCATOR.

        :param arguments: as torch's: first ``allocator``.
        :param options: as torch's.
        :raises Unsupported: where ALLOCATOR is not claimed.
        """
        del arguments, options
        self._raise_unsupported("has no pools of memory; allocate as usual")

    def use_mem_pool(self, pool: Any) -> AbstractContextManager[Any]:
        """Allocate from ``pool`` inside the block; ALLOCATOR."""
        del pool
        self._raise_unsupported("has no pools of memory; allocate as usual")

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        """Limit this process to that part of the device's memory; ALLOCATOR."""
        del fraction
        self._raise_unsupported("cannot limit a process's memory; use the container's limit")

    def get_device_capability(self) -> tuple[int, int]:
        """torch's (major, minor): CUDA's compute capability, or the numbers of AMD's gfx name.

        Numbers of two vendors do not compare. Raises Unsupported where torch has none.
        """
        self._raise_unsupported(
            "has no compute capability; ask gpu.arch, gpu.supports() or gpu.precision"
        )

    def random_wave(self) -> int:
        """Elements that one random call fills as :func:`portagpu.devices.rng.launch_wave` says.

        Raises Unsupported for a device whose random numbers are made by another rule.
        """
        self._raise_unsupported(
            "draws random numbers by a rule of its own; draw on the CPU and copy"
        )

    def can_device_access_peer(self, peer_device: int) -> bool:
        """Whether this device reads the memory of that one without going through the host."""
        del peer_device
        self._raise_unsupported("does not say which devices reach each other")

    def ipc_collect(self) -> None:
        """Free memory of tensors that other processes have released; IPC."""
        self._raise_unsupported("shares no memory between processes; send a copy")

    def profiler_start(self) -> None:
        """Have the vendor's profiler that is attached to this process begin to record."""
        self._raise_unsupported("controls no profiler; use torch.profiler")

    def profiler_stop(self) -> None:
        """Have the vendor's profiler that is attached to this process stop recording."""
        self._raise_unsupported("controls no profiler; use torch.profiler")

    def cudart(self) -> Any:
        """The runtime's calls as ``torch.cuda.cudart`` names them, where torch has them.

        At least ``cudaProfilerStart`` and ``cudaProfilerStop``.
        """
        self._raise_unsupported("has no CUDA runtime; pg.profiler.start() and stop() are portable")


Optional = OptionalCalls
"""The name of :class:`OptionalCalls` up to contract 1.4."""
