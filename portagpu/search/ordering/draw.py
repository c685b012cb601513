"""How programs are drawn: single calls, and phrases of some calls that hand work over."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from portagpu.contract import Capability
from portagpu.search.ordering.model import BUFFERS
from portagpu.search.ordering.run import EVENTS, STREAMS, TIMED
from portagpu.search.strategies import call

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from portagpu.contract import Backend
    from portagpu.search.programs import Program

MOST_PHRASES = 7
_THREAD = st.sampled_from((False, False, False, True))
_LONG = st.booleans()
_BY = st.sampled_from(("event", "stream"))
_BUFFER = st.sampled_from(BUFFERS)


class _Draw:
    """Strategies for what the device has; a device without streams has its one queue."""

    def __init__(self, gpu: Backend) -> None:
        self.streams = gpu.supports(Capability.STREAMS)
        self.events = gpu.supports(Capability.EVENTS)
        self.graphs = gpu.supports(Capability.GRAPHS)
        self.newer = gpu.plugin.contract >= (1, 2)
        stream = st.sampled_from(STREAMS) if self.streams else st.none()
        self.stream: SearchStrategy[int | None] = stream
        self.on = st.one_of(st.none(), stream)

    def programs(self) -> SearchStrategy[Program]:
        """Lists of phrases, joined."""
        phrases = [self.single().map(lambda one: [one]), *self.phrases()]
        lists = st.lists(st.one_of(*phrases), min_size=1, max_size=MOST_PHRASES)
        return lists.map(lambda found: list(chain.from_iterable(found)))

    def single(self) -> SearchStrategy[Any]:
        """One call."""
        calls = [
            self.write(),
            self.read(),
            call("peek", buffer=_BUFFER),
            call("synchronize", what=("device",), which=(0,), thread=_THREAD),
        ]
        if self.events:
            calls += [self.record(), self.wait(), self.host_wait("event"), self.query("event")]
            calls += [call("elapsed", first=EVENTS, second=EVENTS)]
        if self.streams:
            calls += [
                self.wait_stream(),
                self.host_wait("stream"),
                self.query("stream"),
                call("enter", stream=self.on, thread=_THREAD),
                call("leave", error=st.booleans(), thread=_THREAD),
                call("current", thread=_THREAD),
            ]
            if self.newer:
                calls += [call("set_stream", stream=self.on, thread=_THREAD)]
        if self.graphs:
            calls += [self.capture(), self.replay()]
        return st.one_of(*calls)

    def phrases(self) -> list[SearchStrategy[Program]]:
        """Calls that belong together: what one wait that is missing shows in."""
        return [
            st.composite(each)()
            for each, here in (
                (self._handed_over, self.streams),
                (self._waited_for, True),
                (self._recorded_again, self.streams and self.events),
                (self._in_a_block, self.streams),
                (self._replayed, self.graphs),
                (self._timed, self.events),
            )
            if here
        ]

    def _handed_over(self, draw: Any) -> Program:
        """Work on one stream, and work on another that has to come after it."""
        first, second, buffers = draw(self.stream), draw(self.stream), draw(_orders())
        work = [self.write(buffers[0], first, True), self.read(buffers[1], buffers[0], first, True)]
        later = [
            self.read(buffers[1], buffers[0], second),
            self.write(buffers[0], second),
            self.read(buffers[2], buffers[1], second),
        ]
        return [
            draw(st.one_of(*work)),
            *draw(self.edge(first, second)),
            draw(st.one_of(*later)),
            *draw(st.lists(self.single(), max_size=1)),
        ]

    def edge(self, first: Any, second: Any) -> SearchStrategy[Program]:
        """What orders the work on the second stream after that on the first."""
        edges = [
            st.tuples(self.wait_stream(second, first)),
            st.tuples(call("synchronize", what=("device",), which=(0,), thread=_THREAD)),
            st.tuples(self.host_wait("stream", first)),
        ]
        if self.events:
            event = st.shared(st.sampled_from(EVENTS), key=f"edge {id(first)}")
            edges += [
                st.tuples(self.record(event, first), self.wait(event, second)),
                st.tuples(self.record(event, first), self.wait(event, second)),
                st.tuples(self.record(event, first), self.host_wait("event", event)),
            ]
        return st.one_of(*edges).map(list)

    def _waited_for(self, draw: Any) -> Program:
        """Work, and a host that waits for it, or asks, and looks."""
        stream, buffer, event = draw(self.on), draw(_BUFFER), draw(st.sampled_from(EVENTS))
        waits = [
            st.tuples(call("synchronize", what=("device",), which=(0,), thread=_THREAD)),
        ]
        if self.streams:
            waits += [st.tuples(self.host_wait("stream")), st.tuples(self.query("stream"))]
        if self.streams and stream is not None:
            waits += [
                st.tuples(self.host_wait("stream", stream)),
                st.tuples(self.query("stream", stream)),
            ]
        if self.events:
            recorded = self.record(event, stream)
            waits += [
                st.tuples(recorded, self.host_wait("event", event)),
                st.tuples(recorded, self.query("event", event)),
            ]
        return [
            draw(self.write(buffer, stream, True)),
            *draw(st.one_of(*waits)),
            ("peek", {"buffer": buffer}),
        ]

    def _recorded_again(self, draw: Any) -> Program:
        """An event that is recorded before and after long work, on one stream or on two."""
        first, second, third = (draw(self.stream) for _ in range(3))
        event, buffers = draw(st.sampled_from(EVENTS)), draw(_orders())
        records = [draw(self.record(event, draw(st.sampled_from((first, third)))))]
        work = draw(self.write(buffers[0], first, True))
        again = draw(self.record(event, first))
        waits = [self.wait(event, second), self.host_wait("event", event)]
        return [*records, work, again, draw(st.one_of(*waits)), *draw(self._seen(buffers, second))]

    def _seen(self, buffers: Any, second: Any) -> SearchStrategy[Program]:
        return st.tuples(
            st.one_of(self.read(buffers[1], buffers[0], second), call("peek", buffer=[buffers[0]]))
        ).map(list)

    def _in_a_block(self, draw: Any) -> Program:
        """Work on the current stream inside and after a block, and an edge between both."""
        stream, thread, buffers = draw(self.stream), draw(_THREAD), draw(_orders())
        inside = draw(self.write(buffers[0], None, True, thread))
        after = draw(self.read(buffers[1], buffers[0], None, None, thread))
        error = draw(st.booleans())
        between = draw(st.lists(self.single(), max_size=2))
        return [
            ("enter", {"stream": stream, "thread": thread}),
            inside,
            *between,
            ("leave", {"error": error, "thread": thread}),
            after,
        ]

    def _replayed(self, draw: Any) -> Program:
        """A graph, work before it, one or some replays, and work after it."""
        captured, on = draw(self.capture()), draw(self.on)
        name = captured[1]["graph"]
        before = draw(st.lists(self.write(on=on), max_size=2))
        after = draw(st.lists(st.one_of(self.read(on=on), self.write(on=on)), max_size=1))
        return [captured, *before, draw(self.replay(name, on)), *after, *draw(self._replays(name))]

    def _replays(self, name: int) -> SearchStrategy[Program]:
        return st.lists(self.replay(name), max_size=1)

    def _timed(self, draw: Any) -> Program:
        """Two events with some milliseconds of the host between them."""
        first, second = draw(st.permutations(TIMED))
        asked = draw(st.permutations((first, second)))
        return [
            draw(self.record(first)),
            ("synchronize", {"what": "event", "which": first, "thread": False}),
            *draw(st.lists(self.write(long=True), max_size=1)),
            ("pause", {}),
            draw(self.record(second)),
            ("elapsed", {"first": asked[0], "second": asked[1]}),
        ]

    # single calls; an argument that is given is not drawn

    def write(
        self, buffer: Any = None, on: Any = "", long: Any = None, thread: Any = None
    ) -> SearchStrategy[Any]:
        return call(
            "write",
            buffer=_given(buffer, _BUFFER),
            on=self.on if on == "" else st.just(on),
            long=_given(long, _LONG),
            thread=_given(thread, _THREAD),
        )

    def read(
        self,
        target: Any = None,
        source: Any = None,
        on: Any = "",
        long: Any = None,
        thread: Any = None,
    ) -> SearchStrategy[Any]:
        return call(
            "read",
            kind=("copy", "add", "through"),
            target=_given(target, _BUFFER),
            source=_given(source, _BUFFER),
            on=self.on if on == "" else st.just(on),
            long=_given(long, _LONG),
            thread=_given(thread, _THREAD),
        )

    def record(self, event: Any = None, stream: Any = "") -> SearchStrategy[Any]:
        where = self.on if stream == "" else st.just(stream)
        event = _given(event, st.sampled_from(EVENTS))
        return call("record", event=event, stream=where, by=_BY, thread=_THREAD)

    def wait(self, event: Any = None, stream: Any = "") -> SearchStrategy[Any]:
        where = self.on if stream == "" else st.just(stream)
        event = _given(event, st.sampled_from(EVENTS))
        return call("wait", event=event, stream=where, by=_BY, thread=_THREAD)

    def wait_stream(self, stream: Any = None, other: Any = None) -> SearchStrategy[Any]:
        return call(
            "wait_stream",
            stream=_given(stream, self.stream),
            other=_given(other, self.stream),
            thread=_THREAD,
        )

    def host_wait(self, what: str, which: Any = None) -> SearchStrategy[Any]:
        every = st.sampled_from(EVENTS if what == "event" else STREAMS)
        return call("synchronize", what=(what,), which=_given(which, every), thread=_THREAD)

    def query(self, what: str, which: Any = None) -> SearchStrategy[Any]:
        every = st.sampled_from(EVENTS if what == "event" else STREAMS)
        return call("query", what=(what,), which=_given(which, every), thread=_THREAD)

    def capture(self) -> SearchStrategy[Any]:
        lanes = (0, 0, 1, 2) if self.streams else (0,)
        kinds = ("write", "copy", "add", "through", *(["wait"] if self.streams else []))
        step = st.tuples(
            st.sampled_from(kinds),
            st.sampled_from(lanes),
            _BUFFER,
            _BUFFER,
            st.sampled_from(lanes),
        ).map(list)
        return call(
            "capture",
            graph=(0, 1),
            steps=st.lists(step, min_size=1, max_size=5),
            pool=st.booleans(),
            own=st.booleans() if self.streams else st.just(False),
            fork=("stream", "event") if self.events else ("stream",),
            thread=_THREAD,
        )

    def replay(self, graph: Any = None, on: Any = "") -> SearchStrategy[Any]:
        return call(
            "replay",
            graph=_given(graph, st.sampled_from((0, 1))),
            on=self.on if on == "" else st.just(on),
            times=(1, 1, 2, 3),
            thread=_THREAD,
        )


def _orders() -> SearchStrategy[Any]:
    return st.permutations(BUFFERS)


def _given(value: Any, drawn: SearchStrategy[Any]) -> SearchStrategy[Any]:
    if value is None:
        return drawn
    return value if isinstance(value, st.SearchStrategy) else st.just(value)


def programs_for(gpu: Backend) -> SearchStrategy[Program]:
    """Programs for what the device claims."""
    return _Draw(gpu).programs()
