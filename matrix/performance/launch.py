"""What starting work costs: the time of torch calls that do next to nothing, and of a graph."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.performance.cases import Absent, BenchCase

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.facts.targets import Target
    from portagpu.runs.world import Rank
    from portagpu.suites.performance.device import MeasuredDevice
    from portagpu.suites.performance.timing import Effort

METRICS: Final = ("launch/issue", "launch/roundtrip", "launch/throughput", "launch/graph")

_MAX_QUEUED: Final = 500
"""Calls issued before the device is waited for: devices hold a limited number of launches, beyond
which issuing waits for execution."""
_BURST: Final = 200
"""Calls of one burst, and of one graph."""
_ADD: Final = "one torch add of one int32 element"
_COUNTS: Final = {
    "launch/issue": f"{_ADD}, issued and not waited for",
    "launch/roundtrip": f"{_ADD}, issued and waited for",
    "launch/throughput": f"adds of one int32 element in a second: {_BURST} issued, then waited for",
    "launch/graph": f"the time of {_BURST} adds issued one by one over that of a graph of them",
}
_UNITS: Final = {"launch/throughput": "1/s", "launch/graph": "ratio"}


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """The time to issue a call and until it has finished, calls in a second, and a graph's gain."""
    del effort, world, target
    limits = ["the share of the Python loop and of torch's dispatch"]
    if device.shared:
        limits.append("a launch: on a CPU the call itself does the work")
    no_graphs = Absent(Verdict.SKIP, f"the {device.backend} backend claims no graphs")
    return [
        BenchCase(
            id=metric,
            metric=metric,
            area="launch",
            unit=_UNITS.get(metric, "us"),
            function={"launch/throughput": "burst", "launch/graph": "replay"}.get(metric, "launch"),
            arguments={} if metric in _UNITS else {"wait": metric == "launch/roundtrip"},
            shape="1 element",
            counts=_COUNTS[metric],
            checks="the element counts the calls that were made",
            does_not_show="; ".join(limits),
            absent=no_graphs
            if metric == "launch/graph" and "graphs" not in device.capabilities
            else None,
        )
        for metric in METRICS
    ]


def launch(rank: Rank, *, effort: str, wait: bool) -> dict[str, Any]:
    """Time adding 1 to one element, on the host's monotonic clock, and check the sum."""
    import torch

    from portagpu.suites.performance.timing import PACES, Effort, RankSamples, Stopwatch, measure

    gpu = rank.gpu
    stopwatch = Stopwatch(gpu, host=True, wait=wait)
    reading = RankSamples.start(stopwatch)
    element = torch.zeros(1, dtype=torch.int32, device=gpu.device)

    def issue() -> None:
        add_one(element)

    def roundtrip() -> None:
        add_one(element)
        gpu.synchronize()

    rank.step("timing launches")
    call = roundtrip if wait else issue
    timing = measure(stopwatch, call, PACES[Effort(effort)], most_repeats=_MAX_QUEUED)
    gpu.synchronize()
    counted = int(element)
    if counted != timing.calls:
        reading.reject(f"{timing.calls} calls added up to {counted}")
    reading.keep(timing)
    return reading.to_json()


def burst(rank: Rank, *, effort: str) -> dict[str, Any]:
    """Time bursts of adds, waiting for the end of each, and check the sum."""
    import torch

    from portagpu.suites.performance.timing import PACES, Effort, RankSamples, Stopwatch, measure

    stopwatch = Stopwatch(rank.gpu, host=True)
    reading = RankSamples.start(stopwatch)
    element = torch.zeros(1, dtype=torch.int32, device=rank.gpu.device)

    def call() -> None:
        add_many(element)
        rank.gpu.synchronize()

    rank.step("timing bursts")
    timing = measure(stopwatch, call, PACES[Effort(effort)])
    if (counted := int(element)) != timing.calls * _BURST:
        reading.reject(f"{timing.calls} bursts of {_BURST} calls added up to {counted}")
    reading.keep(timing, work=_BURST)
    return reading.to_json()


def replay(rank: Rank, *, effort: str) -> dict[str, Any]:
    """Time adds issued one by one and the same adds as a graph, in turns, and check the sum."""
    import torch

    from portagpu.suites.performance.timing import (
        PACES,
        Effort,
        RankSamples,
        Stopwatch,
        time_in_turns,
    )

    gpu = rank.gpu
    stopwatch = Stopwatch(gpu, host=True)
    reading = RankSamples.start(stopwatch)
    element = torch.zeros(1, dtype=torch.int32, device=gpu.device)
    eager, launched = Counted(partial(add_many, element)), Counted(_graph_of(gpu, element))
    gpu.synchronize()
    before = int(element)
    rank.step("timing a graph")
    ratios, repeats = time_in_turns(stopwatch, reading, eager, launched, PACES[Effort(effort)])
    gpu.synchronize()
    counted, made = int(element) - before, (eager.calls + launched.calls) * _BURST
    if counted != made:
        reading.reject(f"{made} adds, {launched.calls * _BURST} of them in graphs, made {counted}")
    # the ratio of times as it is: "rates" divides the work by the time
    reading.keep_ratios([1 / ratio for ratio in ratios], repeats=repeats, work=1.0)
    return reading.to_json()


class Counted:
    """A call that counts how often it is made."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.calls = 0
        self._call = call

    def __call__(self) -> None:
        self.calls += 1
        self._call()


def _graph_of(gpu: Backend, element: torch.Tensor) -> Callable[[], object]:
    add_many(element)
    gpu.synchronize()
    graph = gpu.Graph()
    with gpu.graph(graph):
        add_many(element)
    return graph.replay


def add_many(element: torch.Tensor) -> None:
    """One burst."""
    for _ in range(_BURST):
        add_one(element)


def add_one(element: torch.Tensor) -> None:
    """The call that is timed."""
    element.add_(1)
