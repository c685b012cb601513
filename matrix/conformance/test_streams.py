"""Streams and events: which stream is current, what is ordered, and how long something took."""

from __future__ import annotations

import threading
import time

import portagpu as pg
from portagpu.contract import Capability
from portagpu.suite import case, refused

STREAMS = Capability.STREAMS
EVENTS = Capability.EVENTS
CALLS = ("method", "function")


def _timing_events(gpu):
    return gpu.Event(enable_timing=True), gpu.Event(enable_timing=True)


@case(
    "streams/synchronize-finishes-work",
    spec="After synchronize() the work that was started is done.",
    covers=("Backend.synchronize", "portagpu.synchronize"),
    params={"call": CALLS},
    smoke=True,
)
def test_synchronize_finishes_work(gpu, torch, call):
    value = torch.ones(1000, device=gpu.device)
    for _ in range(20):
        value = value + 1
    (gpu.synchronize if call == "method" else pg.synchronize)()
    assert value.cpu().tolist() == [21.0] * 1000, "the work was not done after synchronize()"


@case(
    "streams/synchronize-on-idle",
    spec="synchronize() returns on a device that has nothing to do, as often as it is called.",
    covers=("Backend.synchronize",),
)
def test_synchronize_on_idle(gpu):
    for _ in range(3):
        assert gpu.synchronize() is None, "synchronize() returned a value"


@case(
    "streams/current-is-steady",
    spec="Outside of any block the current stream is the same at every call.",
    capability=STREAMS,
    covers=("Backend.current_stream", "portagpu.current_stream"),
)
def test_current_is_steady(backend):
    first = backend.current_stream()
    assert first is not None, "there is no current stream"
    assert backend.current_stream() == first, "two calls of current_stream() give two streams"
    assert pg.current_stream() == first, "function and method give two streams"


@case(
    "streams/block-changes-current",
    spec="Inside a stream's block it is the current stream, and outside the former one is again.",
    capability=STREAMS,
    covers=("Backend.stream", "Backend.Stream", "portagpu.stream", "portagpu.Stream"),
    params={"call": CALLS},
    smoke=True,
)
def test_block_changes_current(backend, call):
    source = backend if call == "method" else pg
    before = source.current_stream()
    side = source.Stream()
    with source.stream(side):
        inside = source.current_stream()
        assert inside is not None, "inside the block there is no current stream"
        assert inside == side, f"inside the block the current stream is {inside!r}"
    assert source.current_stream() == before, "after the block the former stream is not current"


@case(
    "streams/blocks-nest",
    spec="Blocks of streams nest: each one's end restores what was current before it.",
    capability=STREAMS,
    covers=("Backend.stream",),
)
def test_blocks_nest(backend):
    first, second = backend.Stream(), backend.Stream()
    with backend.stream(first):
        with backend.stream(second):
            assert backend.current_stream() == second, "the inner block's stream is not current"
        assert backend.current_stream() == first, (
            "the inner block's end did not restore the outer one"
        )


@case(
    "streams/block-restores-after-error",
    spec="An exception inside a stream's block passes through and the former stream is current.",
    capability=STREAMS,
    covers=("Backend.stream",),
)
def test_block_restores_after_error(backend):
    before = backend.current_stream()

    def body():
        with backend.stream(backend.Stream()):
            raise KeyError("on purpose")

    refused(body, KeyError, "an exception inside the block")
    assert backend.current_stream() == before, "after an exception another stream is current"


@case(
    "streams/none-changes-nothing",
    spec="A block of the stream None leaves the current stream as it is.",
    capability=STREAMS,
    covers=("Backend.stream", "portagpu.stream"),
    params={"call": CALLS},
)
def test_none_changes_nothing(backend, call):
    before = backend.current_stream()
    assert before is not None, "there is no current stream"
    with (backend if call == "method" else pg).stream(None):
        assert backend.current_stream() == before, "the stream None changed the current stream"
    assert backend.current_stream() == before, "after a block of None another stream is current"


@case(
    "streams/current-is-per-thread",
    spec="A block in one thread does not change another thread's current stream.",
    capability=STREAMS,
    covers=("Backend.current_stream",),
)
def test_current_is_per_thread(backend):
    seen = []
    side = backend.Stream()
    with backend.stream(side):
        thread = threading.Thread(target=lambda: seen.append(backend.current_stream() == side))
        thread.start()
        thread.join()
    assert seen == [False], "a stream's block in one thread is current in another"


@case(
    "streams/streams-differ",
    spec="Two new streams are not the same stream.",
    capability=STREAMS,
    covers=("Backend.Stream",),
)
def test_streams_differ(backend):
    assert backend.Stream() != backend.Stream(), "two new streams are equal"


@case(
    "streams/stream-names-device",
    spec="A stream says which device it is of.",
    capability=STREAMS,
    covers=("Backend.Stream",),
)
def test_stream_names_device(backend):
    found = backend.Stream().device
    assert found.type == backend.device.type, f"a stream of {backend.device} is of {found}"


@case(
    "streams/wait-stream-orders",
    spec="Work after wait_stream() sees what the other stream did.",
    capability=STREAMS,
    covers=("Backend.Stream",),
)
def test_wait_stream_orders(gpu, torch):
    side = gpu.Stream()
    value = torch.zeros(1 << 16, device=gpu.device)
    for step in range(1, 11):
        side.wait_stream(gpu.current_stream())
        with gpu.stream(side):
            value.add_(1)
        gpu.current_stream().wait_stream(side)
        value.mul_(2)
        expected = float(2 ** (step + 1) - 2)
    found = set(value.cpu().tolist())
    assert found == {expected}, f"two streams in turn gave {sorted(found)[:3]}, not {expected}"


@case(
    "streams/wait-event-orders",
    spec="Work after wait_event() sees what was done before the event was recorded.",
    capability=(STREAMS, EVENTS),
    covers=("Backend.Stream", "Backend.Event"),
)
def test_wait_event_orders(gpu, torch):
    side = gpu.Stream()
    value = torch.zeros(1 << 16, device=gpu.device)
    value.add_(3)
    done = gpu.current_stream().record_event(gpu.Event())
    side.wait_event(done)
    with gpu.stream(side):
        doubled = value * 2
    side.synchronize()
    assert set(doubled.cpu().tolist()) == {6.0}, "a stream went on before the event it waits for"


@case(
    "streams/record-event",
    spec="record_event() returns the event that it was given, or a new one, and it happens.",
    capability=(STREAMS, EVENTS),
    covers=("Backend.Stream", "Backend.Event"),
)
def test_record_event(gpu):
    side, given = gpu.Stream(), gpu.Event()
    assert side.record_event(given) is given, "record_event(event) returned another event"
    fresh = side.record_event()
    side.synchronize()
    assert fresh.query() is True, "an event on a synchronised stream has not happened"


@case(
    "streams/priorities",
    spec="Streams of normal and of high priority exist and compute.",
    capability=STREAMS,
    covers=("Backend.Stream",),
    traps=("G02",),
    params={"priority": (0, -1)},
)
def test_priorities(gpu, torch, priority):
    side = gpu.Stream(priority=priority)
    # torch.cuda.Stream has it, torch.Stream has not
    said = getattr(side, "priority", priority)
    assert said == priority, f"a stream of priority {priority} says {said}"
    with gpu.stream(side):
        total = torch.ones(100, device=gpu.device).sum()
    side.synchronize()
    assert float(total) == 100.0, f"a stream of priority {priority} computed {float(total)}"


@case(
    "streams/priority-out-of-range",
    spec="A priority beyond what the device has is clamped, kept or refused.",
    capability=STREAMS,
    outcome="undefined",
    covers=("Backend.Stream",),
    traps=("G02",),
)
def test_priority_out_of_range(backend, record):
    try:
        side = backend.Stream(priority=-3)
        record(f"priority -3 became {getattr(side, 'priority', 'one that is not told')}")
    except pg.Unsupported:
        raise
    except (ValueError, RuntimeError) as error:
        record(f"priority -3 was refused with {type(error).__name__}")


@case(
    "streams/event-happens",
    spec="A recorded event has happened after it was synchronised.",
    capability=EVENTS,
    covers=("Backend.Event", "portagpu.Event"),
    params={"call": CALLS},
    smoke=True,
)
def test_event_happens(gpu, torch, call):
    event = (gpu if call == "method" else pg).Event()
    torch.ones(1000, device=gpu.device).sum()
    event.record()
    event.synchronize()
    assert event.query() is True, "an event that was synchronised has not happened"


@case(
    "streams/event-unrecorded",
    spec="An event that was never recorded counts as done, as torch has it.",
    capability=EVENTS,
    covers=("Backend.Event",),
)
def test_event_unrecorded(backend):
    event = backend.Event()
    assert event.query() is True, "an event that was never recorded is pending"
    event.synchronize()


@case(
    "streams/elapsed-time-is-milliseconds",
    spec="Two events around a pause of 30 ms on the host are 30 ms apart.",
    capability=EVENTS,
    outcome="bounded: 29 ms <= elapsed <= the host's own time around both + 1 ms",
    covers=("Backend.Event",),
    traps=("G05",),
    smoke=True,
)
def test_elapsed_time_is_milliseconds(gpu):
    start, end = _timing_events(gpu)
    gpu.synchronize()
    before = time.perf_counter()
    start.record()
    time.sleep(0.03)
    end.record()
    end.synchronize()
    host_ms = (time.perf_counter() - before) * 1e3
    elapsed_ms = start.elapsed_time(end)
    assert isinstance(elapsed_ms, float), f"elapsed_time is a {type(elapsed_ms).__name__}"
    assert elapsed_ms >= 29.0, f"a pause of 30 ms took {elapsed_ms} ms between two events"
    assert elapsed_ms <= host_ms + 1.0, f"{elapsed_ms} ms passed within {host_ms} ms of the host"


@case(
    "streams/elapsed-time-adds-up",
    spec="The times of two intervals add up to the time of both together.",
    capability=EVENTS,
    outcome="bounded: |ab + bc - ac| <= 0.01 ms",
    covers=("Backend.Event",),
)
def test_elapsed_time_adds_up(gpu):
    events = [gpu.Event(enable_timing=True) for _ in range(3)]
    for event in events:
        event.record()
        time.sleep(0.005)
    gpu.synchronize()
    first, second, third = events
    parts = first.elapsed_time(second) + second.elapsed_time(third)
    whole = first.elapsed_time(third)
    assert abs(parts - whole) <= 0.01, f"two intervals of {parts} ms together last {whole} ms"


@case(
    "streams/elapsed-time-backwards",
    spec="From a later event to an earlier one the time is negative.",
    capability=EVENTS,
    covers=("Backend.Event",),
)
def test_elapsed_time_backwards(gpu):
    start, end = _timing_events(gpu)
    start.record()
    time.sleep(0.005)
    end.record()
    gpu.synchronize()
    assert end.elapsed_time(start) < 0, f"from later to earlier is {end.elapsed_time(start)} ms"


@case(
    "streams/elapsed-time-never-negative",
    spec="Of 200 pairs of events with nothing between them none is further below zero than the "
    "clock's steps.",
    capability=EVENTS,
    outcome="bounded: -0.01 ms; HIP rounds below 0 before ROCm/rocm-systems#9375",
    covers=("Backend.Event",),
    traps=("G05",),
)
def test_elapsed_time_never_negative(gpu):
    pairs = [_timing_events(gpu) for _ in range(200)]
    for start, end in pairs:
        start.record()
        end.record()
    gpu.synchronize()
    least = min(start.elapsed_time(end) for start, end in pairs)
    assert least >= -0.01, f"an empty interval lasted {least} ms"


@case(
    "streams/elapsed-time-needs-timing",
    spec="Without enable_timing an event gives no time: it is an error, not a number.",
    capability=EVENTS,
    outcome="unsupported",
    covers=("Backend.Event",),
)
def test_elapsed_time_needs_timing(gpu):
    plain, timed = gpu.Event(), gpu.Event(enable_timing=True)
    plain.record()
    timed.record()
    gpu.synchronize()
    kinds = (ValueError, RuntimeError)
    refused(lambda: plain.elapsed_time(timed), kinds, "the time from an event without timing")
    refused(lambda: timed.elapsed_time(plain), kinds, "the time to an event without timing")


@case(
    "streams/elapsed-time-needs-records",
    spec="The time to an event that was never recorded is an error, not a number.",
    capability=EVENTS,
    outcome="unsupported",
    covers=("Backend.Event",),
)
def test_elapsed_time_needs_records(gpu):
    start, end = _timing_events(gpu)
    start.record()
    kinds = (ValueError, RuntimeError)
    refused(lambda: start.elapsed_time(end), kinds, "the time to an event without a record")


@case(
    "streams/event-blocking",
    spec="An event whose waiting may sleep happens like any other.",
    capability=EVENTS,
    covers=("Backend.Event",),
)
def test_event_blocking(gpu):
    event = gpu.Event(enable_timing=True, blocking=True)
    event.record()
    event.synchronize()
    assert event.query() is True, "a blocking event that was synchronised has not happened"


@case(
    "streams/streams-overlap",
    spec="How many streams run at the same time is the device's affair: several may share a queue.",
    capability=STREAMS,
    outcome="undefined",
    covers=("Backend.Stream", "Backend.stream"),
    traps=("G01",),
)
def test_streams_overlap(gpu, torch, record):
    streams = [gpu.Stream() for _ in range(8)]
    # one block's worth of work each, which leaves room for the others
    values = [torch.ones(64, device=gpu.device) for _ in streams]

    def time_on(chosen):
        gpu.synchronize()
        started = time.perf_counter()
        for stream, value in zip(chosen, values, strict=True):
            with gpu.stream(stream):
                for _ in range(200):
                    value.mul_(1.0001)
        gpu.synchronize()
        return time.perf_counter() - started

    time_on(streams)
    apart, together = time_on(streams), time_on(streams[:1] * len(streams))
    record(f"eight streams take {apart / together:.2f} of the time of one with all the work")
