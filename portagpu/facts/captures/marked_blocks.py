"""Blocks that are marked for whichever profiler listens: torch's, the vendor's, or both.

It imports torch, so nothing imports it before a device is opened or a group exists.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import torch
from torch.autograd import profiler
from torch.profiler import record_function

from portagpu.facts.captures.labels import DOMAIN, argb, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from portagpu.facts.captures.labels import Color, Label


def torch_records() -> bool:
    """Whether torch's profiler records now; one of all threads is in no thread's own state."""
    return profiler._is_profiler_enabled


class RangeTool(Protocol):
    """What hands ranges to the vendor's profiler of this process."""

    def push(self, name: str, labels: Mapping[str, Label], domain: str, color: int | None) -> None:
        """Open a range on this thread; without a domain in the profiler's own."""

    def pop(self, domain: str) -> None:
        """Close the innermost range of that domain on this thread."""

    def mark(self, name: str) -> None:
        """Mark this moment, in the profiler's own domain."""


class Annotation(AbstractContextManager[None]):
    """One block. What listens is asked when it is entered; inside torch.compile nothing does."""

    __slots__ = ("_color", "_domain", "_labels", "_name", "_open", "_tool")

    def __init__(
        self,
        name: str,
        labels: Mapping[str, Label] | None = None,
        domain: str = DOMAIN,
        color: Color = None,
        tool: Callable[[], RangeTool | None] | None = None,
    ) -> None:
        self._name = name
        self._labels = labels or {}
        self._domain = domain
        self._color = color
        self._tool = tool
        self._open: list[tuple[RangeTool | None, record_function | None]] = []

    def __enter__(self) -> None:
        if torch.compiler.is_compiling():
            return
        tool = None if self._tool is None else self._tool()
        record = None
        if tool is not None:
            tool.push(self._name, self._labels, self._domain, argb(self._color))
        if torch_records():
            # torch has no domains: a name alone stays the one that key_averages() shows
            shown = "" if self._domain == DOMAIN else self._domain
            text = encode(self._name, self._labels, shown, ascii_only=True)
            record = record_function(text)
            record.__enter__()
        self._open.append((tool, record))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open:
            tool, record = self._open.pop()
            if record is not None:
                record.__exit__(kind, error, trace)
            if tool is not None:
                tool.pop(self._domain)
