"""The area ``ordering``: how programs of kernels on streams are drawn, and how long their work is.

A program is phrases of some calls that hand work over, and single calls between them. A phrase is
what one wait that is missing shows in. Its parts are drawn one by one, the simplest first, so that
they shrink.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from portagpu.facts.capability import Capability
from portagpu.suites.search.area import Area, has_contract
from portagpu.suites.search.ordering.kernels import Kernels, TorchKernels
from portagpu.suites.search.ordering.model import BUFFERS, Kernel
from portagpu.suites.search.ordering.run import CALLS, EVENTS, START, STREAMS, TIMED, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Call, Program, Runners


FACTOR: Final = 4
"""By how much work gets longer where it was over too early."""
PROBE_S: Final = 0.1
"""A device whose launches hold the host for that long works while it launches."""
PROVED: Final = 32
"""Shorter work is tried again after this many programs whose work was long enough at once."""
MAX_PHRASES = 6
PAUSES = (0.003, 0.003, 0.003, 0.03)
"""Seconds of the host: the longest shows best by how much a clock may be off."""


@dataclass(slots=True)
class Length:
    """The length of long work on one device, and how often it was long enough."""

    gpu: Backend
    kernels: Kernels
    work: int = 0
    """0 where the device has nothing in flight when a call returns."""
    streak: int = 0

    def find(self) -> str:
        """The shortest work after which an event is pending; a difference, or an empty text."""
        if not self.gpu.supports("events"):
            self.work = 1
            return ""
        self.kernels.start(START)
        event, work, buffer = self.gpu.Event(), 1, "a"
        while True:
            began = time.perf_counter()
            self.kernels.busy(work)
            self.kernels.launch(Kernel("write", buffer, value=work))
            event.record()
            over = event.query()
            if not over or work == self.kernels.most or time.perf_counter() - began > PROBE_S:
                break
            work *= FACTOR
        found = self.kernels.peek(buffer)
        self.gpu.synchronize()
        if over and found != {work}:
            return "an event said that it had happened before the work that it stands for was done"
        self.work = 0 if over else work
        return ""

    def proved(self, work: int, at_once: bool) -> None:
        """Work of that length was in flight for long enough."""
        self.work = work
        self.streak = self.streak + 1 if at_once else 0
        if self.streak > PROVED:
            self.work, self.streak = max(1, work // FACTOR), 0


class Ordering(Area):
    """``kernels`` makes what launches kernels on a device."""

    name = "ordering"

    def __init__(self, kernels: Callable[[Backend], Kernels] = TorchKernels) -> None:
        self.kernels = kernels
        self._early = 0
        """How many programs had no work in flight when they looked at it."""
        self._length: Length | None = None

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        return programs_for(gpu)

    def aside(self) -> Iterator[str]:
        return repeat("the work was over too early", self._early)

    def unjudged(self) -> int:
        return self._early

    def calls(self) -> Runners:
        return CALLS

    def difference(self, rank: Rank, program: Program) -> str:
        length = self._length
        if length is None or length.gpu is not rank.gpu:
            length = Length(rank.gpu, self.kernels(rank.gpu))
            wrong = length.find()
            if wrong:
                return wrong
            self._length = length
        first = work = length.work
        while True:
            run = Run(rank.gpu, length.kernels, work)
            found = run.all(program)
            if found or not run.early:
                break
            if work >= length.kernels.most:
                self._early += 1
                return ""
            work = min(work * FACTOR, length.kernels.most)
        if work and not found:
            length.proved(work, work == first)
        return found


@cache
def _one_of(values: tuple[Any, ...], types: tuple[type, ...]) -> SearchStrategy[Any]:
    """One of the values; 0 and False are equal and not the same, hence the types."""
    del types
    return st.sampled_from(values)


@dataclass(slots=True)
class _Phrases:
    """Draws phrases for what a device has; one without streams has its one queue."""

    draw: Callable[[SearchStrategy[Any]], Any]
    streams: bool
    events: bool
    graphs: bool
    newer: bool
    """Whether it has what contract 1.2 added."""
    usual: bool = False
    """In which thread most calls of the phrase are."""

    def pick(self, *values: Any) -> Any:
        """One of the values."""
        return self.draw(_one_of(values, tuple(map(type, values))))

    def phrase(self) -> Program:
        """Some calls."""
        have = (
            (self.single, True),
            (self.waited_for, True),
            (self.handed_over, self.streams),
            (self.recorded_again, self.streams and self.events),
            (self.in_a_block, self.streams),
            (self.replayed, self.graphs),
            (self.timed, self.events),
        )
        self.usual = self.pick(False, False, True)
        every = [each for each, here in have if here]
        found: Program = every[self.pick(*range(len(every)))]()
        return found

    def single(self) -> Program:
        """One call."""
        calls = [self.write, self.read, self.peek, lambda: self.host_wait("device", 0)]
        if self.events:
            calls += [self.record, self.wait, self.elapsed]
            calls += [lambda: self.host_wait("event"), lambda: self.query("event")]
        if self.streams:
            calls += [self.wait_stream, self.enter, self.leave, self.current]
            calls += [lambda: self.host_wait("stream"), lambda: self.query("stream")]
        if self.streams and self.newer:
            calls += [self.set_stream]
        if self.graphs:
            calls += [self.capture, self.replay]
        return [calls[self.pick(*range(len(calls)))]()]

    def singles(self, most: int) -> Program:
        """Up to that many single calls."""
        return list(chain.from_iterable(self.single() for _ in range(self.pick(*range(most + 1)))))

    def handed_over(self) -> Program:
        """Work on one stream, and work on another that has to come after it."""
        first, second, buffers = self.pick(*STREAMS), self.pick(*STREAMS), self.buffers()
        work = self.pick("write", "read")
        then = self.pick("read", "write", "next")
        if work == "write":
            begun = self.write(buffers[0], first, long=True)
        else:
            begun = self.read(buffers[1], buffers[0], first, long=True)
        between = self.singles(1)
        edge = self.edge(first, second)
        if then == "read":
            later = self.read(buffers[1], buffers[0], second)
        elif then == "write":
            later = self.write(buffers[0], second)
        else:
            later = self.read(buffers[2], buffers[1], second)
        return [begun, *between, *edge, later]

    def edge(self, first: int, second: int) -> Program:
        """What orders later work on the second stream after that on the first."""
        kind = self.pick("stream", "event", "event and host", "host", "device")
        if kind == "stream":
            return [self.wait_stream(second, first)]
        if kind == "device":
            return [self.host_wait("device", 0)]
        if kind == "host" or not self.events:
            return [self.host_wait("stream", first)]
        event = self.pick(*EVENTS)
        late = self.singles(1)
        if kind == "event":
            return [self.record(event, first), *late, self.wait(event, second)]
        return [self.record(event, first), *late, self.host_wait("event", event)]

    def waited_for(self) -> Program:
        """Work, and a host that waits for it, or asks, and looks."""
        stream, buffer = self.on(), self.pick(*BUFFERS)
        begun = self.write(buffer, stream, long=True)
        look = ("peek", {"buffer": buffer})
        wait = self.host_wait if self.pick(True, False) else self.query
        what = self.pick("device", *(["event"] if self.events else []), *self.names())
        if what == "event":
            event = self.pick(*EVENTS)
            return [begun, self.record(event, stream), wait("event", event), look]
        if what == "stream":
            return [begun, wait("stream", stream), look]
        return [begun, self.host_wait("device", 0), look]

    def names(self) -> list[str]:
        return ["stream"] if self.streams else []

    def recorded_again(self) -> Program:
        """An event that is recorded before and after long work, on one stream or on two."""
        first, second, third = (self.pick(*STREAMS) for _ in range(3))
        event, buffers = self.pick(*EVENTS), self.buffers()
        early = self.record(event, self.pick(first, third))
        work = self.write(buffers[0], first, long=True)
        again = self.record(event, first)
        if self.pick(True, False):
            wait, look = self.wait(event, second), self.read(buffers[1], buffers[0], second)
        else:
            wait, look = self.host_wait("event", event), ("peek", {"buffer": buffers[0]})
        return [early, work, again, wait, look]

    def in_a_block(self) -> Program:
        """Work on the current stream in a block and after it."""
        thread, buffers = self.thread(), self.buffers()
        bodies = (
            *(lambda: self.singles(2), self.waited_for, self.handed_over),
            *((self.recorded_again,) if self.events else ()),
            *((self.replayed,) if self.graphs else ()),
        )
        return [
            ("enter", {"stream": self.on(), "thread": thread}),
            self.write(buffers[0], None, long=self.pick(True, False), thread=thread),
            *bodies[self.pick(*range(len(bodies)))](),
            ("leave", {"error": self.pick(False, True), "thread": thread}),
            self.read(buffers[1], buffers[self.pick(0, 2)], None, thread=thread),
        ]

    def replayed(self) -> Program:
        """A graph, work before it, its replays, and work after it."""
        graph, on = self.pick(0, 1), self.on()
        found = [self.capture(graph)]
        found += [self.write(on=on) for _ in range(self.pick(0, 1))]
        found += [self.replay(graph, on)]
        found += [self.read(on=on) for _ in range(self.pick(0, 1))]
        found += [self.replay(graph) for _ in range(self.pick(0, 1))]
        return found

    def timed(self) -> Program:
        """Two events with some milliseconds of the host between them."""
        first, second = self.pick(TIMED, TIMED[::-1])
        asked = self.pick((first, second), (second, first))
        return [
            self.record(first),
            ("synchronize", {"what": "event", "which": first, "thread": False}),
            *([self.write(long=True)] if self.pick(False, True) else []),
            ("pause", {"seconds": self.pick(*PAUSES)}),
            self.record(second),
            ("elapsed", {"first": asked[0], "second": asked[1], "thread": self.thread()}),
        ]

    # arguments

    def on(self) -> int | None:
        """A stream, or None: the current one."""
        found: int | None = self.pick(None, *STREAMS) if self.streams else None
        return found

    def thread(self) -> bool:
        found: bool = self.pick(self.usual, self.usual, self.usual, not self.usual)
        return found

    def before(self) -> Program:
        """What has happened when the program begins: a side stream is current, or was."""
        found: Program = [("functions", {})] if self.pick(False, True) else []
        if not self.streams:
            return found
        what = self.pick("nothing", "nothing", "side stream", "error")
        if what == "nothing":
            return found
        found += [
            ("enter", {"stream": self.pick(*STREAMS[1:]), "thread": thread})
            for thread in self.pick((False,), (False, True))
        ]
        if what == "error":
            found.append(("leave", {"error": True, "thread": False}))
        return found

    def buffers(self) -> list[str]:
        """All buffers in some order."""
        first = self.pick(*range(len(BUFFERS)))
        return [*BUFFERS[first:], *BUFFERS[:first]]

    # single calls; what is given is not drawn

    def write(
        self, buffer: str = "", on: Any = "", long: bool | None = None, thread: bool | None = None
    ) -> Call:
        return "write", {
            "buffer": buffer or self.pick(*BUFFERS),
            "on": self.on() if on == "" else on,
            "long": self.pick(False, True) if long is None else long,
            "thread": self.thread() if thread is None else thread,
        }

    def read(
        self,
        target: str = "",
        source: str = "",
        on: Any = "",
        long: bool | None = None,
        thread: bool | None = None,
    ) -> Call:
        return "read", {
            "kind": self.pick("copy", "add", "through"),
            "target": target or self.pick(*BUFFERS),
            "source": source or self.pick(*BUFFERS),
            "on": self.on() if on == "" else on,
            "long": self.pick(False, True) if long is None else long,
            "thread": self.thread() if thread is None else thread,
        }

    def peek(self) -> Call:
        return "peek", {"buffer": self.pick(*BUFFERS)}

    def record(self, event: int | None = None, stream: Any = "") -> Call:
        by = self.pick("event", "stream", "new")
        return "record", self.event_and_stream(event, stream) | {"by": by}

    def wait(self, event: int | None = None, stream: Any = "") -> Call:
        return "wait", self.event_and_stream(event, stream)

    def event_and_stream(self, event: int | None, stream: Any) -> dict[str, Any]:
        return {
            "event": self.pick(*EVENTS) if event is None else event,
            "stream": self.on() if stream == "" else stream,
            "by": self.pick("event", "stream"),
            "thread": self.thread(),
        }

    def wait_stream(self, stream: int | None = None, other: int | None = None) -> Call:
        return "wait_stream", {
            "stream": self.pick(*STREAMS) if stream is None else stream,
            "other": self.pick(*STREAMS) if other is None else other,
            "thread": self.thread(),
        }

    def host_wait(self, what: str, which: int | None = None) -> Call:
        return "synchronize", self.subject(what, which)

    def query(self, what: str, which: int | None = None) -> Call:
        return "query", self.subject(what, which)

    def subject(self, what: str, which: int | None) -> dict[str, Any]:
        every = EVENTS if what == "event" else STREAMS
        which = self.pick(*every) if which is None else which
        return {"what": what, "which": which, "thread": self.thread()}

    def enter(self) -> Call:
        return "enter", {"stream": self.on(), "thread": self.thread()}

    def leave(self) -> Call:
        return "leave", {"error": self.pick(False, True), "thread": self.thread()}

    def set_stream(self) -> Call:
        return "set_stream", {"stream": self.on(), "thread": self.thread()}

    def current(self) -> Call:
        return "current", {"thread": self.thread()}

    def elapsed(self) -> Call:
        first, second = self.pick(*EVENTS), self.pick(*EVENTS)
        return "elapsed", {"first": first, "second": second, "thread": self.thread()}

    def capture(self, graph: int | None = None) -> Call:
        return "capture", {
            "graph": self.pick(0, 1) if graph is None else graph,
            "steps": [self.step() for _ in range(self.pick(1, 2, 3, 4, 5))],
            "pool": self.newer and self.pick(False, True),
            "own": self.streams and self.pick(False, True),
            "fork": self.pick("stream", "event") if self.events else "stream",
            "thread": self.thread(),
        }

    def step(self) -> list[Any]:
        """One of :func:`portagpu.suites.search.ordering.kernels.captured`."""
        kinds = ("write", "copy", "add", "through", *(["wait"] if self.streams else []))
        lanes = (0, 1, 2) if self.streams else (0,)
        kind, lane = self.pick(*kinds), self.pick(*lanes)
        return [kind, lane, self.pick(*BUFFERS), self.pick(*BUFFERS), self.pick(*lanes)]

    def replay(self, graph: int | None = None, on: Any = "") -> Call:
        return "replay", {
            "graph": self.pick(0, 1) if graph is None else graph,
            "on": self.on() if on == "" else on,
            "times": self.pick(1, 2, 3),
            "thread": self.thread(),
        }


def programs_for(gpu: Backend) -> SearchStrategy[Program]:
    """Programs for what the device claims."""
    has = {
        "streams": gpu.supports(Capability.STREAMS),
        "events": gpu.supports(Capability.EVENTS),
        "graphs": gpu.supports(Capability.GRAPHS),
        "newer": has_contract(gpu, 2),
    }
    phrase = st.composite(lambda draw: _Phrases(draw, **has).phrase())()
    before = st.composite(lambda draw: _Phrases(draw, **has).before())()
    lists = st.tuples(before, st.lists(phrase, min_size=1, max_size=MAX_PHRASES))
    return lists.map(lambda found: [*found[0], *chain.from_iterable(found[1])])


AREA: Final = Ordering()
