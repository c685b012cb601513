"""Timing of calls on a device, by its events or by the host's monotonic clock, and for how long.

The wall clock is never read. A sample repeats the call until it lasts far longer than the clock's
resolution, which is measured and not assumed.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import PortagpuError
from portagpu.facts.capability import Capability
from portagpu.runs.world.rank import tell_alive
from portagpu.suites.performance.telemetry import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from portagpu.devices.contract import Backend

ABOVE_RESOLUTION: Final = 100
"""A sample lasts at least this many times the clock's resolution: an error of at most 1 %."""
_UNUSABLE: Final = 10
_TICKS: Final = 50
_MOST_REPEATS: Final = 100_000
_MOST_WARMUPS: Final = 1000
STABLE: Final = 0.05
"""Rounds of the warm-up that differ by at most this are stable: as much as peers may differ by
(``portagpu.runs.judges.peers.RELATIVE``)."""
_MOST_ROUNDS: Final = 5


class Effort(StrEnum):
    """``QUICK`` takes seconds for the whole suite, ``FULL`` minutes."""

    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Pace:
    """How one size of one measure is timed.

    Calls warm up in rounds of ``warmup_s``, until two of them agree; a sample repeats the call
    until it lasts ``sample_s``; there are as many samples as fit ``point_s``, within ``least`` and
    ``most``.
    """

    warmup_s: float
    sample_s: float
    point_s: float
    least: int
    most: int
    timeout_s: float
    """How long one measure of one rank may be silent."""
    rank_s: float = 2.0
    """What each further rank adds to it."""


PACES: Final[dict[Effort, Pace]] = {
    Effort.QUICK: Pace(0.03, 0.001, 0.15, 5, 20, 60.0),
    Effort.FULL: Pace(0.2, 0.005, 0.8, 10, 50, 180.0),
}


class TooShort(PortagpuError):
    """A call is too short for the clock, however often it is repeated."""


@dataclass(frozen=True, slots=True)
class Timing:
    """``seconds`` has the time of one call for each sample, over ``repeats`` calls each.

    ``calls`` counts every call that was made, those of the warm-up included. ``stable`` is whether
    the warm-up ended because its rounds agreed; ``telemetry`` what was read during the samples.
    """

    seconds: tuple[float, ...]
    repeats: int
    calls: int
    stable: bool = True
    telemetry: Sequence[Mapping[str, float]] = field(default=(), compare=False)


class Stopwatch:
    """Measures the time of repeated calls on one device.

    With ``host`` the host's monotonic clock is read; otherwise the device's timed events, where it
    has them. Without ``wait`` the clock stops when the last call has returned and not when the
    device has finished: the time to issue work.
    """

    def __init__(self, gpu: Backend, *, host: bool = False, wait: bool = True) -> None:
        self.gpu = gpu
        self._wait = wait
        self._events = wait and not host and Capability.EVENTS in gpu.capabilities
        self.clock = "timed events" if self._events else "monotonic clock of the host"
        self.resolution_s: float = self._resolution()

    def time(self, call: Callable[[], object], repeats: int) -> float:
        """Seconds that ``repeats`` calls take together; work that was issued before is not in."""
        self.gpu.synchronize()
        seconds = (
            self._time_by_events(call, repeats)
            if self._events
            else self._time_by_host(call, repeats)
        )
        tell_alive()
        return seconds

    def _time_by_events(self, call: Callable[[], object], repeats: int) -> float:
        start, end = self.gpu.Event(enable_timing=True), self.gpu.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        milliseconds: float = start.elapsed_time(end)
        return milliseconds / 1e3

    def _time_by_host(self, call: Callable[[], object], repeats: int) -> float:
        started_ns = time.perf_counter_ns()
        for _ in range(repeats):
            call()
        if self._wait:
            self.gpu.synchronize()
        elapsed_ns = time.perf_counter_ns() - started_ns
        self.gpu.synchronize()
        return elapsed_ns / 1e9

    def _resolution(self) -> float:
        """The shortest time above zero that the clock measured for an empty interval.

        An upper bound: it holds the cost of reading the clock too.
        """
        seen = [elapsed for _ in range(_TICKS) if (elapsed := self.time(_no_op, 1)) > 0]
        return min(seen, default=time.get_clock_info("perf_counter").resolution)


def measure(
    stopwatch: Stopwatch,
    call: Callable[[], object],
    pace: Pace,
    *,
    prepare: Callable[[], object] | None = None,
    agree: Callable[[float], float] | None = None,
    most_repeats: int = _MOST_REPEATS,
) -> Timing:
    """Warm up, find how often a sample has to repeat ``call``, and take the samples.

    ``prepare`` runs before each sample and is not timed. ``agree`` maps a number to the largest
    among all ranks, so that ranks that time a collective together make the same calls. Raises
    TooShort where ``most_repeats`` calls stay within ten times the clock's resolution.
    """
    ready = prepare or _no_op
    largest = agree or _identity
    ready()
    call()
    once = largest(max(stopwatch.time(call, 1), stopwatch.resolution_s))
    warmed, stable = _warm_up(stopwatch, call, ready, largest, once, pace.warmup_s)
    calls = 2 + warmed
    resolution_s = largest(stopwatch.resolution_s)
    least_s = max(pace.sample_s, ABOVE_RESOLUTION * resolution_s)
    repeats = int(largest(_clamp(least_s / once, 1, most_repeats)))
    while True:
        ready()
        elapsed = largest(stopwatch.time(call, repeats))
        calls += repeats
        if elapsed >= least_s or repeats == most_repeats:
            break
        growth = 1.2 * least_s / max(elapsed, resolution_s)
        repeats = int(_clamp(repeats * max(growth, 2.0), repeats + 1, most_repeats))
    if elapsed < _UNUSABLE * resolution_s:
        raise TooShort(
            f"{repeats} calls took {elapsed:.3g} s, too close to the clock's resolution of "
            f"{resolution_s:.3g} s"
        )
    samples = int(_clamp(pace.point_s / elapsed, pace.least, pace.most))
    seconds = []
    with Sampler(stopwatch.gpu) as sampler:
        for _ in range(samples):
            ready()
            seconds.append(stopwatch.time(call, repeats) / repeats)
            calls += repeats
    return Timing(tuple(seconds), repeats, calls, stable, sampler.readings())


def _warm_up(
    stopwatch: Stopwatch,
    call: Callable[[], object],
    ready: Callable[[], object],
    largest: Callable[[float], float],
    once: float,
    round_s: float,
) -> tuple[int, bool]:
    """(calls made, whether it became stable) of rounds of about ``round_s``.

    ``once`` is what one call took. Where it was a lucky one, as among other work, the rounds that
    follow a far longer one have fewer calls.
    """
    each = int(largest(_clamp(round_s / once, 1, _MOST_WARMUPS)))
    made, before = 0, math.inf
    for turn in range(_MOST_ROUNDS):
        if turn:
            ready()
        elapsed = largest(stopwatch.time(call, each))
        made += each
        now = elapsed / each
        if abs(now - before) <= STABLE * before < math.inf:
            return made, True
        before = now
        if elapsed > 2 * round_s:
            each = int(_clamp(each * round_s / elapsed, 1, each))
    return made, False


def _clamp(value: float, low: int, high: int) -> float:
    return float(min(max(math.ceil(value), low), max(low, high)))


def _identity(value: float) -> float:
    return value


def _no_op() -> None:
    return None
