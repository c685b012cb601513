"""One program on the device and in the model."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.devices import functions
from portagpu.devices.registry import backend
from portagpu.facts.capability import Capability
from portagpu.suites.search.area import has_contract
from portagpu.suites.search.ordering.current import CurrentStreams
from portagpu.suites.search.ordering.kernels import Clock, captured
from portagpu.suites.search.ordering.model import (
    BUFFERS,
    Kernel,
    Model,
    blame,
    event_name,
    stream_name,
    work_name,
)

if TYPE_CHECKING:
    from portagpu.devices.contract import Backend
    from portagpu.suites.search.area import Program, Runners
    from portagpu.suites.search.ordering.kernels import Kernels
    from portagpu.suites.search.ordering.model import Kind, Log

STREAMS: Final = (0, 1, 2, 3)
"""0 is the default stream, and the last one is urgent."""
EVENTS: Final = (0, 1, 2)
TIMED: Final = (1, 2)
"""The events that were made with ``enable_timing``; the last one also with ``blocking``."""
START: Final = {buffer: -1 - number for number, buffer in enumerate(BUFFERS)}


@dataclass(slots=True)
class Run:
    """A program with long work of the length ``work``."""

    gpu: Backend
    kernels: Kernels
    work: int
    functions: Any = None
    """What has the calls of the main thread: the device, or the module for the current device."""
    early: bool = False
    """Whether long work was over before the calls that it was to prove."""
    model: Model = field(default_factory=Model)
    log: Log = field(default_factory=list)
    streams: dict[int, Any] = field(default_factory=dict)
    events: dict[Any, Any] = field(default_factory=dict)
    current: CurrentStreams = field(init=False)
    clock: Clock = field(init=False)
    pending: list[str] = field(default_factory=list)
    """The events after long work that are to be asked before the host waits."""
    graphs: list[tuple[int, bool, Any]] = field(default_factory=list)
    """All that were captured: number, whether from the shared pool, and the graph."""
    pool: Any = None
    pool_stream: int | None = None
    """Where a graph of the shared pool ran last: no two of them may run at a time."""
    token: int = 9

    @property
    def newer(self) -> bool:
        """Whether the device has what contract 1.2 added; else no program may need it."""
        return has_contract(self.gpu, 2)

    def all(self, program: Program) -> str:
        """The first difference."""
        called = any(name == "functions" for name, _ in program)
        self.functions = functions if called and backend() is self.gpu else self.gpu
        has_streams = self.gpu.supports(Capability.STREAMS)
        before = self.gpu.current_stream() if has_streams else None
        if has_streams and (before is None or self.functions.current_stream() != before):
            return f"two calls of current_stream() give {before!r} and another stream"
        with ExitStack() as blocks:
            found: str | None = self._begin(blocks)
            for name, given in program:
                found = found or CALLS[name](self, **given)
                if found:
                    return found
            found = found or self._end()
        if has_streams and not found and self.functions.current_stream() != before:
            return "when all blocks have ended another stream is current than before them"
        return found

    def _begin(self, blocks: ExitStack) -> str:
        """Make streams and events; what is wrong with them."""
        has, make = self.gpu.supports, self.functions
        blocks.callback(self.gpu.synchronize)
        if has(Capability.STREAMS):
            self.streams = {number: make.Stream() for number in STREAMS[1:-1]}
            self.streams[STREAMS[-1]] = make.Stream(priority=-1)
            self.streams[0] = (make.default_stream if self.newer else make.current_stream)()
        wrong = self._no_streams()
        self.current = blocks.enter_context(CurrentStreams(self.gpu, self.streams, self.functions))
        if has(Capability.EVENTS):
            self.events = {
                number: make.Event(enable_timing=number in TIMED, blocking=number == EVENTS[-1])
                for number in EVENTS
            }
        self.clock = Clock(self.kernels, self.model)
        self.kernels.start(START)
        self._log("start", START)
        return wrong

    def _no_streams(self) -> str:
        """What is wrong with streams that were just made; a pool of them may be a small one."""
        if not self.streams:
            return ""
        default, one, other, *_ = (self.streams[number] for number in STREAMS)
        if one in (default, other):
            return f"a new stream is {'the default one' if one == default else 'an earlier one'}"
        if one.device.type != self.gpu.device.type:
            return f"a stream of {self.gpu.device} says that it is of {one.device}"
        return ""

    def call_functions(self) -> None:
        """All of the program in the main thread is called by the module's functions."""

    def _log(self, name: str, *given: Any, **named: Any) -> None:
        self.log.append((name, given, named))
        getattr(self.model, name)(*given, **named)

    # work

    def write(self, buffer: str, on: int | None, long: bool, thread: bool) -> str:
        self.token += 1
        return self._launch(Kernel("write", buffer, value=self.token), on, long, False, thread)

    def read(
        self, kind: str, target: str, source: str, on: int | None, long: bool, thread: bool
    ) -> str:
        if target == source:
            return ""
        plain: Kind = "add" if kind == "add" else "copy"
        through = kind == "through"
        return self._launch(Kernel(plain, target, source), on, long, through, thread)

    def _launch(
        self, kernel: Kernel, on: int | None, long: bool, through: bool, thread: bool
    ) -> str:
        stream = self.current.number(thread) if on is None else on
        witness = f"witness {len(self.log)}" if long and self.work and self.events else ""

        def launch() -> str:
            with ExitStack() as block:
                wrong = self.current.place(block, on, stream)
                self.kernels.busy(self.work if long else 0)
                (self.kernels.launch_through if through else self.kernels.launch)(kernel)
            if witness:
                self.events[witness] = self.gpu.Event()
                self.events[witness].record(self.streams.get(stream))
            return wrong

        wrong = self.current.run(thread, launch)
        self._log("launch", stream, kernel)
        if wrong or not witness:
            return wrong
        self._log("record", witness, stream)
        self.pending.append(witness)
        return self._ask_witness(witness)

    def _ask_witness(self, witness: str) -> str:
        """Note whether long work is in flight; if the longest was over, look at what it left."""
        if not self.events[witness].query():
            return ""
        self.early = True
        self.pending.remove(witness)
        return self._over("said", "event", witness, look=self.work == self.kernels.most)

    def _over(self, how: str, what: str, which: Any, look: bool = True) -> str:
        """The host knows by ``how`` that work is over: look at what its last kernel left."""
        fresh = self.model.work_of(what, which) & ~self.model.host
        self._log(how, what, which)
        self.clock.looked()
        kernels = [
            node.kernel
            for number, node in enumerate(self.model.nodes)
            if node.kernel is not None and fresh >> number & 1
        ]
        return self._look(kernels[-1].target) if look and kernels else ""

    def _before_waiting(self) -> str:
        """Ask the events after long work, before the host waits for anything."""
        for witness in tuple(self.pending):
            found = self._ask_witness(witness)
            if found:
                return found
        self.pending.clear()
        return ""

    # order

    def record(self, event: int, stream: int | None, by: str, thread: bool) -> str:
        number = self.current.number(thread) if stream is None else stream
        one = self.events[event]
        self.clock.recording(event)
        returned = one
        if by == "new" and event not in TIMED and self.streams:
            where = self.streams[number]
            one = returned = self.events[event] = self.current.run(thread, where.record_event)
        elif by != "event" and self.streams:
            where = self.streams[number]
            returned = self.current.run(thread, lambda: where.record_event(one))
        elif stream is None:
            self.current.run(thread, one.record)
        else:
            self.current.run(thread, lambda: one.record(self.streams[number]))
        self._log("record", event, number)
        return "" if returned is one else f"record_event({event_name(event)}) gave another event"

    def wait(self, event: int, stream: int | None, by: str, thread: bool) -> None:
        number = self.current.number(thread) if stream is None else stream
        one = self.events[event]
        if by == "stream" and self.streams:
            self.current.run(thread, lambda: self.streams[number].wait_event(one))
        elif stream is None:
            self.current.run(thread, one.wait)
        else:
            self.current.run(thread, lambda: one.wait(self.streams[number]))
        self._log("wait_event", number, event)

    def wait_stream(self, stream: int, other: int, thread: bool) -> None:
        waiting, awaited = self.streams[stream], self.streams[other]
        self.current.run(thread, lambda: waiting.wait_stream(awaited))
        self._log("wait_stream", stream, other)

    def synchronize(self, what: str, which: int, thread: bool) -> str:
        found = self._before_waiting()
        if found:
            return found
        calls = self.functions if what == "device" and not thread else self._subject(what, which)
        returned = self.current.run(thread, calls.synchronize)
        if returned is not None:
            return f"synchronize() of {work_name(what, which)} returned {returned!r}"
        return self._over("synchronize", what, which)

    def _subject(self, what: str, which: int) -> Any:
        if what == "device":
            return self.gpu
        return (self.events if what == "event" else self.streams)[which]

    def query(self, what: str, which: int, thread: bool) -> str:
        known = self.model.known(what, which)
        answer = self.current.run(thread, self._subject(what, which).query)
        shown = work_name(what, which)
        if not isinstance(answer, bool):
            return f"query() of {shown} is a {type(answer).__name__}"
        if known and not answer:
            if self._unrecorded(what, which):
                return f"{shown} has not happened, though it was never recorded"
            return f"{shown} said that its work was not done after it was waited for"
        return self._over("said", what, which) if answer and not known else ""

    def _unrecorded(self, what: str, which: int) -> bool:
        return what == "event" and which not in self.model.events

    # current streams

    def enter(self, stream: int | None, thread: bool) -> str:
        return self.current.enter(stream, thread)

    def leave(self, error: bool, thread: bool) -> str:
        return self.current.leave(error, thread)

    def set_stream(self, stream: int | None, thread: bool) -> str:
        return self.current.set(stream, thread)

    def check_current(self, thread: bool) -> str:
        return self.current.wrong(thread, "after calls of another thread")

    # time

    def pause(self, seconds: float) -> None:
        self.kernels.pause(seconds)

    def elapsed(self, first: int, second: int, thread: bool) -> str:
        for event in (first, second):
            found = self.synchronize("event", event, False)
            if found:
                return found
        timed = first in TIMED and second in TIMED
        recorded = first in self.model.events and second in self.model.events
        try:
            begin, end = self.events[first], self.events[second]
            value = self.current.run(thread, lambda: begin.elapsed_time(end))
        except (ValueError, RuntimeError) as error:
            return f"elapsed_time() raised {error}" if timed and recorded else ""
        shown = f"elapsed_time() from {event_name(first)} to {event_name(second)}"
        if not (timed and recorded):
            lacks = "has no record" if timed else "was made without enable_timing"
            return f"{shown} is {value} though one of them {lacks}"
        return self.clock.wrong_time(shown, first, second, value)

    # graphs

    def capture(
        self, graph: int, steps: list[Any], pool: bool, own: bool, fork: str, thread: bool
    ) -> str:
        # a capture may wait for the device
        found = self._before_waiting()
        if found:
            return found
        # a program of a newer device may ask for it too
        pool = pool and self.newer
        if pool and self.pool is None:
            self.pool = self.functions.graph_pool_handle()
        self.token += len(steps)
        recipe = captured(steps, self.token)
        options = {"pool": self.pool if pool else None}
        if own:
            options["stream"] = self.functions.Stream()
        made, wrong = self.current.run(
            thread,
            lambda: recipe.capture(self.current.calls, self.kernels, options, fork, self.newer),
        )
        self.graphs.append((graph, pool, made))
        self._log("capture", graph, recipe.steps)
        return wrong or self.current.wrong(thread, "after a capture")

    def replay(self, graph: int, on: int | None, times: int, thread: bool) -> str:
        found = [each for each in self.graphs if each[0] == graph]
        if not found:
            return ""
        _, pool, made = found[-1]
        stream = self.current.number(thread) if on is None else on
        if pool and self.pool_stream not in (None, stream):
            self.wait_stream(stream, self.pool_stream or 0, thread)

        def replay() -> str:
            with ExitStack() as block:
                wrong = self.current.place(block, on, stream)
                for _ in range(times):
                    made.replay()
            return wrong

        wrong = self.current.run(thread, replay)
        for _ in range(times):
            self._log("replay", graph, stream)
        if pool:
            self.pool_stream = stream
        return wrong

    # what the host sees

    def peek(self, buffer: str) -> str:
        return self._before_waiting() or self._look(buffer)

    def _look(self, buffer: str) -> str:
        if self.kernels.waits:
            self._log("synchronize", "device", 0)
        allowed = self.model.read(buffer)
        found = self.kernels.peek(buffer)
        self.clock.looked()
        if allowed is None or found <= allowed:
            return ""
        self.kernels.settle()
        late = self.kernels.peek(buffer) != found
        reason = blame(self.log, buffer, found, late)
        shown = f"buffer {buffer} holds {_listed(found)}, and the order allows {_listed(allowed)}"
        return f"{reason}: {shown}" if reason else shown

    def _end(self) -> str:
        found = self.synchronize("device", 0, False)
        if found:
            return found
        for event in self.events:
            if not self.events[event].query():
                if self._unrecorded("event", event):
                    return f"{event_name(event)} has not happened, though it was never recorded"
                return f"{event_name(event)} has not happened after synchronize() of the device"
        for stream in self.streams:
            if not self.streams[stream].query():
                return f"{stream_name(stream)} has work left after synchronize() of the device"
        for calls in (self.gpu, self.functions) if self.newer else ():
            if (said := calls.is_current_stream_capturing()) is not False:
                return f"is_current_stream_capturing() is {said} while no capture is open"
        return next((wrong for buffer in BUFFERS if (wrong := self._look(buffer))), "")


CALLS: Final[Runners] = {
    "capture": Run.capture,
    "current": Run.check_current,
    "elapsed": Run.elapsed,
    "enter": Run.enter,
    "functions": Run.call_functions,
    "leave": Run.leave,
    "pause": Run.pause,
    "peek": Run.peek,
    "query": Run.query,
    "read": Run.read,
    "record": Run.record,
    "replay": Run.replay,
    "set_stream": Run.set_stream,
    "synchronize": Run.synchronize,
    "wait": Run.wait,
    "wait_stream": Run.wait_stream,
    "write": Run.write,
}
"""What runs each call of a program."""


def _listed(values: frozenset[int]) -> str:
    return " or ".join(map(str, sorted(values)))
