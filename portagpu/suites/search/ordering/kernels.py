"""How the kernels of a program are launched, captured into graphs, and timed.

They are launched on torch's tensors, or on a device of the tests. Of times the host's clock gives
bounds, because it brackets every event.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from portagpu.facts.capability import Capability
from portagpu.suites.search.ordering.model import BUFFERS, FACTOR, Kernel, Step

if TYPE_CHECKING:
    import torch

    from portagpu.devices.contract import Backend
    from portagpu.suites.search.ordering.model import Model


SETTLE_S: Final = 0.2
"""Longer than the longest work of a program. Nothing is judged by it: it chooses the words."""
SLACK_MS: Final = 1.0
"""How far two clocks may differ apart from their rates."""
RATE: Final = 1e-3
"""Crystals of two clocks differ by 100 parts per million at most; ten times that is allowed."""
BACK_MS: Final = 0.01
"""How far below zero an ordered pair may be: ``streams/elapsed-time-never-negative``."""


class Kernels(Protocol):
    """Buffers of whole numbers, and kernels over them on the current stream.

    Every element of a buffer holds the same value, but where kernels race.
    """

    @property
    def most(self) -> int:
        """The longest work that :meth:`busy` is asked for."""

    @property
    def waits(self) -> bool:
        """Whether :meth:`peek` waits for all work, as it must where there is only one queue."""

    def start(self, values: dict[str, int]) -> None:
        """Put a value into each buffer, and wait until it is there."""

    def launch(self, kernel: Kernel) -> None:
        """Launch the kernel on this thread's current stream."""

    def launch_through(self, kernel: Kernel) -> None:
        """Launch a copy by way of memory that is allocated now."""

    def busy(self, work: int) -> None:
        """Keep the current stream busy: ``work`` is a length without a unit, 0 is none."""

    def peek(self, buffer: str) -> frozenset[int]:
        """The values in a buffer now, on a stream of its own that waits for nothing."""

    def settle(self) -> None:
        """Let all work end without asking the device when it does."""

    def now(self) -> float:
        """Seconds on the host's clock."""

    def pause(self, seconds: float) -> None:
        """Let the host do nothing for that long."""


class TorchKernels:
    """Kernels on tensors of the device, which need not compile anything."""

    most: ClassVar[int] = 1024
    elements: ClassVar[int] = 64

    def __init__(self, gpu: Backend) -> None:
        import torch

        self._gpu = gpu
        self._buffers = {
            name: torch.zeros(self.elements, dtype=torch.int64, device=gpu.device)
            for name in BUFFERS
        }
        self._large: torch.Tensor | None = None
        self.waits = not gpu.supports(Capability.STREAMS)
        self._reader: Any = None if self.waits else gpu.Stream()

    def start(self, values: dict[str, int]) -> None:
        self._gpu.synchronize()
        for name, value in values.items():
            self._buffers[name].fill_(value)
        self._gpu.synchronize()

    def launch(self, kernel: Kernel) -> None:
        import torch

        target = self._buffers[kernel.target]
        if kernel.kind == "write":
            target.fill_(kernel.value)
        elif kernel.kind == "copy":
            target.copy_(self._buffers[kernel.source])
        else:
            # one kernel, so that no other one sees it half done
            torch.add(self._buffers[kernel.source], target, alpha=FACTOR, out=target)

    def launch_through(self, kernel: Kernel) -> None:
        self._buffers[kernel.target].copy_(self._buffers[kernel.source] + 0)

    def busy(self, work: int) -> None:
        import torch

        if not work:
            return
        if self._large is None:
            # 64 MiB: longer to read and write than a launch takes, on any device
            self._large = torch.zeros(1 << 24, dtype=torch.float32, device=self._gpu.device)
        for _ in range(work):
            self._large.mul_(1.0)

    def peek(self, buffer: str) -> frozenset[int]:
        with self._gpu.stream(self._reader):
            return frozenset(self._buffers[buffer].tolist())

    def settle(self) -> None:
        time.sleep(SETTLE_S)
        self._gpu.synchronize()

    def now(self) -> float:
        return time.perf_counter()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The steps, and which of their copies go through memory of the graph's own."""

    steps: list[Step]
    through: frozenset[int]

    def capture(
        self, calls: Any, kernels: Kernels, options: dict[str, Any], fork: str, newer: bool
    ) -> tuple[Any, str]:
        """(the graph, what was wrong in the capture); lanes wait by ``fork``, event or stream.

        ``calls`` has the calls of the thread: a device, or the module for the current device.
        ``newer`` is whether they say that a capture is open, as they do since contract 1.2.
        """
        graph = calls.Graph()
        with calls.graph(graph, **options):
            lanes = {0: None if kernels.waits else calls.current_stream()}
            known = not newer or calls.is_current_stream_capturing()
            wrong = "" if known else "a capture is open and nobody knows it"
            if kernels.waits:
                for number, step in enumerate(self.steps):
                    self._do(kernels, number, step)
                return graph, wrong
            for number, step in enumerate(self.steps):
                for lane in {step.lane, step.after} - set(lanes):
                    lanes[lane] = calls.Stream()
                    _order(calls, lanes[lane], lanes[0], fork)
                if step.kernel is None and step.lane != step.after:
                    _order(calls, lanes[step.lane], lanes[step.after], fork)
                with calls.stream(lanes[step.lane]) if step.lane else nullcontext():
                    self._do(kernels, number, step)
            for lane in sorted(set(lanes) - {0}):
                _order(calls, lanes[0], lanes[lane], fork)
        return graph, wrong

    def _do(self, kernels: Kernels, number: int, step: Step) -> None:
        if step.kernel is not None:
            launch = kernels.launch_through if number in self.through else kernels.launch
            launch(step.kernel)


def _order(calls: Any, later: Any, earlier: Any, fork: str) -> None:
    """Make a stream wait for another one's work so far."""
    if fork == "stream":
        later.wait_stream(earlier)
    else:
        later.wait_event(earlier.record_event(calls.Event()))


def captured(steps: list[Any], token: int) -> Recipe:
    """The recipe of a call's steps; writes leave numbers from ``token`` downwards."""
    found, through = [], set()
    for number, (kind, lane, target, source, after) in enumerate(steps):
        if kind == "wait":
            found.append(Step(lane, after=after))
        elif kind == "write":
            found.append(Step(lane, Kernel("write", target, value=token - number)))
        elif target != source:
            if kind == "through":
                through.add(len(found))
            found.append(Step(lane, Kernel("add" if kind == "add" else "copy", target, source)))
    return Recipe(found, frozenset(through))


@dataclass(frozen=True, slots=True)
class Clock:
    """When the events were recorded and known to have happened, in seconds of the host.

    An event happens after the host began to record it, and before the host knew that it had.
    """

    kernels: Kernels
    model: Model
    began: dict[Any, float] = field(default_factory=dict)
    known: dict[Any, float] = field(default_factory=dict)

    def recording(self, event: Any) -> None:
        """The event is recorded next."""
        self.began[event] = self.kernels.now()
        self.known.pop(event, None)

    def looked(self) -> None:
        """The host waited or asked: take the time for the events that it now knows of."""
        now = self.kernels.now()
        for event in self.began:
            if event not in self.known and self.model.known("event", event):
                self.known[event] = now

    def wrong_time(self, shown: str, first: Any, second: Any, value: Any) -> str:
        """What is wrong with the milliseconds between two events that the host knows of."""
        if not isinstance(value, float):
            return f"{shown} is a {type(value).__name__}"
        low = (self.began[second] - self.known[first]) * 1e3
        high = (self.known[second] - self.began[first]) * 1e3
        slack = SLACK_MS + RATE * max(abs(low), abs(high))
        if not low - slack <= value <= high + slack:
            return f"{shown} is {value:.6g} ms, and the host saw {low:.6g} to {high:.6g} ms"
        ordered = not self.model.events[first] & ~self.model.events[second]
        if ordered and value < -BACK_MS:
            return f"{shown}, which comes later, is {value:.6g} ms"
        return ""
