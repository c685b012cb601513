"""The model: kernels as nodes, what is ordered before what, and which values a read may find.

A node is a kernel or the record of an event. Sets of nodes are whole numbers, one bit for each.
``before`` of a node is everything that is over when it begins: all earlier work of its stream, of
the events and streams that its stream had to wait for, and what the host knew to be over.

A read may find what a write left that is not ordered after the read, and that no other write
between both replaced. Nothing else is claimed: kernels that no order relates may run in any order
or at the same time. Of a read that depends on itself through such a race nothing is claimed.

With one rule broken at a time, the model says which fault explains a value that no order allows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator


Kind = Literal["write", "copy", "add"]
Values = frozenset[int] | None
"""What a read may find; None is anything."""

BUFFERS: Final = ("a", "b", "c")
FACTOR: Final = 3
"""``add`` leaves FACTOR times the old value plus that of the source, as a 64-bit number."""
MAX_VALUES: Final = 16
"""Of a read that may find more values nothing is claimed."""
Entry = tuple[str, tuple[Any, ...], dict[str, Any]]
"""A method of the model, with its arguments."""
Log = list[Entry]
HOST, WAIT, PLACE, GRAPH, WORK = range(5)
"""Kinds of faults: the host did not wait, or a stream; work in another order; what did not run."""
_LIKELY: Final = {True: (HOST, PLACE, WAIT, GRAPH, WORK), False: (WAIT, PLACE, GRAPH, HOST, WORK)}
"""By whether the right value came late: the more likely kinds first."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Work on one buffer: ``value`` is what a write leaves, ``source`` what the others read."""

    kind: Kind
    target: str
    source: str = ""
    value: int = 0

    def shown(self) -> str:
        """In words: "write of 5 into a"."""
        if self.kind == "write":
            return f"write of {self.value} into {self.target}"
        return f"{self.kind} of {self.source} into {self.target}"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a capture: work on a lane, or a lane that waits for another one.

    Lane 0 is the stream of the capture. The others wait for lane 0 when they are first used, and
    lane 0 waits for all of them at the end.
    """

    lane: int
    kernel: Kernel | None = None
    after: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A kernel, or the record of an event where it is None."""

    kernel: Kernel | None
    before: int


@dataclass(slots=True)
class Model:
    """The partial order so far. Streams and events are named by numbers or texts.

    Every method that the program's calls lead to can be repeated from a log of names and
    arguments: see :mod:`portagpu.suites.search.ordering.model`.
    """

    nodes: list[Node] = field(default_factory=list)
    host: int = 0
    """What the host knows to be over."""
    after: dict[Any, int] = field(default_factory=dict)
    """By stream: what later work on it comes after."""
    events: dict[Any, int] = field(default_factory=dict)
    """By event: what its last record stands for, itself included."""
    graphs: dict[Any, list[tuple[Kernel, int]]] = field(default_factory=dict)
    """By graph: its kernels, each with those of the graph before it."""

    def _add(self, kernel: Kernel | None, before: int) -> int:
        self.nodes.append(Node(kernel, before))
        return 1 << (len(self.nodes) - 1)

    def start(self, values: dict[str, int]) -> None:
        """Buffers hold these values, and the host knows it."""
        for buffer, value in values.items():
            self.host |= self._add(Kernel("write", buffer, value=value), self.host)

    def launch(self, stream: Any, kernel: Kernel, ordered: bool = True) -> None:
        """Work on a stream; without ``ordered`` it comes after nothing but what is over."""
        before = self.host | (self.after.get(stream, 0) if ordered else 0)
        self.after[stream] = self.after.get(stream, 0) | before | self._add(kernel, before)

    def record(self, event: Any, stream: Any) -> None:
        """The event stands for the work on that stream so far."""
        before = self.host | self.after.get(stream, 0)
        self.events[event] = self.after[stream] = before | self._add(None, before)

    def wait_event(self, stream: Any, event: Any) -> None:
        """Later work on the stream comes after the event's last record, if there is any."""
        self.wait_for(stream, self.events.get(event, 0))

    def wait_for(self, stream: Any, work: int) -> None:
        """Later work on the stream comes after those nodes."""
        self.after[stream] = self.after.get(stream, 0) | work

    def wait_stream(self, stream: Any, other: Any) -> None:
        """Later work on the stream comes after the work on the other one so far."""
        self.wait_for(stream, self.after.get(other, 0))

    def work_of(self, what: str, which: Any) -> int:
        """The work so far of the "device", of a "stream" or of an "event"."""
        if what == "device":
            return (1 << len(self.nodes)) - 1
        return (self.events if what == "event" else self.after).get(which, 0)

    def known(self, what: str, which: Any) -> bool:
        """Whether the host knows that this work is over."""
        return not self.work_of(what, which) & ~self.host

    def synchronize(self, what: str, which: Any) -> None:
        """The host waited for that work."""
        self.host |= self.work_of(what, which)

    def said(self, what: str, which: Any) -> None:
        """The device said that this work is over."""
        self.host |= self.work_of(what, which)

    def capture(self, graph: Any, steps: list[Step], ordered: bool = True) -> None:
        """A graph of those steps; without ``ordered`` none of them waits for another."""
        lanes, captured = {0: 0}, []
        for step in steps:
            other = lanes.setdefault(step.after, lanes[0])
            tail = lanes.setdefault(step.lane, lanes[0])
            if step.kernel is None:
                tail |= other
            else:
                captured.append((step.kernel, tail if ordered else 0))
                tail |= 1 << (len(captured) - 1)
            lanes[step.lane] = tail
        self.graphs[graph] = captured

    def replay(
        self, graph: Any, stream: Any, *, begins: bool = True, ends: bool = True, times: int = 1
    ) -> None:
        """The graph on a stream, after what was there; later work there comes after all of it.

        Without ``begins`` or ``ends`` that order is missing at that end.
        """
        for _ in range(times):
            first = self.host | (self.after.get(stream, 0) if begins else 0)
            offset, every = len(self.nodes), first
            for kernel, before in self.graphs.get(graph, ()):
                every |= self._add(kernel, first | before << offset)
            self.after[stream] = self.after.get(stream, 0) | (every if ends else 0)

    def read(self, buffer: str) -> Values:
        """What the host may find in a buffer if it looks now, and waits for nothing."""
        return self._found(buffer, self.host, 0, set())

    def _found(self, buffer: str, before: int, reader: int, open_: set[int]) -> Values:
        """What a read may find that comes after ``before``; ``reader`` is its own bit."""
        writes = [
            (number, 1 << number, node.before)
            for number, node in enumerate(self.nodes)
            if node.kernel is not None and node.kernel.target == buffer and 1 << number != reader
        ]
        found: frozenset[int] = frozenset()
        for number, bit, earlier in writes:
            if earlier & reader:
                continue
            if any(bit & between and other & before for _, other, between in writes):
                continue
            values = self._left(number, open_)
            if values is None:
                return None
            found |= values
        return found if len(found) <= MAX_VALUES else None

    def _left(self, number: int, open_: set[int]) -> Values:
        """What a write leaves."""
        node, kernel = self.nodes[number], self.nodes[number].kernel
        if kernel is None or number in open_:
            return None
        if kernel.kind == "write":
            return frozenset((kernel.value,))
        open_.add(number)
        try:
            sources = self._found(kernel.source, node.before, 1 << number, open_)
            if kernel.kind == "copy" or sources is None:
                return sources
            olds = self._found(kernel.target, node.before, 1 << number, open_)
            if olds is None or len(olds) * len(sources) > MAX_VALUES:
                return None
            return frozenset(_wrapped(FACTOR * old + new) for old in olds for new in sources)
        finally:
            open_.discard(number)


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def modelled(log: Log) -> Model:
    """The model after those calls."""
    model = Model()
    for name, given, named in log:
        getattr(model, name)(*given, **named)
    return model


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
    return f"event {event}" if isinstance(event, int) else "an event after long work"


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
