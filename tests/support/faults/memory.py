"""Faults of memory counters: what is read, when, and which way wrong; and tensors that leak."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from portagpu_cpu.backend import CpuBackend
from tests.support.faults import Fault, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20
KEYS = tuple(
    f"{kind}_bytes.all.{what}" for kind in ("allocated", "reserved") for what in ("current", "peak")
)
MAIN = threading.main_thread()


class State:
    """What a fault remembers between calls."""

    def __init__(self) -> None:
        self.first: Any = None
        self.last: Any = None
        self.calls = 0
        self.resets = 0


def _stale(state: State, value: int) -> int:
    """The value of the call before."""
    state.last, found = value, state.last
    return value if found is None else found


def _frozen(state: State, value: int) -> int:
    state.first = value if state.first is None else state.first
    return int(state.first)


def _half_of_the_rise(state: State, value: int) -> int:
    first = _frozen(state, value)
    return first + (value - first) // 2


def _never_falls(state: State, value: int) -> int:
    state.last = max(state.last or 0, value)
    return int(state.last)


VALUES: dict[str, Callable[[State, int], Any]] = {
    "is 0": lambda state, value: 0,
    "is in KiB": lambda state, value: value >> 10,
    "is in MiB": lambda state, value: value >> 20,
    "is in thousands of 1000": lambda state, value: value // 1000 * 1024,
    "is twice as much": lambda state, value: 2 * value,
    "is half": lambda state, value: value // 2,
    "is negative": lambda state, value: -value,
    "is a float": lambda state, value: float(value),
    "is a text": lambda state, value: str(value),
    "is of the call before": _stale,
    "is of the first call": _frozen,
    "counts half": _half_of_the_rise,
    "never falls": _never_falls,
    "has 256 MiB more": lambda state, value: value + 256 * MIB,
    "has 64 MiB less": lambda state, value: value - 64 * MIB,
    "wraps at 256 MiB": lambda state, value: value % (256 * MIB),
    "is rounded up to 128 MiB": lambda state, value: -(-value // (128 * MIB)) * 128 * MIB,
}
WHEN: dict[str, Callable[[State], bool]] = {
    "always": lambda state: True,
    "from the fourth call on": lambda state: state.calls > 3,
    "at every second call": lambda state: state.calls % 2 == 0,
    "in another thread": lambda state: threading.current_thread() is not MAIN,
    "in the main thread": lambda state: threading.current_thread() is MAIN,
}
METHODS = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


@contextlib.contextmanager
def _of_key(key: str, when: Any, wrong: Any) -> Iterator[None]:
    state = State()

    def stats(good: Any, gpu: Any) -> Any:
        found = dict(good(gpu))
        state.calls += 1
        value = wrong(state, found[key])
        if when(state):
            found[key] = value
        return found

    with replaced(CpuBackend, "memory_stats", stats):
        yield


@contextlib.contextmanager
def _of_method(name: str, when: Any, wrong: Any) -> Iterator[None]:
    state = State()

    def method(good: Any, gpu: Any) -> Any:
        found = good(gpu)
        state.calls += 1
        value = wrong(state, found)
        return value if when(state) else found

    original = vars(CpuBackend).get(name)
    with replaced(CpuBackend, name, method):
        yield
    if original is None:
        delattr(CpuBackend, name)


@contextlib.contextmanager
def _of_info(part: int, when: Any, wrong: Any) -> Iterator[None]:
    state = State()

    def info(good: Any, gpu: Any) -> Any:
        found = list(good(gpu))
        state.calls += 1
        value = wrong(state, found[part])
        if when(state):
            found[part] = value
        return tuple(found)

    with replaced(CpuBackend, "mem_get_info", info):
        yield


@contextlib.contextmanager
def _no_op(name: str, when: Any) -> Iterator[None]:
    state = State()

    def method(good: Any, gpu: Any) -> None:
        state.calls += 1
        if not when(state):
            good(gpu)

    with replaced(CpuBackend, name, method):
        yield


LEAKS = {
    "clone": (torch.Tensor, "clone"),
    "sin": (torch.Tensor, "sin"),
    "fill_": (torch.Tensor, "fill_"),
    "ones": (torch, "ones"),
    "full": (torch, "full"),
    "zeros": (torch, "zeros"),
    "resize_": (torch.Tensor, "resize_"),
    "detach": (torch.Tensor, "detach"),
}
SIZES: dict[str, Callable[[torch.Tensor], bool]] = {
    "always": lambda found: True,
    "of more than 24 MiB": lambda found: found.numel() * found.element_size() > 24 * MIB,
    "of whole numbers": lambda found: not found.is_floating_point(),
    "of float32": lambda found: found.dtype == torch.float32,
}


MAX_HELD = 32
"""So that a leak does not take the machine's memory."""


def _kept(held: list[Any], found: torch.Tensor) -> torch.Tensor:
    """The result stays alive, up to some of them."""
    if len(held) < MAX_HELD:
        held.append(found)
    return found


def _copied(held: list[Any], found: torch.Tensor) -> torch.Tensor:
    """Memory of the same size is taken and kept."""
    if len(held) < MAX_HELD:
        held.append(torch.empty_strided((found.numel(),), (1,), dtype=found.dtype))
        held[-1].zero_()
    return found


HOLDS = {"keeps its result alive": _kept, "leaks as much memory": _copied}


@contextlib.contextmanager
def _leak(place: Any, name: str, where: Any, hold: Any) -> Iterator[None]:
    held: list[Any] = []

    def leaking(good: Any, *given: Any, **named: Any) -> Any:
        found = good(*given, **named)
        return hold(held, found) if where(found) and found.numel() > MIB else found

    with replaced(place, name, leaking):
        yield


def faults() -> list[Fault]:
    """All of them."""
    found = [
        Fault("memory", f"memory_stats of {key}: {when}: {wrong}", partial(_of_key, key, at, do))
        for key, (when, at), (wrong, do) in product(KEYS, WHEN.items(), VALUES.items())
        if not _equivalent(key, when, wrong)
    ]
    found += [
        Fault("memory", f"{name}: {when}: {wrong}", partial(_of_method, name, at, do))
        for name, (when, at), (wrong, do) in product(METHODS, WHEN.items(), VALUES.items())
        if not _equivalent(name, when, wrong)
    ]
    found += [
        Fault("memory", f"mem_get_info, {part}: {when}: {wrong}", partial(_of_info, n, at, do))
        for (n, part), (when, at), (wrong, do) in product(
            enumerate(("free", "total")), WHEN.items(), VALUES.items()
        )
        if when != "in another thread" and not _loose(part, wrong)
    ]
    found += [
        Fault("memory", f"{name}: {when}: does nothing", partial(_no_op, name, at))
        for name, (when, at) in product(("reset_peak_memory_stats",), WHEN.items())
        if when != "in another thread"
    ]
    found += [
        Fault("memory", f"{name}: {where}: {what}", partial(_leak, place, name, is_there, hold))
        for (name, (place, _)), (where, is_there), (what, hold) in product(
            LEAKS.items(), SIZES.items(), HOLDS.items()
        )
        if not (name in ("ones", "zeros", "full", "sin") and what == "leaks as much memory")
        and not (name == "sin" and where == "of whole numbers")
        # what stays alive is the tensor that the program holds, or shares its storage
        and not (name in ("fill_", "resize_", "detach") and what == "keeps its result alive")
    ]
    return found


def _equivalent(name: str, when: str, wrong: str) -> bool:
    """Whether the contract lets it pass.

    A peak never falls of itself, two calls of a peak differ seldom, reserved memory may be any
    amount above what is allocated, and the statistics are read in the main thread alone.
    """
    more = ("is twice as much", "has 256 MiB more", "is rounded up to 128 MiB", "never falls")
    loose = ("is of the call before", "counts half", "wraps at 256 MiB", "is in thousands of 1000")
    peak = "peak" in name or "max_" in name
    return (
        ("bytes" in name and when == "in another thread")
        or ("bytes" in name and "reserved" in name and wrong in more)
        or (peak and wrong in (*more, *loose))
        or wrong in ("is of the call before", "wraps at 256 MiB", "is in thousands of 1000")
    )


def _loose(part: str, wrong: str) -> bool:
    """Whether it stays inside what is said of mem_get_info: free is whatever the kernel sees."""
    exact = ("is negative", "is a float", "is a text")
    if part == "free":
        return wrong not in exact
    return wrong in (
        *("is of the call before", "is of the first call", "counts half", "never falls"),
        *("has 256 MiB more", "has 64 MiB less", "is rounded up to 128 MiB"),
    )
