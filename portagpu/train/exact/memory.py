"""Bits that are kept and bits that are copied: memory is written, left while other work runs and
read again; copies go to the host and back, on the device, and through another device.

Patterns: all bits clear and set, alternating bits, the word's own address and its inverse (a stuck
address line), one bit that walks, random bits. What is wrong after the dwell and right at once is
memory that loses what it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.train.exact.draws import Draws
from portagpu.train.exact.judge import differences
from portagpu.train.exact.probe import Expected, Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.judge import Wrong
    from portagpu.train.exact.probe import Work


WORD_BYTES: Final = 8
_CHUNK: Final = 1 << 20
"""Words that are written or compared at once, or a ``_PARTS``-th of all where those are more: this
limits the extra memory, and the launches of kernels that much memory takes."""
_PARTS: Final = 256
_CONSTANTS: Final = {
    "zeros": 0,
    "ones": -1,
    "0x55": 0x5555555555555555,
    "0xaa": ~0x5555555555555555,
}
PATTERNS: Final = (*_CONSTANTS, "address", "inverse-address", "walking", "random")


class HeldMemory:
    """Memory of a device that holds one pattern after another.

    :param words: The memory: contiguous, int64, of shape (words,).
    :param synchronize: Waits until all work on the device is done.
    :param seed: Of the random pattern.
    """

    def __init__(self, words: torch.Tensor, synchronize: Callable[[], None], seed: int) -> None:
        self.words = words
        self._synchronize = synchronize
        self._draws = Draws(seed, words.device)

    def fill(self, pattern: str) -> None:
        """Write a pattern of ``PATTERNS`` to every word."""
        for start, chunk in self._chunks():
            chunk.copy_(self._expected(pattern, start, chunk.numel()))
        self._synchronize()

    def wrong(self, pattern: str) -> Wrong | None:
        """What does not hold the pattern: how many words, and which ones of the first part."""
        first, count = None, 0
        for start, chunk in self._chunks():
            found = differences(chunk, self._expected(pattern, start, chunk.numel()))
            if found is not None:
                count += found.count
                first = first or replace(found, places=found.places + start)
        return first and replace(first, count=count, shape=tuple(self.words.shape))

    def _chunks(self) -> Iterator[tuple[int, torch.Tensor]]:
        size = max(_CHUNK, -(-self.words.numel() // _PARTS))
        for start in range(0, self.words.numel(), size):
            yield start, self.words[start : start + size]

    def _expected(self, name: str, start: int, count: int) -> torch.Tensor:
        import torch

        device = self.words.device
        if name in _CONSTANTS:
            return torch.tensor(_CONSTANTS[name], device=device).expand(count)
        if name == "random":
            return self._draws.bits(f"memory {start}", (count,))
        numbers = torch.arange(start, start + count, device=device)
        if name == "walking":
            return torch.ones_like(numbers) << (numbers & 63)
        return numbers if name == "address" else ~numbers


_WORDS: Final = 1 << 17
"""1 MiB, times ``scale``."""
_LOAD_EDGE: Final = 512
_LOAD_PRODUCTS: Final = 4
"""Products of matrices of that edge, between the write and the read."""


@dataclass(frozen=True, slots=True)
class _Dwell:
    """A pattern that is written, left while products run, and read."""

    held: HeldMemory
    pattern: str
    load: torch.Tensor

    @property
    def results(self) -> int:
        """The number of words."""
        return self.held.words.numel()

    @property
    def inputs(self) -> int:
        """The same: each word is written."""
        return self.results

    def run(self) -> torch.Tensor:
        """Write the pattern and let products run; the memory itself is the result."""
        self.held.fill(self.pattern)
        for _ in range(_LOAD_PRODUCTS):
            self.load @ self.load
        return self.held.words

    def judge(self, result: torch.Tensor) -> Wrong | None:
        """The words that do not hold the pattern."""
        return self.held.wrong(self.pattern)


def _make_held(pattern: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    import torch

    words = torch.empty(_WORDS * scale, dtype=torch.int64, device=gpu.device)
    load = torch.ones((_LOAD_EDGE, _LOAD_EDGE), device=gpu.device)
    return _Dwell(HeldMemory(words, gpu.synchronize, draws.seed), pattern, load)


def _refuses_memory(gpu: Backend) -> str:
    return ""


MEMORY_PROBES: Final = tuple(
    Probe(f"memory/int64[{pattern}]", "int64", partial(_make_held, pattern), _refuses_memory)
    for pattern in PATTERNS
)


_COUNT: Final = 1 << 16


def _peer(gpu: Backend) -> torch.device | None:
    """The next device of the kind; None where there is no other."""
    import torch

    count = gpu.device_count()
    if count < 2 or gpu.device.index is None:
        return None
    return torch.device(gpu.device.type, (gpu.index + 1) % count)


def _make_copy(way: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    import torch

    bits = draws.bits("copied", (_COUNT * scale,))
    other = {"host": torch.device("cpu"), "device": gpu.device, "peer": _peer(gpu)}[way]

    def copied() -> torch.Tensor:
        # cleared before, so that an old copy cannot pass for a new one
        there = torch.zeros_like(bits, device=other)
        back = torch.zeros_like(bits)
        there.copy_(bits)
        return back.copy_(there)

    return Expected(copied, bits, bits.numel())


def _refuses_copy(way: str, gpu: Backend) -> str:
    if way == "peer" and _peer(gpu) is None:
        return f"the {gpu.name} backend has no second device here"
    return ""


COPY_PROBES: Final = tuple(
    Probe(f"copies/int64[{way}]", "int64", partial(_make_copy, way), partial(_refuses_copy, way))
    for way in ("host", "device", "peer")
)
