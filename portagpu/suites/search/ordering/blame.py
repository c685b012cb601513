"""Which fault explains a value that no order allows: the model with one rule broken at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.ordering.model import Model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.suites.search.ordering.model import Kernel

Entry = tuple[str, tuple[Any, ...], dict[str, Any]]
"""A method of the model, with its arguments."""
Log = list[Entry]


def modelled(log: Log) -> Model:
    """The model after those calls."""
    model = Model()
    for name, given, named in log:
        getattr(model, name)(*given, **named)
    return model


HOST, WAIT, PLACE, GRAPH, WORK = range(5)
"""Kinds of faults: the host did not wait, or a stream; work in another order; what did not run."""
_LIKELY: Final = {True: (HOST, PLACE, WAIT, GRAPH, WORK), False: (WAIT, PLACE, GRAPH, HOST, WORK)}
"""By whether the right value came late: the more likely kinds first."""


def blame(log: Log, buffer: str, found: frozenset[int], late: bool) -> str:
    """The fault with which the buffer may hold what was found; empty if no single fault explains.

    ``late`` says that the buffer held something else after some time. Of several faults it is the
    likelier kind, and then the one that leaves the fewest other values.
    """
    explained: list[tuple[int, int, int, str]] = []
    for kind, sentence, changed in _faults(log):
        values = modelled(changed).read(buffer)
        if values is not None and found <= values:
            rank = _LIKELY[late].index(kind)
            explained.append((rank, len(values), len(explained), sentence))
    return min(explained)[-1] if explained else ""


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


def _faults(log: Log) -> Iterator[tuple[int, str, Log]]:
    """Kinds, sentences, and the log as it is where that fault is there."""
    streams = sorted({each[1][0] for each in log if each[0] == "launch"})
    for number, (name, given, named) in enumerate(log):
        for rank, sentence, instead in _instead(log[:number], name, given, named, streams):
            yield rank, sentence, [*log[:number], *instead, *log[number + 1 :]]
    yield from _always(log)


def _always(log: Log) -> Iterator[tuple[int, str, Log]]:
    """Faults that are there at every call of a kind."""
    for name, sentence in (
        ("wait_stream", "streams went on before the work of those that they wait for was done"),
        ("wait_event", "streams went on before events had happened"),
    ):
        yield WAIT, sentence, [each for each in log if each[0] != name]
    for kind, name, sentence, changed in (
        (PLACE, "capture", "the order inside graphs was lost", {"ordered": False}),
        (PLACE, "replay", "replays of a graph went on before earlier work", {"begins": False}),
        (PLACE, "replay", "work went on before the replay of a graph was done", {"ends": False}),
        (GRAPH, "replay", "each replay of a graph ran it twice", {"times": 2}),
        (GRAPH, "replay", "a graph was replayed and did not run", {"times": 0}),
    ):
        yield (
            kind,
            sentence,
            [(one, given, changed if one == name else named) for one, given, named in log],
        )


def _instead(
    before: Log, name: str, given: tuple[Any, ...], named: dict[str, Any], streams: list[Any]
) -> Iterator[tuple[int, str, Log]]:
    """Ways in which one call may go wrong, and what stands in its place then."""
    if name == "synchronize":
        what = work_name(*given)
        waited = "synchronize()" if given[0] == "device" else f"synchronize() of {what}"
        yield HOST, f"{waited} returned before the work was done", []
    elif name == "said":
        yield HOST, f"{work_name(*given)} said that its work was done before it was", []
    elif name == "wait_stream":
        stream, other = map(stream_name, given)
        yield WAIT, f"{stream} went on before the work of {other} was done", []
    elif name == "wait_event":
        yield from _instead_of_wait(before, *given)
    elif name == "record":
        shown = event_name(given[0])
        yield PLACE, f"{shown} was not recorded", []
        for other in streams:
            if other != given[1]:
                where = f"{stream_name(other)} and not on {stream_name(given[1])}"
                instead: Log = [("record", (given[0], other), {})]
                yield PLACE, f"{shown} was recorded on {where}", instead
    elif name == "launch":
        yield from _instead_of_launch(given[0], given[1], streams)
    elif name == "capture":
        captured = (name, given, named)
        for stream in ("the capture", *streams):
            run: Log = [captured, ("replay", (given[0], stream), {})]
            yield PLACE, "the graph ran without a replay", run
        lost: Log = [(name, given, {"ordered": False})]
        yield PLACE, f"the order inside graph {given[0]} was lost", lost
    elif name == "replay":
        graph, stream = f"graph {given[0]}", stream_name(given[1])
        for rank, sentence, changed in (
            (PLACE, f"one replay of {graph} ran it twice", {"times": 2}),
            (
                PLACE,
                f"the replay of {graph} went on before the work of {stream} was done",
                {"begins": False},
            ),
            (PLACE, f"{stream} went on before the replay of {graph} was done", {"ends": False}),
            (GRAPH, f"{graph} was replayed and did not run", {"times": 0}),
        ):
            yield rank, sentence, [(name, given, changed)]


def _instead_of_wait(before: Log, stream: Any, event: Any) -> Iterator[tuple[int, str, Log]]:
    waiting, awaited = stream_name(stream), event_name(event)
    yield WAIT, f"{waiting} went on before {awaited} had happened", []
    records = [
        number for number, each in enumerate(before) if each[0] == "record" and each[1][0] == event
    ]
    for number in records[:-1]:
        earlier = modelled(before[: number + 1]).events[event]
        sentence = f"{waiting} waited for an earlier record of {awaited} and not for its last"
        yield WAIT, sentence, [("wait_for", (stream, earlier), {})]


def _instead_of_launch(
    stream: Any, kernel: Kernel, streams: list[Any]
) -> Iterator[tuple[int, str, Log]]:
    shown, where = kernel.shown(), stream_name(stream)
    for other in streams:
        if other != stream:
            sentence = f"the {shown} ran on {stream_name(other)} while {where} was the current one"
            yield WORK, sentence, [("launch", (other, kernel), {})]
    early: Log = [("launch", (stream, kernel), {"ordered": False})]
    yield PLACE, f"{where} did not keep the order of its work: the {shown} ran early", early
    yield WORK, f"the {shown} did not run", []
