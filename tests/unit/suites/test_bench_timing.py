"""Timing on a scripted clock: what is repeated, what is kept, and which clock is read."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from portagpu.devices.contract import Capability
from portagpu.suites.performance import timing
from portagpu.suites.performance.timing import Pace, Stopwatch, TooShort, measure

PACE = Pace(
    warmup_s=0.01, sample_s=0.001, point_s=0.02, least=5, most=20, timeout_s=1.0
)  # allowed: of a scripted clock


class Clock:
    """A clock that moves when it is read and when work is done, and by nothing else."""

    def __init__(self, read_ns: int = 100) -> None:
        self.now_ns = 0
        self.read_ns = read_ns

    def read(self) -> int:
        self.now_ns += self.read_ns
        return self.now_ns

    def work(self, duration_ns: int) -> Any:
        def call() -> None:
            self.now_ns += duration_ns

        return call


class Gpu:
    """As much of a device as a stopwatch uses."""

    def __init__(self, clock: Clock, capabilities: frozenset[Capability] = frozenset()) -> None:
        self.capabilities = capabilities
        self.clock = clock
        self.pending_ns = 0
        self.index = 0
        self.plugin = SimpleNamespace(telemetry=lambda index: {})

    def synchronize(self) -> None:
        self.clock.now_ns += self.pending_ns
        self.pending_ns = 0

    def Event(self, enable_timing: bool = False) -> Event:  # noqa: N802 - torch's name
        assert enable_timing, "an event without timing cannot be a clock"
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.at_ns = 0

    def record(self) -> None:
        self.at_ns = self.gpu.clock.read()

    def synchronize(self) -> None:
        self.gpu.synchronize()

    def elapsed_time(self, end: Event) -> float:
        return (end.at_ns - self.at_ns) / 1e6


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The only clock there is: reading any other raises AttributeError."""
    scripted = Clock()
    only = SimpleNamespace(
        perf_counter_ns=scripted.read, get_clock_info=lambda _: SimpleNamespace(resolution=1e-9)
    )
    monkeypatch.setattr(timing, "time", only)
    return scripted


def test_the_host_clock_is_monotonic() -> None:
    info = time.get_clock_info("perf_counter")
    assert info.monotonic
    assert not info.adjustable


def test_one_call_takes_what_it_takes(clock: Clock) -> None:
    found = measure(Stopwatch(Gpu(clock), host=True), clock.work(2_000_000), PACE)
    assert found.repeats == 1
    # 0.02 s hold ten samples of 2 ms, each with one reading of the clock inside
    assert list(found.seconds) == pytest.approx([0.0020001] * 10)


def test_a_short_call_is_repeated_until_a_sample_is_long_enough(clock: Clock) -> None:
    found = measure(Stopwatch(Gpu(clock), host=True), clock.work(1000), PACE)
    assert found.repeats >= 900, "1 us has to be repeated to last 1 ms"
    assert found.seconds[0] == pytest.approx(1e-6, rel=0.01)


def test_a_sample_is_a_hundred_times_the_resolution(clock: Clock) -> None:
    clock.read_ns = 50_000
    watch = Stopwatch(Gpu(clock), host=True)
    assert watch.resolution_s == pytest.approx(50e-6)
    found = measure(watch, clock.work(10_000), PACE)
    assert found.repeats * 10e-6 >= 100 * 50e-6 * 0.98


def test_a_call_too_short_for_the_clock_is_refused(clock: Clock) -> None:
    clock.read_ns = 1_000_000
    with pytest.raises(TooShort, match="resolution"):
        measure(Stopwatch(Gpu(clock), host=True), clock.work(10), PACE, most_repeats=100)


def test_every_call_is_counted(clock: Clock) -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        clock.now_ns += 300_000

    assert measure(Stopwatch(Gpu(clock), host=True), call, PACE).calls == calls


def test_calls_warm_up_before_they_are_timed(clock: Clock) -> None:
    durations = [50_000_000, *[5_000_000] * 3]

    def call() -> None:
        clock.now_ns += durations.pop(0) if durations else 2_000_000

    found = measure(Stopwatch(Gpu(clock), host=True), call, PACE)
    assert max(found.seconds) < 0.0021, "a slow first call was kept as a sample"


def test_a_warm_up_goes_on_until_two_rounds_agree(clock: Clock) -> None:
    durations = [8_000_000] * 4 + [4_000_000] * 2

    def call() -> None:
        clock.now_ns += durations.pop(0) if durations else 2_000_000

    # the first two calls take 8 ms each; rounds of two: 16 ms, 8 ms, 4 ms, 4 ms
    found = measure(Stopwatch(Gpu(clock), host=True), call, PACE)
    assert found.stable
    assert found.calls == 2 + 4 * 2 + 1 + len(found.seconds)
    assert max(found.seconds) < 0.0021


def test_a_warm_up_that_never_settles_says_so(clock: Clock) -> None:
    taken = 2_000_000

    def call() -> None:
        nonlocal taken
        taken = int(taken * 1.1)
        clock.now_ns += taken

    assert not measure(Stopwatch(Gpu(clock), host=True), call, PACE).stable


def test_a_lucky_first_call_does_not_make_the_warm_up_long(clock: Clock) -> None:
    durations = [10_000] * 2

    def call() -> None:
        clock.now_ns += durations.pop(0) if durations else 5_000_000

    found = measure(Stopwatch(Gpu(clock), host=True), call, PACE)
    # two lucky calls, one round of 10 ms / 10 us calls, then rounds of 10 ms / 5 ms
    assert found.calls <= 2 + 1000 + 4 * 3 + 100 + len(found.seconds) * found.repeats
    assert found.stable


def test_each_sample_is_a_sign_of_life(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = []
    monkeypatch.setattr(timing, "tell_alive", lambda: reported.append(clock.now_ns))
    watch = Stopwatch(Gpu(clock), host=True)
    reported.clear()
    watch.time(clock.work(1000), 3)
    assert len(reported) == 1


def test_telemetry_is_read_while_the_samples_are_taken(clock: Clock) -> None:
    gpu, read = Gpu(clock), threading.Event()

    def telemetry(index: int) -> dict[str, float]:
        read.set()
        return {"clock_mhz": 1980.0, "throttle_count": 3.0}

    gpu.plugin = SimpleNamespace(telemetry=telemetry)

    def call() -> None:
        clock.now_ns += 2_000_000
        if not gpu.pending_ns and threading.active_count() > before:
            read.wait(60)

    before = threading.active_count()
    found = measure(Stopwatch(gpu, host=True), call, PACE)
    assert {each["clock_mhz"] for each in found.telemetry} == {1980.0}


def test_telemetry_in_short_has_extremes_and_counts_events_in_between() -> None:
    readings = [{"power_w": 300.0, "throttle_count": 7.0}, {"power_w": 500.0}, {"power_w": 400.0}]
    found = timing.summary([*readings, {"throttle_count": 9.0}])
    assert found == {
        "readings": 4,
        "power_w": {"min": 300.0, "median": 400.0, "max": 500.0},
        "throttle_count": 2.0,
    }
    assert str(timing.summary([])).startswith("not shown")


def test_preparing_is_not_timed(clock: Clock) -> None:
    prepared = 0

    def prepare() -> None:
        nonlocal prepared
        prepared += 1
        clock.now_ns += 10**9

    found = measure(Stopwatch(Gpu(clock), host=True), clock.work(2_000_000), PACE, prepare=prepare)
    assert max(found.seconds) < 0.0021
    assert prepared > len(found.seconds)


def test_ranks_make_as_many_calls_as_the_slowest(clock: Clock) -> None:
    # the other rank reports twice the time for everything, so one call is long enough for it
    alone = measure(Stopwatch(Gpu(clock), host=True), clock.work(600_000), PACE)
    together = measure(
        Stopwatch(Gpu(clock), host=True), clock.work(600_000), PACE, agree=lambda own: 2 * own
    )
    assert alone.repeats == 2
    assert len(together.seconds) < len(alone.seconds)


def test_work_that_is_still_running_is_waited_for(clock: Clock) -> None:
    gpu = Gpu(clock)

    def launch() -> None:
        clock.now_ns += 1000
        gpu.pending_ns += 2_000_000

    assert Stopwatch(gpu, host=True).time(launch, 1) == pytest.approx(0.002001, rel=1e-3)


def test_issuing_is_timed_without_the_work(clock: Clock) -> None:
    gpu = Gpu(clock)

    def launch() -> None:
        clock.now_ns += 1000
        gpu.pending_ns += 2_000_000

    watch = Stopwatch(gpu, host=True, wait=False)
    assert watch.time(launch, 10) == pytest.approx(10.1e-6)
    assert gpu.pending_ns == 0, "the next sample would start after work of this one"


@pytest.mark.parametrize(
    ("capabilities", "host", "name"),
    [
        (frozenset({Capability.EVENTS}), False, "timed events"),
        (frozenset({Capability.EVENTS}), True, "monotonic clock of the host"),
        (frozenset(), False, "monotonic clock of the host"),
    ],
)
def test_a_device_with_timed_events_is_timed_by_them(
    clock: Clock, capabilities: frozenset[Capability], host: bool, name: str
) -> None:
    watch = Stopwatch(Gpu(clock, capabilities), host=host)
    assert watch.clock == name
    assert watch.time(clock.work(5_000_000), 2) == pytest.approx(0.0100001)
