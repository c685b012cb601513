"""Marks for profilers: blocks, moments and ranges; and the start and end of a recording."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, nullcontext, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from portagpu.base.errors import Unsupported
from portagpu.devices import registry
from portagpu.devices.registry import answer, backend
from portagpu.facts.captures.labels import DOMAIN, check, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from portagpu.facts.captures.labels import Color, Label

_F = TypeVar("_F", bound="Callable[..., Any]")
LAUNCHED: Final = "portagpu_launched"
"""What ``portagpu profile`` puts into ``sys.modules`` of the command's processes."""


class annotate:  # noqa: N801 - a function in every other respect
    """Mark the block, or the decorated function, as ``name`` for the profilers that listen.

    Torch's profiler shows it on every device. The vendor's profiler shows domain and color where it
    has such things: ``annotate("forward", step=3)``. The device is asked when the block is entered,
    so that decorating a function opens none; where nothing listens, nothing else happens. Inside
    ``torch.compile`` nothing is marked: the compiler fuses across the block.

    :param name: what profilers show.
    :param domain: a word of up to 64 letters, digits, ".", "-" and "_".
    :param color: 0xRRGGBB, "#rrggbb" or a common name; None leaves it to the profiler.
    :param labels: str, int, float or bool, shown with the name. Where a profiler listens, another
        value becomes its text.
    :raises ValueError: for another domain or color.
    """

    __slots__ = ("_color", "_domain", "_labels", "_open", "name")

    def __init__(
        self, name: str, *, domain: str = DOMAIN, color: Color = None, **labels: Label
    ) -> None:
        self.name: str = name
        self._labels = labels
        self._domain = domain
        self._color = color
        # what the blocks that were entered have opened, innermost last
        self._open: list[AbstractContextManager[Any] | None] | None = None
        if color is not None or domain is not DOMAIN:
            check(domain, color, {})

    def __call__(self, function: _F) -> _F:
        """The function, which marks each of its calls.

        :raises TypeError: for a function that returns before its body runs: a coroutine or a
            generator.
        """
        if callable(self.name):
            raise TypeError("annotate needs a name: @annotate('forward')")
        import inspect

        kinds = (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        )
        if any(is_such(function) for is_such in kinds):
            raise TypeError(
                f"{getattr(function, '__name__', 'it')} returns before its body runs: nothing of "
                "it would be marked: annotate blocks inside it, without await or yield in them"
            )

        @wraps(function)
        def annotated(*arguments: Any, **options: Any) -> Any:
            if not registry._current.listens():
                return function(*arguments, **options)
            with self._recreate_cm():
                return function(*arguments, **options)

        return cast("_F", annotated)

    def _recreate_cm(self) -> annotate:
        """One block of its own, since threads may be in several at once."""
        return annotate(self.name, domain=self._domain, color=self._color, **self._labels)

    def __enter__(self) -> None:
        if registry._current.listens():
            self._enter()
        elif self._open is not None:
            self._open.append(None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._open:
            block = self._open.pop()
            if block is not None:
                block.__exit__(kind, error, traceback)

    def _enter(self) -> None:
        handle = backend()
        import torch

        if torch.compiler.is_compiling():
            return
        name = str(self.name)
        if self._labels or self._color is not None or self._domain != DOMAIN:
            block = handle.labelled_block(name, plain(self._labels), self._domain, self._color)
        else:
            block = handle.annotate(name)
        block.__enter__()
        if self._open is None:
            self._open = []
        self._open.append(block)


_regions = 0
_regions_lock = threading.Lock()


@contextmanager
def region(name: str = "") -> Iterator[None]:
    """Have the vendor's profiler record inside the block, and mark the block as ``name``.

    For a profiler that was started to wait for it: a capture range of CUDA's profiler calls, the
    selected regions of ROCTx, or torch's under ``portagpu profile --region``. Of nested regions the
    outermost starts and stops. On a device whose vendor has no profiler the block is only marked.
    """
    global _regions
    # without a profiler that can be started, nothing waits for the start
    with _regions_lock:
        if _regions == 0:
            with suppress(Unsupported):
                profiler_start()
        _regions += 1
    try:
        with annotate(name) if name else nullcontext():
            yield
    finally:
        with _regions_lock:
            _regions -= 1
            if _regions == 0:
                with suppress(Unsupported):
                    profiler_stop()


def mark(msg: str) -> None:
    """Mark this moment for the profiler of the current device's vendor."""
    answer("mark", msg)


def range_push(msg: str) -> int:
    """Open a profiler range; returns its depth, from 0."""
    found: int = answer("range_push", msg)
    return found


def range_pop() -> int:
    """Close the innermost profiler range of this thread; returns its depth.

    Raises IndexError when none is open.
    """
    found: int = answer("range_pop")
    return found


def profiler_start() -> None:
    """Have the profiler that is attached to this process begin to record.

    It is the vendor's, or torch's under ``portagpu profile``.
    """
    if (launched := sys.modules.get(LAUNCHED)) is not None:
        launched.open_region()
    backend().profiler_start()


def profiler_stop() -> None:
    """Have the profiler that is attached to this process stop recording."""
    backend().profiler_stop()
    if (launched := sys.modules.get(LAUNCHED)) is not None:
        launched.close_region()
