"""Streams and events: priorities, times, streams of others, and types."""

from __future__ import annotations

import time

import portagpu as pg
from portagpu.devices.contract import Capability
from portagpu.suites.conformance import case

STREAMS = Capability.STREAMS
EVENTS = Capability.EVENTS
CALLS = ("method", "function")


def _timing_events(gpu):
    return gpu.Event(enable_timing=True), gpu.Event(enable_timing=True)


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
        record(f"priority -3 became {getattr(side, 'priority', 'unknown')}")
    except pg.Unsupported:
        raise
    except (ValueError, RuntimeError) as error:
        record(f"priority -3 was refused with {type(error).__name__}")


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
    "streams/streams-overlap",
    unaltered=("asynchrony",),
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


@case(
    "streams/external-stream-is-the-same",
    unaltered=("asynchrony",),
    spec="A stream that is made of another one's pointer takes work and orders it.",
    capability=(STREAMS, Capability.EXTERNAL_STREAMS),
    covers=("Backend.ExternalStream", "portagpu.ExternalStream"),
    params={"call": CALLS},
)
def test_external_stream_is_the_same(gpu, torch, call):
    owner = gpu.Stream()
    pointer = getattr(owner, "cuda_stream", 0)
    external = (gpu if call == "method" else pg).ExternalStream(pointer)
    named = getattr(external, "cuda_stream", 0)
    assert named == pointer != 0, f"a stream of the pointer {pointer} has the pointer {named}"
    external.wait_stream(gpu.current_stream())
    with gpu.stream(external):
        value = torch.full((1000,), 3.0, device=gpu.device) * 2
    external.synchronize()
    assert set(value.cpu().tolist()) == {6.0}, "work on an external stream is not done"


@case(
    "streams/objects-are-of-their-types",
    spec="Streams and events are instances of portagpu.Stream and portagpu.Event, and of one only.",
    capability=(STREAMS, Capability.EVENTS),
    covers=("portagpu.Stream", "portagpu.Event"),
)
def test_objects_are_of_their_types(backend):
    for made in (backend.Stream(), pg.Stream(), backend.current_stream()):
        assert isinstance(made, pg.Stream), f"{made!r} is not a portagpu.Stream"
        assert not isinstance(made, pg.Event), f"{made!r} is a portagpu.Event"
    for made in (backend.Event(), pg.Event()):
        assert isinstance(made, pg.Event), f"{made!r} is not a portagpu.Event"
        assert not isinstance(made, pg.Stream), f"{made!r} is a portagpu.Stream"
