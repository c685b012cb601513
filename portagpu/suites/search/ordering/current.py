"""Which stream is current in each of two threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from portagpu.suites.search.area import has_contract
from portagpu.suites.search.ordering.model import stream_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.devices.contract import Backend

_T = TypeVar("_T")


class CurrentStreams:
    """The main thread and another one, each with its blocks; both begin on stream 0.

    A block that leaves the program open is closed at the end. ``functions`` has the calls of the
    main thread: the device's own, or the module's for the device that is current there.
    """

    def __init__(self, gpu: Backend, streams: dict[int, Any], functions: Any) -> None:
        self._gpu = gpu
        self._functions = functions
        self._main = threading.get_ident()
        self._streams = streams
        self._stacks: dict[bool, list[int]] = {False: [0], True: [0]}
        """By thread, True for the other one: the stream of each open block, the inner last."""
        self._blocks: dict[bool, list[Any]] = {False: [], True: []}
        self._restores: dict[bool, list[bool]] = {False: [], True: []}
        """Whether each open block restores a stream: one of None changes nothing, at its end too.

        torch.cuda.StreamContext in torch/cuda/__init__.py.
        """
        self._other: ThreadPoolExecutor | None = None
        self._base = ExitStack()

    def __enter__(self) -> CurrentStreams:
        if self._streams:
            self._base.enter_context(self._gpu.stream(self._streams[0]))
        return self

    def __exit__(self, *error: object) -> None:
        with self._base:
            for thread, blocks in self._blocks.items():
                while blocks:
                    self.run(thread, partial(blocks.pop().__exit__, None, None, None))
            if self._other is not None:
                self._other.shutdown()

    def run(self, thread: bool, do: Callable[[], _T]) -> _T:
        """What ``do`` gives in this thread, or in the other one; the other one has then ended."""
        if not thread:
            return do()
        self._other = self._other or ThreadPoolExecutor(1)
        return self._other.submit(do).result()

    @property
    def calls(self) -> Any:
        """What has the calls of the calling thread."""
        return self._functions if threading.get_ident() == self._main else self._gpu

    def _default(self) -> Any:
        return self.calls.default_stream()

    def number(self, thread: bool) -> int:
        """The stream that should be current."""
        return self._stacks[thread][-1]

    def enter(self, stream: int | None, thread: bool) -> str:
        """Begin a block; the difference, if another stream is current then."""
        one = None if stream is None else self._streams[stream]

        def begin() -> Any:
            block = self.calls.stream(one)
            block.__enter__()
            return block

        block = self.run(thread, begin)
        self._blocks[thread].append(block)
        self._restores[thread].append(stream is not None)
        self._stacks[thread].append(self.number(thread) if stream is None else stream)
        return self.wrong(thread, f"inside a block of {_shown(stream)}")

    def place(self, block: ExitStack, stream: int | None, number: int) -> str:
        """Begin a block of the calling thread for a moment, in which ``number`` is current."""
        if not self._streams:
            return ""
        if stream is None:
            return self._other_than(number, "after the calls so far")
        block.enter_context(self.calls.stream(self._streams[stream]))
        return self._other_than(stream, f"inside a block of {stream_name(stream)}")

    def leave(self, error: bool, thread: bool) -> str:
        """End the innermost block, by an error or without one."""
        if not self._blocks[thread]:
            return ""
        block = self._blocks[thread].pop()
        left = self._stacks[thread].pop()
        restores = self._restores[thread].pop()
        if not restores:
            self._stacks[thread][-1] = left
        raised = KeyError("on purpose")
        given = (KeyError, raised, None) if error else (None, None, None)
        if self.run(thread, lambda: block.__exit__(*given)):
            return "a block of a stream swallowed the error that was raised in it"
        how = "after an error in" if error else "after"
        shown = stream_name(left) if restores else _shown(None)
        return self.wrong(thread, f"{how} a block of {shown}")

    def set(self, stream: int | None, thread: bool) -> str:
        """Set the current stream, until the block ends."""
        one = None if stream is None else self._streams[stream]
        self.run(thread, lambda: self.calls.set_stream(one))
        if stream is not None:
            self._stacks[thread][-1] = stream
        return self.wrong(thread, f"after set_stream() of {_shown(stream)}")

    def wrong(self, thread: bool, when: str) -> str:
        """What is wrong with the current stream, and with the default one."""
        if not self._streams:
            return ""
        number = self.number(thread)
        found = self.run(thread, lambda: self._other_than(number, when))
        if found:
            return found
        if has_contract(self._gpu, 2):
            default = self.run(thread, self._default)
            if default != self._streams[0]:
                return f"{when} the default stream is another one"
        return ""

    def _other_than(self, number: int, when: str) -> str:
        """What is wrong if not that stream is current in the calling thread."""
        found = self.calls.current_stream()
        if found == self._streams[number]:
            return ""
        others = [each for each, one in self._streams.items() if one == found]
        shown = stream_name(others[0]) if others else "one that was not made here"
        here = "" if threading.get_ident() == self._main else " of another thread"
        return f"{when} the current stream{here} is {shown}, not {stream_name(number)}"


def _shown(stream: int | None) -> str:
    return "None" if stream is None else stream_name(stream)
