"""What a program captures into a graph: work on the stream of the capture and beside it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from portagpu.suites.search.ordering.model import Kernel, Step

if TYPE_CHECKING:
    from portagpu.suites.search.ordering.kernels import Kernels


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
