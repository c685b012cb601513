"""Timing of calls on a device, for how long, and the telemetry that is read meanwhile.

Times are those of the device's events or of the host's monotonic clock; the wall clock is never
read. A sample repeats the call until it lasts far longer than the clock's resolution, which is
measured and not assumed.

The samples that a rank returns for a case: times and work, or why there are none.

Plain JSON values, written in the rank and read by the engine. Two calls that do the same work are
timed in turns, which gives a ratio without the state of clock or device.
"""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.base.errors import PortagpuError
from portagpu.facts.capability import Capability
from portagpu.runs.world.rank import tell_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

    import torch

    from portagpu.devices.contract import Backend


PAUSE_S: Final = 0.1
"""Seconds between two readings: each takes about a millisecond of one core."""
_COUNT: Final = "_count"
ABOVE_RESOLUTION: Final = 100
"""A sample lasts at least this many times the clock's resolution: an error of at most 1 %."""
_UNUSABLE: Final = 10
_TICKS: Final = 50
_MAX_REPEATS: Final = 100_000
_MAX_WARMUPS: Final = 1000
STABLE: Final = 0.05
"""Rounds of the warm-up that differ by at most this are stable: as much as peers may differ by
(``portagpu.runs.judges.peers.RELATIVE``)."""
_MAX_ROUNDS: Final = 5


class Sampler(threading.Thread):
    """Reads telemetry during the load, which does not wait for it: an idle device clocks down.

    What is still being read when the load ends is of an idle device, and is left out.
    """

    def __init__(self, gpu: Backend, pause_s: float = PAUSE_S) -> None:
        super().__init__(name="telemetry", daemon=True)
        self._read = partial(gpu.plugin.telemetry, gpu.index)
        self._pause_s = pause_s
        self._latest: dict[str, float] = {}
        self._readings: list[dict[str, float]] = []
        self._ended = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                found = dict(self._read())
                if found and not self._ended.is_set():
                    self._latest = found
                    self._readings.append(found)
                self._ended.wait(self._pause_s)
        except Exception as error:  # noqa: BLE001 - raised where the load runs
            self._error = error

    def latest(self) -> dict[str, float]:
        """What was read last, once; empty where nothing was since. Raises what reading raised."""
        self._raise_error()
        found, self._latest = self._latest, {}
        return found

    def readings(self) -> list[dict[str, float]]:
        """Everything that was read so far, in order. Raises what reading raised."""
        self._raise_error()
        return list(self._readings)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()


def summary(readings: Sequence[Mapping[str, float]]) -> dict[str, Any] | str:
    """Minimum, median and maximum of each reading by name, or why there is none.

    Of a count of events ("throttle_count") it is how many there were in between.
    """
    names = sorted({name for each in readings for name in each})
    if not names:
        return "not shown: the device gave no reading while the load ran"
    found: dict[str, Any] = {"readings": len(readings)}
    for name in names:
        values = [each[name] for each in readings if name in each]
        if name.endswith(_COUNT):
            found[name] = max(values) - min(values)
        else:
            found[name] = {"min": min(values), "median": median(values), "max": max(values)}
    return found


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
    most_repeats: int = _MAX_REPEATS,
) -> Timing:
    """Warm up, find how often a sample has to repeat the call, and take the samples.

    :param stopwatch: The clock of the device.
    :param call: What is timed.
    :param pace: How long to warm up and to measure.
    :param prepare: Runs before each sample, and is not timed.
    :param agree: Maps a number to the largest among all ranks, so that ranks that time a collective
        together make the same calls.
    :param most_repeats: How many calls a sample has at most.
    :returns: Seconds of a call in each sample, and the telemetry meanwhile.
    :raises TooShort: ``most_repeats`` calls stay within ten times the clock's resolution.
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
    each = int(largest(_clamp(round_s / once, 1, _MAX_WARMUPS)))
    made, before = 0, math.inf
    for turn in range(_MAX_ROUNDS):
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


@dataclass(slots=True)
class Point:
    """One size: seconds of one call for each sample, and the ``work`` of one call.

    ``work`` is operations or bytes, bus factors included; with 0 the time itself is the value.
    ``x`` is the size in bytes where the case has several sizes. ``flops`` and ``bytes`` are what
    one call computes and moves at least, for its place under a roofline; None where not counted.
    """

    x: float
    seconds: list[float]
    repeats: int
    work: float
    flops: float | None = None
    bytes: float | None = None


class WrongValue(NamedTuple):
    """What is wrong with values, in one sentence, and the digest of the wrong elements.

    ``digest`` is that of their places and bits (``portagpu.train.exact.judge``): two devices that
    are wrong in the same bits have the same. It is empty where only the sentence is known.
    """

    sentence: str
    digest: str = ""


@dataclass(slots=True)
class RankSamples:
    """One rank's answer. A ``wrong`` value takes every number with it; ``skip`` says why nothing
    was measured."""

    points: list[Point] = field(default_factory=list)
    wrong: str = ""
    digest: str = ""
    """That of the wrong elements; empty where nothing has one."""
    other_work: bool = False
    """Whether something else ran than was asked for, which is not a wrong value."""
    skip: str = ""
    clock: str = ""
    resolution_s: float = 0.0
    threads: int = 0
    stable: bool = True
    """Whether every warm-up ended because its rounds agreed."""
    telemetry: list[dict[str, float]] = field(default_factory=list)
    """What the device showed of itself while it was timed."""
    load_average: float | None = None
    """How many tasks wanted a CPU in the last minute, when the reading began; None is unknown."""
    notes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def start(cls, stopwatch: Stopwatch) -> RankSamples:
        """Empty samples for ``stopwatch``, with torch's present number of threads."""
        import torch

        return cls(
            clock=stopwatch.clock,
            resolution_s=stopwatch.resolution_s,
            threads=torch.get_num_threads(),
            load_average=_load_average(),
        )

    def keep(
        self,
        timing: Timing,
        *,
        work: float = 0.0,
        x: float = 0.0,
        flops: float | None = None,
        moved: float | None = None,
    ) -> None:
        """Add what was timed at size ``x``: ``flops`` and ``moved`` bytes are those of one call."""
        self.points.append(Point(x, list(timing.seconds), timing.repeats, work, flops, moved))
        self.observe(timing)

    def observe(self, timing: Timing) -> None:
        """Note how the warm-up ended and what the device showed, and no time."""
        self.stable = self.stable and timing.stable
        self.telemetry += [dict(each) for each in timing.telemetry]

    def telemetry_summary(self) -> dict[str, Any] | str:
        """The readings in short, or why there are none."""
        return summary(self.telemetry)

    def keep_ratios(self, times: Sequence[float], *, repeats: int, work: float) -> None:
        """Add times over those of something else, measured in turns; ``work`` over the other's."""
        self.points.append(Point(0.0, list(times), repeats, work))

    def reject(self, wrong: WrongValue | str | None, what: str = "") -> None:
        """Note that a value was wrong; the first one stays.

        Args:
            wrong: What is wrong; None or an empty text where nothing is.
            what: Begins the sentence: the work whose value it is.
        """
        if wrong and not self.wrong:
            sentence, self.digest = (wrong, "") if isinstance(wrong, str) else wrong
            self.wrong = f"{what}: {sentence}" if what else sentence

    def refuse(self, sentence: str) -> None:
        """Note that something else ran than was asked for; the first sentence stays."""
        if not self.wrong:
            self.wrong, self.other_work = sentence, True

    def to_json(self) -> dict[str, Any]:
        """The reading as a rank returns it; without points where a value was wrong."""
        if self.wrong:
            self.points = []
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RankSamples:
        """The reading that :meth:`to_json` wrote."""
        points = [Point(**point) for point in document["points"]]
        return cls(**{**document, "points": points})


def first_wrong_byte(found: torch.Tensor, expected: torch.Tensor) -> WrongValue | None:
    """The first byte that differs, with the digest of all that do; None if none does."""
    from portagpu.train.exact.judge import differences

    wrong = differences(found.cpu(), expected.cpu())
    if wrong is None:
        return None
    index = int(wrong.places[0])
    sentence = f"byte {index} is {int(found[index])} instead of {int(expected[index])}"
    return WrongValue(sentence, wrong.digest())


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def time_in_turns(
    stopwatch: Stopwatch,
    reading: RankSamples,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    pace: Pace,
) -> tuple[list[float], int]:
    """(the time of ``ours`` over that of ``theirs`` for each sample, repeats of ``ours``)."""
    second, first = (measure(stopwatch, each, pace) for each in (theirs, ours))
    reading.observe(first)
    reading.observe(second)
    times = take_turns(
        stopwatch, (ours, theirs), (first.repeats, second.repeats), len(first.seconds)
    )
    return [one / other for one, other in zip(*times, strict=True)], first.repeats


def take_turns(
    stopwatch: Stopwatch,
    calls: tuple[Callable[[], object], Callable[[], object]],
    repeats: tuple[int, int],
    turns: int,
    prepare: Callable[[], object] | None = None,
) -> tuple[list[float], list[float]]:
    """Seconds of one call of each for every turn. ``prepare`` runs before each, and is not timed.

    Each goes first as often: what the one leaves in a cache helps the other.
    """
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        for which in (0, 1) if turn % 2 else (1, 0):
            if prepare is not None:
                prepare()
            seconds = stopwatch.time(calls[which], repeats[which])
            taken[which].append(seconds / repeats[which])
    return taken
