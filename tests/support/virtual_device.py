"""A device in virtual time: streams, events and graphs whose every moment is computed.

A host call costs HOST_S. A kernel lasts the device's ``kernel_s``, long work a multiple of it. A
kernel reads its operands when it begins and writes its result when it ends, so that whoever does
not wait finds old values. Any number of streams run at a time. Nothing here looks at a clock.

Rules are single small methods, so that a fault replaces one of them.
"""

from __future__ import annotations

import heapq
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

from portagpu.facts.capability import Capability
from portagpu.suites.search.ordering.model import BUFFERS, FACTOR, Kernel
from portagpu_cpu.backend import CpuBackend
from portagpu_cpu.plugin import PLUGIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST_S: Final = 6e-6
LENGTHS: Final = (2e-6, 20e-6, 200e-6, 2e-3, 20e-3, 200e-3, 1.0)
"""Seconds that a kernel lasts: 2 us to 1 s."""
WRITES, READS = 0, 1
"""Of two things at one moment a result is written before an operand is read."""


class VirtualStream:
    """A queue: ``free_at`` is when all its work is over."""

    def __init__(self, gpu: VirtualDevice, priority: int = 0) -> None:
        self.gpu = gpu
        self.device = gpu.device
        self.priority = priority
        self.free_at = 0.0
        self.tail: frozenset[int] | None = None
        """In a capture: the kernels of the graph that later ones come after."""

    def synchronize(self) -> None:
        self.gpu.host_call()
        self.gpu.wait_until(self.free_at)

    def query(self) -> bool:
        self.gpu.host_call()
        return self.free_at <= self.gpu.now

    def wait_stream(self, stream: VirtualStream) -> None:
        self.gpu.host_call()
        self.follow(stream.free_at, stream.tail)

    def wait_event(self, event: VirtualEvent) -> None:
        self.gpu.host_call()
        if event.recorded:
            self.follow(event.at, event.tail)

    def follow(self, moment: float, tail: frozenset[int] | None) -> None:
        """Later work comes after that moment, or after those kernels of the graph."""
        if tail is not None:
            self.tail = (self.tail or frozenset()) | tail
        elif self.tail is None:
            self.free_at = max(self.free_at, moment)

    def record_event(self, event: VirtualEvent | None = None) -> VirtualEvent:
        event = VirtualEvent(self.gpu) if event is None else event
        event.record(self)
        return event


class VirtualEvent:
    """A moment of a stream: ``at`` is when it happens."""

    def __init__(
        self, gpu: VirtualDevice, enable_timing: bool = False, blocking: bool = False
    ) -> None:
        self.gpu = gpu
        self.timing = enable_timing
        self.blocking = blocking
        self.recorded = False
        self.at = 0.0
        self.tail: frozenset[int] | None = None
        self.moments: list[float] = []
        """Of every record."""
        self.thread = 0
        """Which thread recorded it last."""

    def record(self, stream: VirtualStream | None = None) -> None:
        self.gpu.host_call()
        stream = self.gpu.current_stream() if stream is None else stream
        self.recorded = True
        self.tail = stream.tail
        self.at = stream.free_at = max(self.gpu.now, stream.free_at)
        self.moments.append(self.at)
        self.thread = threading.get_ident()

    def wait(self, stream: VirtualStream | None = None) -> None:
        (self.gpu.current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        self.gpu.host_call()
        return self.at <= self.gpu.now

    def synchronize(self) -> None:
        self.gpu.host_call()
        self.gpu.wait_until(self.at)

    def elapsed_time(self, end_event: VirtualEvent) -> float:
        self.gpu.host_call()
        if not (self.timing and end_event.timing):
            raise ValueError("both events need enable_timing")
        if not (self.recorded and end_event.recorded):
            raise ValueError("both events need a record")
        if max(self.at, end_event.at) > self.gpu.now:
            raise RuntimeError("an event has not happened")
        return (end_event.at - self.at) * 1e3


class VirtualGraph:
    """Kernels, each with those of the graph that it comes after."""

    def __init__(self, gpu: VirtualDevice) -> None:
        self.gpu = gpu
        self.nodes: list[tuple[Kernel, frozenset[int]]] = []
        self.open = False
        self.stream: VirtualStream | None = None
        self.replays = 0

    def replay(self) -> None:
        self.gpu.host_call()
        self.gpu.history.add("replay")
        self.replays += 1
        self.run(self.gpu.current_stream())

    def run(self, stream: VirtualStream) -> None:
        """Run all kernels on a stream, each when those before it are over."""
        first = max(self.gpu.now, stream.free_at)
        ends: list[float] = []
        for kernel, before in self.nodes:
            begin = max([first, *(ends[each] for each in before)])
            ends.append(self.gpu.schedule(kernel, begin))
        stream.free_at = max([first, *ends])


class _Current(threading.local):
    def __init__(self, stream: VirtualStream) -> None:
        self.streams = [stream]


class VirtualDevice(CpuBackend):
    """A device whose kernels last ``kernel_s`` seconds of its own clock ``now``."""

    def __init__(self, kernel_s: float) -> None:
        super().__init__(PLUGIN, 0)
        self.capabilities |= {Capability.GRAPHS}
        self.kernel_s = kernel_s
        self.now = 0.0
        self.memory = dict.fromkeys(BUFFERS, 0)
        self._effects: list[tuple[float, int, int, Callable[[], None]]] = []
        self._count = 0
        self.streams: list[VirtualStream] = []
        self._default = VirtualStream(self)
        self._streams = _Current(self._default)
        self.capturing: VirtualGraph | None = None
        self.history: set[str] = set()
        """What the program has done: "error", "capture", "replay"."""

    # the clock and the memory

    def host_call(self) -> None:
        """The host spends time in a call."""
        self.wait_until(self.now + HOST_S)

    def wait_until(self, moment: float) -> None:
        """The clock of the host goes on; what happens until then has happened."""
        self.now = max(self.now, moment)
        while self._effects and self._effects[0][0] <= self.now:
            heapq.heappop(self._effects)[3]()

    def schedule(self, kernel: Kernel, begin: float) -> float:
        """Let a kernel run from that moment; when it ends."""
        end, read = begin + self.kernel_s, {}

        def reads() -> None:
            read.update(self.memory)

        def writes() -> None:
            self.memory[kernel.target] = self.result(kernel, read)

        for moment, kind, effect in ((begin, READS, reads), (end, WRITES, writes)):
            self._count += 1
            heapq.heappush(self._effects, (moment, kind, self._count, effect))
        return end

    def result(self, kernel: Kernel, read: dict[str, int]) -> int:
        """What a kernel leaves, from what it read."""
        if kernel.kind == "write":
            return kernel.value
        old = FACTOR * read[kernel.target] if kernel.kind == "add" else 0
        return (old + read[kernel.source] + 2**63) % 2**64 - 2**63

    def launch(self, kernel: Kernel) -> None:
        """A kernel on the current stream, or in the graph that is captured from it."""
        self.host_call()
        self.enqueue(kernel, self.current_stream())

    def enqueue(self, kernel: Kernel, stream: VirtualStream) -> None:
        if stream.tail is not None and self.capturing is not None:
            nodes = self.capturing.nodes
            nodes.append((kernel, stream.tail))
            stream.tail |= {len(nodes) - 1}
        else:
            stream.free_at = self.schedule(kernel, max(self.now, stream.free_at))

    def busy(self, work: int) -> None:
        """The current stream has nothing but that to do for ``work`` kernels' time."""
        self.host_call()
        stream = self.current_stream()
        stream.free_at = max(self.now, stream.free_at) + work * self.kernel_s

    # the contract

    def synchronize(self) -> None:
        self.host_call()
        self.wait_until(max(stream.free_at for stream in (self._default, *self.streams)))

    def Stream(self, priority: int = 0) -> Any:  # noqa: N802 - torch's name
        self.streams.append(VirtualStream(self, priority))
        return self.streams[-1]

    def current_stream(self) -> Any:
        return self._streams.streams[-1]

    def default_stream(self) -> Any:
        return self._default

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        if stream is None:
            yield
            return
        self.push(stream)
        try:
            yield
        except BaseException:
            self.pop_after_error()
            raise
        else:
            self.pop()

    def push(self, stream: VirtualStream) -> None:
        """A block begins."""
        self._streams.streams.append(stream)

    def pop(self) -> None:
        """A block ends."""
        self._streams.streams.pop()

    def pop_after_error(self) -> None:
        """A block ends by an error."""
        self.history.add("error")
        self._streams.streams.pop()

    def set_stream(self, stream: Any) -> None:
        if stream is not None:
            self._streams.streams[-1] = stream

    def Event(  # noqa: N802 - torch's name
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Any:
        del interprocess
        return VirtualEvent(self, enable_timing, blocking)

    def Graph(self) -> Any:  # noqa: N802 - one name for every vendor's graph
        return VirtualGraph(self)

    @contextmanager
    def graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
    ) -> Iterator[Any]:
        del pool, capture_error_mode
        stream = self.Stream() if stream is None else stream
        stream.tail, self.capturing, cuda_graph.stream = frozenset(), cuda_graph, stream
        try:
            with self.stream(stream):
                yield cuda_graph
        finally:
            self.end_capture(cuda_graph)

    def end_capture(self, graph: VirtualGraph) -> None:
        """The graph is whole; its streams take work again."""
        del graph
        self.history.add("capture")
        self.capturing = None
        for each in (self._default, *self.streams):
            each.tail = None

    def graph_pool_handle(self) -> Any:
        return (0, 1)

    def is_current_stream_capturing(self) -> bool:
        return self.current_stream().tail is not None


class VirtualKernels:
    """Kernels on a virtual device."""

    most: ClassVar[int] = 4**8
    waits: ClassVar[bool] = False

    def __init__(self, gpu: VirtualDevice) -> None:
        self._gpu = gpu

    def start(self, values: dict[str, int]) -> None:
        self.forget_streams()
        self._gpu.memory.update(values)
        self._gpu.history.clear()

    def forget_streams(self) -> None:
        """Programs before this one have left nothing: all is over, and their streams are gone."""
        gpu = self._gpu
        ends = [stream.free_at for stream in (gpu._default, *gpu.streams)]
        gpu.wait_until(max([*ends, *(each[0] for each in gpu._effects)]))
        del gpu.streams[:-8]

    def launch(self, kernel: Kernel) -> None:
        self._gpu.launch(kernel)

    def launch_through(self, kernel: Kernel) -> None:
        self._gpu.launch(kernel)

    def busy(self, work: int) -> None:
        if work:
            self._gpu.busy(work)

    def peek(self, buffer: str) -> frozenset[int]:
        self._gpu.host_call()
        return frozenset((self._gpu.memory[buffer],))

    def now(self) -> float:
        return self._gpu.now

    def settle(self) -> None:
        self._gpu.wait_until(max([self._gpu.now, *(each[0] for each in self._gpu._effects)]))

    def pause(self, seconds: float) -> None:
        self._gpu.wait_until(self._gpu.now + seconds)
