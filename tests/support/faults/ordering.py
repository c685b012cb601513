"""Faults of streams, events and graphs, on a device in virtual time with kernels of every length.

The CPU's work is over when a call returns, so that no wait can be missing there. Here each fault
replaces a rule of :mod:`tests.support.virtual_device`, and is one fault for each length of a
kernel.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from portagpu.suites.search.ordering import AREA
from tests.support.faults import Fault, replaced
from tests.support.virtual_device import (
    LENGTHS,
    VirtualDevice,
    VirtualEvent,
    VirtualGraph,
    VirtualKernels,
    VirtualStream,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Region = Any
Change = Any
Table = tuple[str, Any, str, dict[str, Region], dict[str, Change], tuple[str, ...]]
"""A call: its name, its class and method there, regions, ways to go wrong, words."""

_MAIN = threading.main_thread()


def _gpu(one: Any) -> VirtualDevice:
    return one if isinstance(one, VirtualDevice) else one.gpu


def _streams(*named: Any) -> list[VirtualStream]:
    return [each for each in named if isinstance(each, VirtualStream)]


def _event(*named: Any) -> Any:
    return next((each for each in named if isinstance(each, VirtualEvent)), None)


def _again(one: Any) -> bool:
    """Whether this object has had such a call before."""
    calls = vars(one).setdefault("calls_of_faults", [0])
    calls[0] += 1
    return calls[0] > 1


def _side(stream: VirtualStream) -> bool:
    return stream is not stream.gpu.default_stream()


def _busy(gpu: VirtualDevice) -> int:
    return sum(each.free_at > gpu.now for each in (gpu.default_stream(), *gpu.streams))


ANYWHERE: dict[str, Region] = {
    "everywhere": lambda one, *given: True,
    "in another thread": lambda one, *given: threading.current_thread() is not _MAIN,
    "while a side stream is current": lambda one, *given: _side(_gpu(one).current_stream()),
    "while the default stream is current": lambda one, *given: (
        not _side(_gpu(one).current_stream())
    ),
    "after an error in a block": lambda one, *given: "error" in _gpu(one).history,
    "after a capture": lambda one, *given: "capture" in _gpu(one).history,
    "after a replay": lambda one, *given: "replay" in _gpu(one).history,
    "while two streams are busy": lambda one, *given: _busy(_gpu(one)) > 1,
    "from the second call on": lambda one, *given: _again(one),
}
OF_STREAMS: dict[str, Region] = {
    "of the default stream": lambda *named: any(not _side(each) for each in _streams(*named)),
    "of a side stream": lambda *named: any(map(_side, _streams(*named))),
    "of the urgent stream": lambda *named: any(each.priority for each in _streams(*named)),
}
OF_EVENTS: dict[str, Region] = {
    "of an event recorded again": lambda *named: len(_event(*named).moments) > 1,
    "of a timed event": lambda *named: _event(*named).timing,
    "of an event without times": lambda *named: not _event(*named).timing,
    "of a blocking event": lambda *named: _event(*named).blocking,
    "of another thread's event": lambda *named: (
        _event(*named).recorded and _event(*named).thread != threading.get_ident()
    ),
}
OF_GRAPHS: dict[str, Region] = {
    "of a graph with four kernels or more": lambda graph, *given: len(graph.nodes) > 3,
    "of a graph with one kernel": lambda graph, *given: len(graph.nodes) == 1,
    "from the second replay on": lambda graph, *given: graph.replays > 1,
    "of the first replay": lambda graph, *given: graph.replays == 1,
    "of a graph with a copy": lambda graph, *given: any(
        kernel.kind == "copy" for kernel, _ in graph.nodes
    ),
}


def _nothing(good: Any, one: Any, *given: Any) -> None:
    del good, given
    _gpu(one).host_call()


# the host waits


def _work(one: Any) -> float:
    """When the work is over that a call of the host waits for."""
    if isinstance(one, VirtualDevice):
        return max(each.free_at for each in (one.default_stream(), *one.streams))
    return one.at if isinstance(one, VirtualEvent) else one.free_at


def _host_half(good: Any, one: Any) -> None:
    gpu = _gpu(one)
    gpu.host_call()
    gpu.wait_until(gpu.now + (_work(one) - gpu.now) / 2)


def _host_but_last(good: Any, one: Any) -> None:
    gpu = _gpu(one)
    gpu.host_call()
    gpu.wait_until(_work(one) - gpu.kernel_s)


def _host_default(good: Any, one: Any) -> None:
    gpu = _gpu(one)
    gpu.host_call()
    gpu.wait_until(gpu.default_stream().free_at)


def _host_current(good: Any, one: Any) -> None:
    gpu = _gpu(one)
    gpu.host_call()
    gpu.wait_until(gpu.current_stream().free_at)


def _host_first(good: Any, event: Any) -> None:
    event.gpu.host_call()
    event.gpu.wait_until(event.moments[0] if event.moments else 0.0)


HOST = {
    "does nothing": _nothing,
    "waits half as long": _host_half,
    "does not wait for the last kernel": _host_but_last,
}
OTHERS = {
    "waits for the default stream alone": _host_default,
    "waits for the current stream alone": _host_current,
}

# a stream waits


def _moment(one: Any) -> float:
    return one.at if isinstance(one, VirtualEvent) else one.free_at


def _of_wait(one: Any, given: tuple[Any, ...]) -> tuple[VirtualStream, Any]:
    """(the stream that waits, what it waits for)."""
    if isinstance(one, VirtualEvent):
        stream = given[0] if given and given[0] is not None else one.gpu.current_stream()
        return stream, one
    return one, given[0]


def _until(change: Callable[[VirtualDevice, float], float]) -> Change:
    """Outside of captures the wait is for another moment."""

    def wait(good: Any, one: Any, *given: Any) -> None:
        stream, other = _of_wait(one, given)
        gpu = stream.gpu
        if other.tail is not None or stream.tail is not None:
            good(one, *given)
            return
        gpu.host_call()
        stream.follow(change(gpu, _moment(other)), None)

    return wait


def _reversed(good: Any, stream: Any, other: Any) -> None:
    good(other, stream)


def _on_default(good: Any, one: Any, *given: Any) -> None:
    stream, other = _of_wait(one, given)
    good(*_given_back(one, stream.gpu.default_stream(), other))


def _on_current(good: Any, one: Any, *given: Any) -> None:
    stream, other = _of_wait(one, given)
    good(*_given_back(one, stream.gpu.current_stream(), other))


def _given_back(one: Any, stream: Any, other: Any) -> tuple[Any, Any]:
    return (one, stream) if isinstance(one, VirtualEvent) else (stream, other)


def _first_record(good: Any, one: Any, *given: Any) -> None:
    stream, event = _of_wait(one, given)
    if event.tail is not None or not event.moments:
        good(one, *given)
        return
    stream.gpu.host_call()
    stream.follow(event.moments[0], None)


WAITS = {
    "does nothing": _nothing,
    "waits half as long": _until(lambda gpu, moment: gpu.now + (moment - gpu.now) / 2),
    "does not wait for the last kernel": _until(lambda gpu, moment: moment - gpu.kernel_s),
    "lets the default stream wait": _on_default,
    "lets the current stream wait": _on_current,
}

# asking


def _yes(good: Any, one: Any) -> bool:
    good(one)
    return True


def _no(good: Any, one: Any) -> bool:
    good(one)
    return False


def _not(good: Any, one: Any) -> bool:
    return not good(one)


def _asks_default(good: Any, one: Any) -> bool:
    good(one)
    gpu = _gpu(one)
    return gpu.default_stream().free_at <= gpu.now


def _asks_early(good: Any, one: Any) -> bool:
    """It is said to be over one kernel before it is."""
    good(one)
    return _moment(one) - one.gpu.kernel_s <= one.gpu.now


ASKED = {
    "is always True": _yes,
    "is always False": _no,
    "says the contrary": _not,
    "asks the default stream": _asks_default,
    "is True one kernel early": _asks_early,
}

# records


def _recorded_on(choose: Callable[[VirtualEvent, Any], Any]) -> Change:
    def record(good: Any, event: Any, stream: Any = None) -> None:
        good(event, choose(event, stream))

    return record


def _keeps_first(good: Any, event: Any, stream: Any = None) -> None:
    if event.moments:
        event.gpu.host_call()
        event.moments.append(event.at)
    else:
        good(event, stream)


def _at_once(good: Any, event: Any, stream: Any = None) -> None:
    good(event, stream)
    event.at = event.gpu.now


def _kernel_early(good: Any, event: Any, stream: Any = None) -> None:
    good(event, stream)
    event.at -= event.gpu.kernel_s


RECORDS = {
    "does nothing": _nothing,
    "is on the default stream": _recorded_on(lambda event, stream: event.gpu.default_stream()),
    "is on the current stream": _recorded_on(lambda event, stream: event.gpu.current_stream()),
    "keeps the first record": _keeps_first,
    "has happened at once": _at_once,
    "leaves the last kernel out": _kernel_early,
}

# blocks


def _resets(good: Any, gpu: Any, *given: Any) -> None:
    good(gpu, *given)
    gpu._streams.streams[-1] = gpu.default_stream()


def _stays(good: Any, gpu: Any, *given: Any) -> None:
    left = gpu.current_stream()
    good(gpu, *given)
    gpu._streams.streams[-1] = left


def _quiet(good: Any, gpu: Any, *given: Any) -> None:
    """The block is there, and its stream is not."""
    del given
    gpu._streams.streams.append(gpu.current_stream())


def _newest(good: Any, gpu: Any, *given: Any) -> None:
    good(gpu, *given)
    if gpu.streams:
        gpu._streams.streams[-1] = gpu.streams[-1]


# work


def _early_kernel(good: Any, gpu: Any, kernel: Any, stream: Any) -> None:
    if stream.tail is not None:
        good(gpu, kernel, stream)
        return
    stream.free_at = max(stream.free_at, gpu.schedule(kernel, gpu.now))


def _lost_kernel(good: Any, gpu: Any, kernel: Any, stream: Any) -> None:
    del good, gpu, kernel, stream


def _default_kernel(good: Any, gpu: Any, kernel: Any, stream: Any) -> None:
    good(gpu, kernel, stream if stream.tail is not None else gpu.default_stream())


def _twice_kernel(good: Any, gpu: Any, kernel: Any, stream: Any) -> None:
    good(gpu, kernel, stream)
    good(gpu, kernel, stream)


KERNELS: dict[str, Region] = {
    "of a write": lambda gpu, kernel, stream: kernel.kind == "write",
    "of a copy": lambda gpu, kernel, stream: kernel.kind == "copy",
    "of an addition": lambda gpu, kernel, stream: kernel.kind == "add",
}

# graphs


def _no_replay(good: Any, graph: Any, stream: Any) -> None:
    del good, graph, stream


def _twice(good: Any, graph: Any, stream: Any) -> None:
    good(graph, stream)
    good(graph, stream)


@contextlib.contextmanager
def _with_nodes(graph: Any, nodes: list[Any]) -> Iterator[None]:
    kept, graph.nodes = graph.nodes, nodes
    try:
        yield
    finally:
        graph.nodes = kept


def _of_nodes(change: Callable[[list[Any]], list[Any]]) -> Change:
    def run(good: Any, graph: Any, stream: Any) -> None:
        with _with_nodes(graph, change(graph.nodes)):
            good(graph, stream)

    return run


def _without_last(nodes: list[Any]) -> list[Any]:
    return nodes[:-1]


def _without_first(nodes: list[Any]) -> list[Any]:
    return [(kernel, frozenset(each - 1 for each in before if each)) for kernel, before in nodes][
        1:
    ]


def _unordered(nodes: list[Any]) -> list[Any]:
    return [(kernel, frozenset()) for kernel, _ in nodes]


def _backwards(nodes: list[Any]) -> list[Any]:
    kernels = [kernel for kernel, _ in nodes][::-1]
    return [(kernel, frozenset(range(number))) for number, kernel in enumerate(kernels)]


def _begins_early(good: Any, graph: Any, stream: Any) -> None:
    kept, stream.free_at = stream.free_at, graph.gpu.now
    good(graph, stream)
    stream.free_at = max(kept, stream.free_at)


def _ends_early(good: Any, graph: Any, stream: Any) -> None:
    kept = stream.free_at
    good(graph, stream)
    stream.free_at = max(kept, graph.gpu.now)


def _on_default_stream(good: Any, graph: Any, stream: Any) -> None:
    del stream
    good(graph, graph.gpu.default_stream())


def _repeats_contents(good: Any, graph: Any, stream: Any) -> None:
    """Every replay leaves what the first one left."""
    if "left" not in vars(graph):
        good(graph, stream)
        graph.gpu.wait_until(stream.free_at)
        graph.left = dict(graph.gpu.memory)
        return
    for kernel, _ in graph.nodes:
        fixed = type(kernel)("write", kernel.target, value=graph.left[kernel.target])
        stream.free_at = graph.gpu.schedule(fixed, max(graph.gpu.now, stream.free_at))


REPLAYS = {
    "does not run": _no_replay,
    "runs twice": _twice,
    "leaves the last kernel out": _of_nodes(_without_last),
    "leaves the first kernel out": _of_nodes(_without_first),
    "loses its order": _of_nodes(_unordered),
    "runs backwards": _of_nodes(_backwards),
    "does not wait for its stream": _begins_early,
    "is not waited for by its stream": _ends_early,
    "runs on the default stream": _on_default_stream,
    "repeats what it left first": _repeats_contents,
}


def _runs_at_capture(good: Any, gpu: Any, graph: Any) -> None:
    good(gpu, graph)
    graph.run(gpu.current_stream())


def _stays_open(good: Any, gpu: Any, graph: Any) -> None:
    good(gpu, graph)
    gpu.default_stream().tail = frozenset()
    gpu.capturing = graph


def _forgets(good: Any, gpu: Any, graph: Any) -> None:
    good(gpu, graph)
    graph.nodes.clear()


CAPTURES = {
    "runs what it captures": _runs_at_capture,
    "does not end": _stays_open,
    "keeps nothing": _forgets,
}
OF_CAPTURES: dict[str, Region] = {
    "of four kernels or more": lambda gpu, graph: len(graph.nodes) > 3,
    "of kernels on two streams": lambda gpu, graph: any(
        len(before) < number for number, (_, before) in enumerate(graph.nodes)
    ),
}

# times


def _times(factor: float) -> Change:
    return lambda good, event, end: good(event, end) * factor


def _refuses_nothing(good: Any, event: Any, end: Any) -> float:
    try:
        return good(event, end)
    except ValueError:
        return 0.0


TIMES = {
    "has the wrong sign": _times(-1),
    "is in seconds": _times(1e-3),
    "is in microseconds": _times(1e3),
    "is in nanoseconds": _times(1e6),
    "is 0": _times(0.0),
    "is never an error": _refuses_nothing,
    "is a whole number": lambda good, event, end: int(good(event, end)),
    "is from the first record": lambda good, event, end: (
        good(event, end) + (event.at - event.moments[0]) * 1e3
    ),
}

TABLES: list[Table] = [
    (
        "device.synchronize",
        VirtualDevice,
        "synchronize",
        ANYWHERE,
        HOST | OTHERS,
        ("synchronize()", "waited for"),
    ),
    (
        "stream.synchronize",
        VirtualStream,
        "synchronize",
        ANYWHERE | OF_STREAMS,
        HOST | OTHERS,
        ("synchronize()", "waited for"),
    ),
    (
        "event.synchronize",
        VirtualEvent,
        "synchronize",
        ANYWHERE | OF_EVENTS,
        HOST | OTHERS | {"waits for the first record": _host_first},
        ("synchronize()", "waited for", "elapsed_time", "earlier record"),
    ),
    (
        "stream.wait_stream",
        VirtualStream,
        "wait_stream",
        ANYWHERE | OF_STREAMS,
        WAITS | {"is the wrong way round": _reversed},
        ("went on before", "order inside"),
    ),
    (
        "stream.wait_event",
        VirtualStream,
        "wait_event",
        ANYWHERE | OF_STREAMS | OF_EVENTS,
        WAITS | {"waits for the first record": _first_record},
        ("went on before", "order inside", "earlier record"),
    ),
    (
        "event.wait",
        VirtualEvent,
        "wait",
        ANYWHERE | OF_EVENTS,
        WAITS | {"waits for the first record": _first_record},
        ("went on before", "earlier record"),
    ),
    (
        "stream.query",
        VirtualStream,
        "query",
        ANYWHERE | OF_STREAMS,
        ASKED,
        ("said that", "has work left"),
    ),
    (
        "event.query",
        VirtualEvent,
        "query",
        ANYWHERE | OF_EVENTS,
        ASKED,
        ("said that", "has not happened"),
    ),
    ("event.record", VirtualEvent, "record", ANYWHERE | OF_EVENTS, RECORDS, ("event",)),
    (
        "block begins",
        VirtualDevice,
        "push",
        ANYWHERE,
        {
            "does nothing": _quiet,
            "makes the default stream current": _resets,
            "makes the newest stream current": _newest,
        },
        ("current stream", "ran on", "was the current one"),
    ),
    (
        "block ends",
        VirtualDevice,
        "pop",
        ANYWHERE,
        {"leaks its stream": _stays, "makes the default stream current": _resets},
        ("current stream", "ran on"),
    ),
    (
        "block ends by an error",
        VirtualDevice,
        "pop_after_error",
        ANYWHERE,
        {"leaks its stream": _stays, "makes the default stream current": _resets},
        ("current stream", "ran on"),
    ),
    (
        "set_stream",
        VirtualDevice,
        "set_stream",
        ANYWHERE,
        {
            "does nothing": _nothing,
            "makes the default stream current": _resets,
            "makes the newest stream current": _newest,
        },
        ("current stream", "ran on"),
    ),
    (
        "kernel",
        VirtualDevice,
        "enqueue",
        ANYWHERE | KERNELS | OF_STREAMS,
        {
            "does not keep the order of its stream": _early_kernel,
            "does not run": _lost_kernel,
            "runs on the default stream": _default_kernel,
            "runs twice": _twice_kernel,
        },
        (),
    ),
    (
        "replay",
        VirtualGraph,
        "run",
        ANYWHERE | OF_GRAPHS | OF_STREAMS,
        REPLAYS,
        ("graph",),
    ),
    (
        "capture",
        VirtualDevice,
        "end_capture",
        ANYWHERE | OF_CAPTURES,
        CAPTURES,
        ("graph", "captur"),
    ),
    (
        "elapsed_time",
        VirtualEvent,
        "elapsed_time",
        # an event without times has none that could be wrong
        ANYWHERE | {key: each for key, each in OF_EVENTS.items() if "without" not in key},
        TIMES,
        ("elapsed_time",),
    ),
]


def _equivalent(call: str, where: str, wrong: str, kernel_s: float) -> str:
    """Why nothing could distinguish that fault from right behaviour; empty if something could."""
    host = call.endswith(("synchronize", "query"))
    if host and kernel_s < 6e-6 and ("last kernel" in wrong or "one kernel early" in wrong):
        return "the kernel is over before the host's next call is"
    if "default stream" in wrong and where in (
        "of the default stream",
        "while the default stream is current",
    ):
        return "it is that stream"
    if wrong in ("runs backwards", "loses its order") and where == "of a graph with one kernel":
        return "one kernel has one order"
    if call == "kernel" and wrong == "runs twice" and where in ("of a write", "of a copy"):
        return "a write that is repeated in its place leaves the same"
    return ""


def _length_name(kernel_s: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if kernel_s >= size:
            return f"{kernel_s / size:g} {unit}"
    return f"{kernel_s * 1e6:g} us"


def faults() -> list[Fault]:
    """All of them, at every length of a kernel."""
    return [
        Fault(
            "ordering",
            f"{call}: {where}, kernels of {_length_name(kernel_s)}: {wrong}",
            partial(_applied, place, method, region, change),
            words,
            partial(VirtualDevice, kernel_s),
        )
        for call, place, method, regions, wrongs, words in TABLES
        for (where, region), (wrong, change), kernel_s in product(
            regions.items(), wrongs.items(), LENGTHS
        )
        if not _equivalent(call, where, wrong, kernel_s)
    ]


@contextlib.contextmanager
def _applied(place: Any, method: str, region: Region, change: Change) -> Iterator[None]:
    def faulty(good: Any, one: Any, *given: Any) -> Any:
        return change(good, one, *given) if region(one, *given) else good(one, *given)

    kept, AREA.kernels = AREA.kernels, VirtualKernels
    try:
        with replaced(place, method, faulty):
            yield
    finally:
        AREA.kernels = kept
