"""One device that torch reaches through ``torch.cuda``, every call with its index."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from portagpu.contract import Backend
from portagpu.rng import launch_wave

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from portagpu.contract import Description, Plugin


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

    def Stream(self, priority: int = 0) -> torch.cuda.Stream:  # noqa: N802 - torch's name
        """A new stream of this device; its attribute ``priority`` says what it was clamped to."""
        return torch.cuda.Stream(self.index, priority)

    def current_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.index)

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Put work on ``stream`` inside the block; its device is the current one there."""
        return torch.cuda.stream(stream)

    def Event(  # noqa: N802 - torch's name
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> DeviceEvent:
        """A ``torch.cuda.Event`` of this device."""
        event = DeviceEvent(enable_timing, blocking, interprocess)  # type: ignore[no-untyped-call]
        event.index = self.index
        return event

    @contextmanager
    def annotate(self, name: str) -> Iterator[None]:
        """A range for the vendor's profiler; torch's own ``nvtx.range`` would format braces."""
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()

    def Graph(self) -> torch.cuda.CUDAGraph:  # noqa: N802 - one name for every vendor's graph
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
        current when the process first captured. torch raises what may not be captured. Finish
        collectives before: a watchdog's query of their events ends a capture.
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

    def random_wave(self) -> int:
        """Elements of one random call up to which other devices may draw the same numbers."""
        return launch_wave(self.sizing)
