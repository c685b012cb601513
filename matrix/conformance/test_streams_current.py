"""Streams: the one that is current for good, the default one, those of others, and the types."""

from __future__ import annotations

import portagpu as pg
from portagpu.contract import Capability
from portagpu.suite import case
from portagpu.suite.dtypes import require_contract

STREAMS = Capability.STREAMS
CALLS = ("method", "function")


def _source(gpu, call):
    return gpu if call == "method" else pg


@case(
    "streams/set-stream-stays",
    spec="A stream that is set is the current one until another is, and None changes nothing.",
    capability=STREAMS,
    covers=("Backend.set_stream", "portagpu.set_stream"),
    params={"call": CALLS},
)
def test_set_stream_stays(backend, call):
    require_contract(backend, 2)
    source = _source(backend, call)
    before, side = backend.current_stream(), backend.Stream()
    assert side != before, "a new stream is the current one already"
    source.set_stream(side)
    try:
        source.set_stream(None)
        found = backend.current_stream()
    finally:
        source.set_stream(before)
    assert found == side, f"after set_stream({side!r}) the current stream is {found!r}"
    assert backend.current_stream() == before, "the former stream was not set again"


@case(
    "streams/default-is-steady",
    spec="The default stream is the same inside of another stream's block.",
    capability=STREAMS,
    covers=("Backend.default_stream", "portagpu.default_stream"),
    params={"call": CALLS},
)
def test_default_is_steady(backend, call):
    require_contract(backend, 2)
    source = _source(backend, call)
    first, side = source.default_stream(), backend.Stream()
    assert first != side, "a new stream is the default one"
    with backend.stream(side):
        assert source.default_stream() == first, "a stream's block changes the default stream"


@case(
    "streams/external-stream-is-the-same",
    spec="A stream that is made of another one's pointer takes work and orders it.",
    capability=(STREAMS, Capability.EXTERNAL_STREAMS),
    covers=("Backend.ExternalStream", "portagpu.ExternalStream"),
    params={"call": CALLS},
)
def test_external_stream_is_the_same(gpu, torch, call):
    owner = gpu.Stream()
    pointer = getattr(owner, "cuda_stream", 0)
    external = _source(gpu, call).ExternalStream(pointer)
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
        assert isinstance(made, pg.Stream), f"{made!r} is no portagpu.Stream"
        assert not isinstance(made, pg.Event), f"{made!r} is a portagpu.Event"
    for made in (backend.Event(), pg.Event()):
        assert isinstance(made, pg.Event), f"{made!r} is no portagpu.Event"
        assert not isinstance(made, pg.Stream), f"{made!r} is a portagpu.Stream"
