"""Streams and events of a CPU, on which every call of torch has finished when it returns.

:class:`CpuIndex` is the index of a CPU device in a form that torch accepts as a device.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import Unsupported
from portagpu.devices.objects import Event, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


_OPERATIONS: Final = (
    *("lt", "le", "gt", "ge", "eq", "ne", "hash", "bool", "int", "index", "float"),
    *("neg", "pos", "abs", "invert", "add", "radd", "sub", "rsub", "mul", "rmul", "mod", "rmod"),
    *("floordiv", "rfloordiv", "truediv", "rtruediv", "divmod", "rdivmod", "pow", "rpow"),
    *("and", "rand", "or", "ror", "xor", "rxor", "lshift", "rlshift", "rshift", "rrshift"),
    "format",
)


class CpuIndex(str):
    """An index of a CPU device: it counts, compares and formats as that number.

    Scripts write ``torch.zeros(2, device=torch.cuda.current_device())``. torch takes a number, and
    every subclass of int, for the index of an accelerator, and refuses it where there is none. What
    ``torch.cpu.current_device()`` answers is the text "cpu"; this is that text for torch and a
    number for everything else, equal to its number and to "cpu", which ``torch.load`` asks. It is
    no instance of int: where one is demanded, as by ``torch.tensor`` and ``json``, write
    ``int(index)``, or ``Backend.index``.
    """

    __slots__ = ("_index",)

    _index: int

    def __new__(cls, index: int) -> CpuIndex:
        made = super().__new__(cls, "cpu")
        made._index = index
        return made

    def __getnewargs__(self) -> tuple[int]:  # type: ignore[override]
        return (self._index,)


def _int_operation(name: str) -> Callable[..., Any]:
    operation: Callable[..., Any] = getattr(int, name)

    def method(self: CpuIndex, *others: Any) -> Any:
        plain = (each._index if type(each) is CpuIndex else each for each in others)
        return operation(self._index, *plain)

    method.__name__ = name
    return method


for _name in _OPERATIONS:
    setattr(CpuIndex, f"__{_name}__", _int_operation(f"__{_name}__"))


_indices: Final[dict[int, CpuIndex]] = {}


def cpu_index(index: int) -> CpuIndex:
    """The CpuIndex of that number, always the same object."""
    try:
        return _indices[index]
    except KeyError:
        return _indices.setdefault(index, CpuIndex(index))


class CpuEvent(Event):
    """A point in time on the monotonic clock, with the methods of ``torch.cuda.Event``.

    Work on a CPU is done when its call returns, so a recorded event has always happened.
    """

    __slots__ = ("_recorded_ns", "_timing")

    def __init__(self, enable_timing: bool = False, interprocess: bool = False) -> None:
        if interprocess:
            raise Unsupported("the cpu backend does not share events between processes")
        self._timing = enable_timing
        self._recorded_ns: int | None = None

    def record(self, stream: CpuStream | None = None) -> None:
        """Take the time."""
        del stream
        self._recorded_ns = time.perf_counter_ns()

    def wait(self, stream: CpuStream | None = None) -> None:
        """Make a stream wait for this event, which has happened."""

    def query(self) -> bool:
        """True: whatever was recorded, and an event that never was, is done (as on CUDA)."""
        return True

    def synchronize(self) -> None:
        """Return when the event has happened: at once."""

    def elapsed_time(self, end_event: CpuEvent) -> float:
        """Milliseconds from this event to ``end_event``.

        Raises ValueError, as torch does (c10/cuda/CUDAEvent.h), unless both were recorded with
        ``enable_timing=True``.
        """
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded_ns is None or end_event._recorded_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._recorded_ns - self._recorded_ns) / 1e6

    def __repr__(self) -> str:
        state = "not recorded" if self._recorded_ns is None else f"at {self._recorded_ns} ns"
        return f"<cpu event, {state}>"


class CpuStream(Stream):
    """A queue of work on a CPU: in order, and empty again when a call returns."""

    __slots__ = ("device", "priority")

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self.device = device
        self.priority = priority

    def synchronize(self) -> None:
        """Return when the stream's work is done: it is."""

    def query(self) -> bool:
        """True: all work on this stream is done."""
        return True

    def wait_stream(self, stream: CpuStream) -> None:
        """Order later work on this stream after all work on ``stream``, which is done."""

    def wait_event(self, event: CpuEvent) -> None:
        """Order later work on this stream after ``event``, which has happened."""

    def record_event(self, event: CpuEvent | None = None) -> CpuEvent:
        """Record ``event``, or a new one, on this stream and return it."""
        event = CpuEvent() if event is None else event
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"<cpu stream, priority {self.priority}>"


class CurrentStream(threading.local):
    """Each thread's current stream, the innermost last."""

    def __init__(self, stream: CpuStream) -> None:
        self.stream: Final = [stream]


class StreamBlock:
    """A block in which a stream is its thread's current one."""

    __slots__ = ("_current", "_stream")

    def __init__(self, current: CurrentStream, stream: CpuStream) -> None:
        self._current = current
        self._stream = stream

    def __enter__(self) -> None:
        self._current.stream.append(self._stream)

    def __exit__(self, *error: object) -> None:
        self._current.stream.pop()
