"""One device that torch reaches through ``torch.cuda``, every call with its index."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from portagpu.devices.contract import Backend
from portagpu.devices.rng import launch_wave
from portagpu.devices.torch_compile import run_by_the_compiler
from portagpu.facts.captures.labels import DOMAIN, check
from portagpu.facts.captures.marked_blocks import Annotation, torch_records
from portagpu_torch_gpu.ranges import TorchRanges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from portagpu.devices.contract import Description, Plugin
    from portagpu.facts.captures.labels import Color, Label
    from portagpu.facts.captures.marked_blocks import RangeTool


class DeviceEvent(torch.cuda.Event):
    """torch's event, whose default stream is its own device's current one.

    ``torch.cuda.Event`` records on the current stream of the *current* device, which need not be
    the device that the event was asked of.
    """

    index: int | None = None

    def record(self, stream: Any = None) -> None:
        """Record the event in ``stream``, by default its device's current one."""
        super().record(torch.cuda.current_stream(self.index) if stream is None else stream)

    def wait(self, stream: Any = None) -> None:
        """Order later work on ``stream``, by default its device's current one, after the event."""
        super().wait(torch.cuda.current_stream(self.index) if stream is None else stream)


class TorchGpu(Backend):
    """The primitives of the contract over ``torch.cuda``; objects are torch's own.

    A method without a word here does what the contract's docstring says.

    - ``empty_cache`` frees the caches of every device of the process: torch has no other.
    - ``Stream`` clamps the priority to :meth:`stream_priorities`, as torch does.
    - ``Event`` is a ``torch.cuda.Event``. Two events with nothing between them may be 0 ms apart,
      and on some drivers slightly negative: time at least a millisecond of work.
    - ``Graph`` is a ``torch.cuda.CUDAGraph``; :meth:`graph` is ``torch.cuda.graph`` on this
      device. What may not be captured (a synchronisation, a copy to the host) raises there.
    """

    __slots__ = ("_capture_stream", "_properties", "integrated")

    # half the time of torch.cuda.current_device, which looks first whether CUDA is initialised
    current_index = staticmethod(torch.accelerator.current_device_index)

    def __init__(self, plugin: Plugin, description: Description, properties: Any) -> None:
        super().__init__(plugin, description)
        self._properties = properties
        self._capture_stream: torch.cuda.Stream | None = None
        integrated = getattr(properties, "is_integrated", None)
        self.integrated: bool | None = None if integrated is None else bool(integrated)
        """Whether the GPU shares its memory with a CPU in one package; None where it says not."""

    def activate(self) -> None:
        torch.cuda.set_device(self.index)

    def get_device_properties(self) -> Any:
        return self._properties

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.index)

    def mem_get_info(self) -> tuple[int, int]:
        """(free, total) bytes as the driver sees them, other processes' memory counted."""
        return torch.cuda.mem_get_info(self.index)

    def memory_stats(self) -> Mapping[str, int]:
        return torch.cuda.memory_stats(self.index)

    def reset_peak_memory_stats(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.index)

    def empty_cache(self) -> None:
        """Give unused cached blocks back to the driver, of every device of the process."""
        torch.cuda.empty_cache()

    def generator(self) -> torch.Generator:
        return torch.cuda.default_generators[self.index]

    def stream_priorities(self) -> tuple[int, int]:
        """(least, greatest) priority that streams of this device really have; lower is urgent."""
        with torch.cuda.device(self.index):
            least, greatest = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]
        return least, greatest

    def Stream(self, priority: int = 0) -> Any:  # noqa: N802 - torch's name
        """A new stream of this device; its attribute ``priority`` says what it was clamped to."""
        return torch.cuda.Stream(self.index, priority)

    def current_stream(self) -> Any:
        return torch.cuda.current_stream(self.index)

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Put work on ``stream`` inside the block; its device is the current one there."""
        return torch.cuda.stream(stream)

    def Event(  # noqa: N802 - torch's name
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Any:
        """A ``torch.cuda.Event`` of this device."""
        event = DeviceEvent(enable_timing, blocking, interprocess)  # type: ignore[no-untyped-call]
        event.index = self.index
        return event

    def range_tool(self) -> RangeTool | None:
        """What hands ranges to the vendor's profiler; None where none is attached to the process.

        Here torch's own calls, whether or not anything listens.
        """
        return TorchRanges()

    def annotate(self, name: str) -> Annotation:
        """A range for the vendor's profiler, and for torch's while that records.

        None inside ``torch.compile``, which fuses across the block: the range would be of the
        compilation.
        """
        return Annotation(name, tool=self.range_tool)

    def labelled_block(
        self, name: str, labels: Mapping[str, Label], domain: str = DOMAIN, color: Color = None
    ) -> Annotation:
        check(domain, color, labels)
        return Annotation(name, labels, domain, color, self.range_tool)

    def _range(self, msg: str) -> Annotation:
        return Annotation(msg, domain="", tool=self.range_tool)

    @run_by_the_compiler
    def listens(self) -> bool:
        return torch_records() or self.range_tool() is not None

    def Graph(self) -> Any:  # noqa: N802 - one name for every vendor's graph
        return torch.cuda.CUDAGraph()

    @contextmanager
    def graph(
        self,
        cuda_graph: torch.cuda.CUDAGraph,
        pool: Any = None,
        stream: torch.cuda.Stream | None = None,
        capture_error_mode: str = "global",
    ) -> Iterator[torch.cuda.CUDAGraph]:
        """Capture the block's work into ``cuda_graph``, with the options of ``torch.cuda.graph``.

        By default on a stream of this device, the same at every call. ``torch.cuda.graph`` alone
        synchronises the current device, and its own default stream is of the device that was
        current when the process first captured. torch raises what may not be captured.
        """
        if stream is None:
            stream = self._capture_stream = self._capture_stream or self.Stream()
        with (
            torch.cuda.device(self.index),
            torch.cuda.graph(cuda_graph, pool, stream, capture_error_mode),
        ):
            yield cuda_graph

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` in page-locked host memory; torch raises for one that is on a device."""
        return tensor.pin_memory()

    def graph_pool_handle(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def is_current_stream_capturing(self) -> bool:
        with torch.cuda.device(self.index):
            return torch.cuda.is_current_stream_capturing()

    def set_stream(self, stream: Any) -> None:
        """Put work on ``stream`` from now on; its device becomes the current one, as in torch."""
        torch.cuda.set_stream(stream)

    def default_stream(self) -> Any:
        return torch.cuda.default_stream(self.index)

    def ExternalStream(self, stream_ptr: int) -> Any:  # noqa: N802 - torch's name
        """A ``torch.cuda.ExternalStream`` of this device."""
        return torch.cuda.ExternalStream(stream_ptr, self.index)

    def mark(self, msg: str) -> None:
        if not torch.compiler.is_compiling() and (tool := self.range_tool()) is not None:
            tool.mark(msg)

    def memory_summary(self, abbreviated: bool = False) -> str:
        """torch's table of the allocator."""
        return torch.cuda.memory_summary(self.index, abbreviated)

    def memory_snapshot(self, mempool_id: Any = None) -> Any:
        return torch.cuda.memory_snapshot(mempool_id)

    def record_memory_history(self, *arguments: Any, **options: Any) -> None:
        torch.cuda.memory._record_memory_history(*arguments, **options)

    def dump_memory_snapshot(self, filename: str | os.PathLike[str]) -> None:
        torch.cuda.memory._dump_snapshot(os.fspath(filename))

    def MemPool(self, *arguments: Any, **options: Any) -> Any:  # noqa: N802 - torch's name
        with torch.cuda.device(self.index):
            return torch.cuda.MemPool(*arguments, **options)

    def use_mem_pool(self, pool: Any) -> AbstractContextManager[Any]:
        return torch.cuda.use_mem_pool(pool, self.index)

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        torch.cuda.set_per_process_memory_fraction(fraction, self.index)

    def get_device_capability(self) -> tuple[int, int]:
        return torch.cuda.get_device_capability(self.index)

    def can_device_access_peer(self, peer_device: int) -> bool:
        return torch.cuda.can_device_access_peer(self.index, peer_device)

    def ipc_collect(self) -> None:
        torch.cuda.ipc_collect()

    def profiler_start(self) -> None:
        torch.cuda.profiler.start()

    def profiler_stop(self) -> None:
        torch.cuda.profiler.stop()

    def cudart(self) -> Any:
        return torch.cuda.cudart()

    def random_wave(self) -> int:
        """Elements of one random call up to which other devices may draw the same numbers."""
        return launch_wave(self.sizing)
