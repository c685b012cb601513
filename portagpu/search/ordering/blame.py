"""Which fault explains a value that no order allows: the model with one rule broken at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.search.ordering.model import Model

if TYPE_CHECKING:
    from collections.abc import Iterator

Entry = tuple[str, tuple[Any, ...], dict[str, Any]]
"""A method of the model, with its arguments."""
Log = list[Entry]


def modelled(log: Log) -> Model:
    """The model after those calls."""
    model = Model()
    for name, given, named in log:
        getattr(model, name)(*given, **named)
    return model


def blame(log: Log, buffer: str, found: frozenset[int]) -> str:
    """The fault with which the buffer may hold what was found; empty if no single fault explains.

    A fault with which it must hold that is told before one with which it may.
    """
    maybe = ""
    for sentence, changed in _faults(log):
        values = modelled(changed).read(buffer)
        if values is None or not found <= values:
            continue
        if len(values) == 1:
            return sentence
        maybe = maybe or sentence
    return maybe


def stream_name(stream: Any) -> str:
    """A stream in words."""
    return f"stream {stream}" if stream else "the default stream"


def event_name(event: Any) -> str:
    """An event in words."""
    return f"event {event}" if isinstance(event, int) else "an event behind long work"


def work_name(what: str, which: Any) -> str:
    """What was waited for or asked, in words."""
    if what == "device":
        return "the device"
    return event_name(which) if what == "event" else stream_name(which)


def _faults(log: Log) -> Iterator[tuple[str, Log]]:
    """Sentences, and the log as it is where that fault is there."""
    streams = sorted({each[1][0] for each in log if each[0] == "launch"})
    for number, (name, given, named) in enumerate(log):
        for sentence, instead in _instead(log[:number], name, given, named, streams):
            yield sentence, [*log[:number], *instead, *log[number + 1 :]]


def _instead(
    before: Log, name: str, given: tuple[Any, ...], named: dict[str, Any], streams: list[Any]
) -> Iterator[tuple[str, Log]]:
    """Ways in which one call may go wrong, and what stands in its place then."""
    if name == "synchronize":
        what = work_name(*given)
        waited = "synchronize()" if given[0] == "device" else f"synchronize() of {what}"
        yield f"{waited} returned before the work was done", []
    elif name == "said":
        yield f"{work_name(*given)} said that its work was done before it was", []
    elif name == "wait_event":
        stream, event = stream_name(given[0]), event_name(given[1])
        yield f"{stream} went on before {event} had happened", []
        records = [
            number
            for number, each in enumerate(before)
            if each[0] == "record" and each[1][0] == given[1]
        ]
        for number in records[:-1]:
            earlier = modelled(before[: number + 1]).events[given[1]]
            yield (
                f"{stream} waited for an earlier record of {event} and not for its last",
                [("wait_for", (given[0], earlier), {})],
            )
    elif name == "wait_stream":
        stream, other = map(stream_name, given)
        yield f"{stream} went on before the work of {other} was done", []
    elif name == "record":
        yield f"{event_name(given[0])} was not recorded", []
        for other in streams:
            if other != given[1]:
                yield (
                    f"{event_name(given[0])} was recorded on {stream_name(other)} and not on "
                    f"{stream_name(given[1])}",
                    [("record", (given[0], other), {})],
                )
    elif name == "launch":
        shown = given[1].shown()
        for other in streams:
            if other != given[0]:
                yield (
                    f"the {shown} ran on {stream_name(other)} while {stream_name(given[0])} was "
                    "the current one",
                    [("launch", (other, given[1]), {})],
                )
        yield (
            f"{stream_name(given[0])} did not keep the order of its work: the {shown} ran early",
            [(name, given, {**named, "ordered": False})],
        )
        yield f"the {shown} did not run", []
    elif name == "capture":
        again = (name, given, named)
        yield (
            "the graph ran without a replay",
            [again, ("replay", (given[0], "the capture"), {})],
        )
        yield (
            f"the order inside graph {given[0]} was lost",
            [(name, given, {"ordered": False})],
        )
    elif name == "replay":
        graph, stream = f"graph {given[0]}", stream_name(given[1])
        yield f"{graph} was replayed and did not run", []
        yield f"one replay of {graph} ran it twice", [(name, given, {"times": 2})]
        yield (
            f"the replay of {graph} went on before the work of {stream} was done",
            [(name, given, {"begins": False})],
        )
        yield (
            f"{stream} went on before the replay of {graph} was done",
            [(name, given, {"ends": False})],
        )
