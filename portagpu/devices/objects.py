"""Streams, events and graphs as types: for annotations, isinstance, and construction.

``portagpu.Event()`` returns an object of the current device, torch's own where torch has one. So
``isinstance`` checks the methods and not the class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Signature

    import torch

_makers: dict[type, Callable[..., Any]] = {}


class _OfDevice(type):
    """The class of a type whose instances the current device makes."""

    @property
    def __signature__(cls) -> Signature:
        if cls not in _makers:
            raise AttributeError("__signature__")
        from inspect import signature

        return signature(_makers[cls])

    def __subclasscheck__(cls, other: type) -> bool:
        if type.__subclasscheck__(cls, other):
            return True
        if cls not in _makers:
            return False
        names = [name for name in vars(cls) if not name.startswith("_")]
        if not names:  # it adds nothing by which it could be known
            return any(base.__name__ == cls.__name__ for base in other.__mro__)
        return all(hasattr(other, name) for name in names)

    def __instancecheck__(cls, one: object) -> bool:
        return cls.__subclasscheck__(type(one))

    if not TYPE_CHECKING:  # checkers are to see the arguments of __init__

        def __call__(cls, *arguments, **options):
            make = _makers.get(cls)
            return (type.__call__.__get__(cls) if make is None else make)(*arguments, **options)


def makes(kind: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the function that makes an instance where ``kind`` is called."""

    def keep(make: Callable[..., Any]) -> Callable[..., Any]:
        _makers[kind] = make
        return make

    return keep


class Event(metaclass=_OfDevice):
    """A point in a stream of the current device: a ``torch.cuda.Event`` on a GPU.

    It may be recorded again, and then stands for the last time; by one thread, and waited for by
    another.

    :param enable_timing: whether ``elapsed_time`` can be asked of it.
    :param blocking: whether a host thread that waits for it sleeps instead of polling.
    :param interprocess: whether another process can open it.
    :raises Unsupported: where the device has no events, or none that other processes can open.
    """

    __slots__ = ()

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Record the event in ``stream``, by default in the current one."""
        raise NotImplementedError

    def wait(self, stream: Any = None) -> None:
        """Order later work on ``stream``, by default the current one, after the event."""
        raise NotImplementedError

    def query(self) -> bool:
        """Whether all work that was recorded is done: True where none was."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait until the event has happened; not at all where it was never recorded."""
        raise NotImplementedError

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to ``end_event``, a float: negative where that was before.

        Raises ValueError or RuntimeError unless both were made with ``enable_timing=True`` and
        recorded.
        """
        raise NotImplementedError


class Stream(metaclass=_OfDevice):
    """An ordered queue of work of a device: a ``torch.cuda.Stream`` on a GPU.

    Two objects of one stream are equal. ``device`` is the stream's, and ``priority`` what it was
    made with.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        device: torch.device
        priority: int

        def __init__(self, device: Any = None, priority: int = 0) -> None: ...

    def synchronize(self) -> None:
        """Wait until the stream's work is done."""
        raise NotImplementedError

    def query(self) -> bool:
        """Whether all work on this stream is done."""
        raise NotImplementedError

    def wait_stream(self, stream: Any) -> None:
        """Order later work on this stream after all work on ``stream``."""
        raise NotImplementedError

    def wait_event(self, event: Any) -> None:
        """Order later work on this stream after ``event``."""
        raise NotImplementedError

    def record_event(self, event: Any = None) -> Any:
        """Record ``event``, or a new one, on this stream; returns the event itself."""
        raise NotImplementedError


class Graph(metaclass=_OfDevice):
    """Work that is captured once and replayed: a ``torch.cuda.CUDAGraph`` on a GPU.

    What is captured does not run before the first replay, and each replay runs it over what its
    tensors hold then.
    """

    __slots__ = ()

    def capture_begin(self, *arguments: Any, **options: Any) -> None:
        """Begin to capture the work of the current stream; ``portagpu.graph`` does it.

        :param arguments: as in ``torch.cuda.CUDAGraph.capture_begin``: first ``pool``.
        :param options: as there, such as ``capture_error_mode``.
        """
        raise NotImplementedError

    def capture_end(self) -> None:
        """End the capture."""
        raise NotImplementedError

    def replay(self) -> None:
        """Run what was captured."""
        raise NotImplementedError

    def reset(self) -> None:
        """Delete what was captured."""
        raise NotImplementedError

    def pool(self) -> Any:
        """The graph's pool of memory, for other graphs to share."""
        raise NotImplementedError


class ExternalStream(Stream):
    """A stream that another library made: a ``torch.cuda.ExternalStream`` on a GPU."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self, stream_ptr: int, device: Any = None) -> None: ...


class MemPool(metaclass=_OfDevice):
    """A pool of the allocator: a ``torch.cuda.MemPool`` on a GPU."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self, *arguments: Any, **options: Any) -> None: ...

    @property
    def id(self) -> tuple[int, int]:
        """What ``memory_snapshot`` and a graph's ``pool`` take."""
        raise NotImplementedError

    def use_count(self) -> int:
        """How often the pool is in use."""
        raise NotImplementedError

    def snapshot(self) -> Any:
        """What the allocator holds in this pool."""
        raise NotImplementedError
