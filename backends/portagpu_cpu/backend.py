"""The CPU as a backend: every primitive works, or raises Unsupported. On its streams and events
every call of torch has finished when it returns.

:class:`CpuIndex` is the index of a CPU device in a form that torch accepts as a device.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from portagpu.base.errors import Unsupported
from portagpu.devices.contract import Backend
from portagpu.devices.objects import Event, Stream
from portagpu.devices.training import run_by_the_compiler
from portagpu.facts.captures.labels import DOMAIN, check
from portagpu.facts.captures.marked_blocks import Annotation, torch_records
from portagpu_cpu import identity, memory
from portagpu_cpu.strided import make_contiguous

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from portagpu.devices.contract import Plugin
    from portagpu.facts.captures.labels import Color, Label


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


class CpuBackend(Backend):
    """This machine's CPU.

    How it differs from a GPU, all in one place:

    - Any index opens the same device, which all ranks share. ``device_count()`` is 1, or as many as
      ``portagpu.base.environment.shared_count`` says; this many ranks have each an index of their
      own.
    - ``current_device()`` is a ``CpuIndex``: a number that torch also takes for a device.
    - Work is done when a call returns: ``synchronize`` has nothing to wait for, and streams order
      work that is already done. Streams and events are this package's own.
    - ``Event`` takes the time on the monotonic clock.
    - ``memory_*`` is the resident memory of the process: PyTorch does not account for CPU tensors.
      ``mem_get_info`` is what the machine, or the container if that is less, leaves free.
    - ``get_device_properties`` is a ``CpuProperties``.
    - The generator is the one that also draws on the host: seeding the device seeds a DataLoader's
      shuffling, which on a GPU it does not.
    - ``Graph`` and ``pin`` raise ``Unsupported``.
    - Collectives of CPU tensors that are not contiguous are done on copies, for all groups of the
      process: Gloo itself does not look at strides, and NCCL and RCCL refuse them.
    - ``GradScaler`` and ``autocast`` are torch's for the CPU, whose default dtype is bfloat16.
    """

    __slots__ = ("_current", "_default_stream", "_properties")

    def __init__(self, plugin: Plugin, index: int) -> None:
        description, self._properties = identity.describe(index)
        super().__init__(plugin, description)
        self._default_stream = CpuStream(self.device)
        self._current = CurrentStream(self._default_stream)
        make_contiguous()

    def current_device(self) -> int:
        """The index of this device, which torch takes as ``device`` too; see ``CpuIndex``.

        Inside ``torch.compile`` it is the plain text "cpu", for which torch 2.11 can write code.
        """
        if torch.compiler.is_compiling():
            return cast("int", self.device.type)
        return cast("int", cpu_index(self.index))

    def activate(self) -> None:
        """torch's calls without a device already use the CPU."""
        torch.cpu.set_device(self.device)

    def get_device_properties(self) -> identity.CpuProperties:
        """The CPU's model, cores, vector and matrix units, and memory."""
        return self._properties

    def synchronize(self) -> None:
        """Work on a CPU is done when its call returns."""
        torch.cpu.synchronize()

    def mem_get_info(self) -> tuple[int, int]:
        """(free, total) bytes that this process may use."""
        return memory.free_and_total()

    def memory_stats(self) -> Mapping[str, int]:
        """The process's resident memory in bytes, as allocated and as reserved."""
        current, peak = memory.resident()
        return {
            "allocated_bytes.all.current": current,
            "allocated_bytes.all.peak": peak,
            "reserved_bytes.all.current": current,
            "reserved_bytes.all.peak": peak,
        }

    def reset_peak_memory_stats(self) -> None:
        """Reset the kernel's record of the process's peak resident memory."""
        memory.reset_peak()

    def empty_cache(self) -> None:
        """Give freed memory that the C library still holds back to the kernel."""
        memory.trim()

    def generator(self) -> torch.Generator:
        """torch's default CPU generator."""
        return torch.default_generator

    def Stream(self, priority: int = 0) -> CpuStream:  # noqa: N802 - torch's name
        """A new stream; all have the same real priority."""
        return CpuStream(self.device, priority)

    def current_stream(self) -> CpuStream:
        """The calling thread's current stream."""
        return self._current.stream[-1]

    def stream(self, stream: CpuStream | None) -> AbstractContextManager[Any]:
        """Make ``stream`` the calling thread's current one inside the block."""
        return nullcontext() if stream is None else StreamBlock(self._current, stream)

    def set_stream(self, stream: CpuStream | None) -> None:
        """Make ``stream`` the calling thread's current one."""
        if stream is not None:
            self._current.stream[-1] = stream

    def default_stream(self) -> CpuStream:
        """The stream that every thread starts on."""
        return self._default_stream

    def Event(  # noqa: N802 - torch's name
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> CpuEvent:
        """A new event on the monotonic clock; ``blocking`` makes no difference on a CPU."""
        del blocking
        return CpuEvent(enable_timing, interprocess)

    def annotate(self, name: str) -> Annotation:
        """``torch.profiler.record_function`` while torch's profiler records; else nothing."""
        return Annotation(name)

    def labelled_block(
        self, name: str, labels: Mapping[str, Label], domain: str = DOMAIN, color: Color = None
    ) -> Annotation:
        """As :meth:`annotate`, with labels and domain in the name."""
        check(domain, color, labels)
        return Annotation(name, labels, domain, color)

    @run_by_the_compiler
    def listens(self) -> bool:
        return torch_records()

    def can_device_access_peer(self, peer_device: int) -> bool:
        """True: whatever index it has, it is the memory of the same CPU."""
        del peer_device
        return True

    def ipc_collect(self) -> None:
        """Memory that processes share is freed when the last of them lets it go."""

    def profiler_start(self) -> None:
        """No profiler waits for it, as on a GPU that none is attached to."""

    def profiler_stop(self) -> None:
        """No profiler waits for it, as on a GPU that none is attached to."""

    def cudart(self) -> CpuRuntime:
        """The calls that start and stop a profiler, of which none is attached."""
        return CpuRuntime()


class CpuRuntime:
    """What scripts call of ``torch.cuda.cudart()``; each returns 0, CUDA's number for success."""

    __slots__ = ()

    def cudaProfilerStart(self) -> int:  # noqa: N802 - CUDA's name
        """No profiler waits for it."""
        return 0

    def cudaProfilerStop(self) -> int:  # noqa: N802 - CUDA's name
        """No profiler waits for it."""
        return 0
