"""What starting work costs: the time of a torch call that does next to nothing, in microseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.bench.cases import BenchCase

if TYPE_CHECKING:
    import torch

    from portagpu.bench.device import MeasuredDevice
    from portagpu.bench.timing import Effort
    from portagpu.target import Target
    from portagpu.world import Rank

METRICS: Final = ("launch/issue", "launch/roundtrip")

_MOST_QUEUED: Final = 500
"""Calls issued before the device is waited for: devices hold a limited number of launches, beyond
which issuing waits for execution."""
_COUNTS: Final = {
    "launch/issue": "one torch add of one int32 element, issued and not waited for",
    "launch/roundtrip": "one torch add of one int32 element, issued and waited for",
}


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """The time to issue a call, and the time until it has finished."""
    del effort, world, target
    limits = ["the share of the Python loop and of torch's dispatch"]
    if device.shared:
        limits.append("a launch: on a CPU the call itself does the work")
    return [
        BenchCase(
            id=metric,
            metric=metric,
            area="launch",
            unit="us",
            function="launch",
            arguments={"wait": metric == "launch/roundtrip"},
            shape="1 element",
            counts=_COUNTS[metric],
            checks="the element counts the calls that were made",
            does_not_show="; ".join(limits),
        )
        for metric in METRICS
    ]


def launch(rank: Rank, *, effort: str, wait: bool) -> dict[str, Any]:
    """Time adding 1 to one element, on the host's monotonic clock, and check the sum."""
    import torch

    from portagpu.bench.samples import RankSamples
    from portagpu.bench.timing import PACES, Effort, Stopwatch, measure

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
    timing = measure(stopwatch, call, PACES[Effort(effort)], most_repeats=_MOST_QUEUED)
    gpu.synchronize()
    counted = int(element)
    if counted != timing.calls:
        reading.reject(f"{timing.calls} calls added up to {counted}")
    reading.keep(timing)
    return reading.to_json()


def add_one(element: torch.Tensor) -> None:
    """The call that is timed."""
    element.add_(1)
