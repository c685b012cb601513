"""The area ``memory``: programs of tensors, and the counters after each of their calls.

A program holds at most MOST_LIVE bytes. Every tensor is written, because untouched pages are not
resident on a CPU, and is read again at the end: what ``empty_cache`` frees is nobody's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.contract import Capability
from portagpu.search.area import Area
from portagpu.search.memory.model import MIB, SLACK, Model
from portagpu.search.programs import methods

if TYPE_CHECKING:
    import torch
    from hypothesis.strategies import SearchStrategy

    from portagpu.contract import Backend
    from portagpu.search.programs import Program, Runners
    from portagpu.world import Rank

SLOTS: Final = ("x", "y", "z")
SIZES: Final = (20 * MIB, 24 * MIB + 8, 40 * MIB, 28 * MIB - 8)
DTYPES: Final = ("uint8", "float32", "float16", "int64", "complex64", "bool")
MAKERS: Final = ("full", "ones", "empty", "zeros")
VIEWS: Final = ("detach", "slice", "reshape", "expand", "transpose")
MOST_LIVE: Final = 144 * MIB
KEYS: Final = tuple(
    f"{kind}_bytes.all.{what}" for kind in ("allocated", "reserved") for what in ("current", "peak")
)


FIRST: Final[Program] = [
    ("make", {"slot": "x", "size": 20 * MIB, "dtype": "float32", "maker": "full"}),
    ("clone", {"slot": "y", "source": "x"}),
    ("view", {"slot": "z", "source": "x", "view": "slice"}),
    ("grow", {"slot": "y"}),
    ("write", {"slot": "x"}),
    ("temporary", {"slot": "x", "error": True}),
    ("graph", {"slot": "y", "size": 20 * MIB, "links": 2}),
    ("backward", {"slot": "y"}),
    ("read", {"thread": True}),
    ("info", {}),
    ("release", {}),
]
"""Every call once."""


class _Memory(Area):
    name = "memory"

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        from portagpu.search.strategies import call, programs

        flag = (False, True)
        make = call("make", slot=SLOTS, size=SIZES, dtype=DTYPES, maker=MAKERS)
        release = call("release")
        read = call("read", thread=flag)
        calls = [
            *(make, make, release, read, read),
            call("clone", slot=SLOTS, source=SLOTS),
            call("view", slot=SLOTS, source=SLOTS, view=VIEWS),
            call("free", slot=SLOTS),
            call("free", slot=SLOTS),
            call("write", slot=SLOTS),
            call("grow", slot=SLOTS),
            call("temporary", slot=SLOTS, error=flag),
            call("graph", slot=SLOTS, size=SIZES[:2], links=(1, 2)),
            call("backward", slot=SLOTS),
            call("info"),
        ]
        if gpu.supports(Capability.PEAK_MEMORY):
            calls += [call("reset"), call("reset")]
        return programs(*calls, most=8)

    def __init__(self) -> None:
        self._process = 0
        """The process in which each call has run once."""

    def calls(self) -> Runners:
        return methods(_Run)

    def difference(self, rank: Rank, program: Program) -> str:
        if self._process != os.getpid():
            self._process = os.getpid()
            # what torch loads and keeps at its first calls is no tensor's
            self._one(rank, FIRST)
        return self._one(rank, program)

    def _one(self, rank: Rank, program: Program) -> str:
        run = _Run(rank.gpu)
        try:
            return run.all(program)
        finally:
            run.tensors.clear()
            run.leaves.clear()
            run.release_memory()


@dataclass(slots=True)
class _Run:
    """One program on the device, beside the model."""

    gpu: Backend
    model: Model = field(default_factory=Model)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    leaves: dict[str, torch.Tensor] = field(default_factory=dict)
    """By slot that holds a graph's result: the leaf that gets a gradient."""
    numbers: dict[str, int] = field(default_factory=dict)
    """What every element of a slot's tensor is."""
    count: int = 1

    def all(self, program: Program) -> str:
        """The first difference."""
        self.release_memory()
        peaks = self.gpu.supports(Capability.PEAK_MEMORY)
        if peaks:
            self.gpu.reset_peak_memory_stats()
        started = self.gpu.memory_allocated()
        self.model.start(started)
        self.model.reset()
        reserved = self.gpu.memory_reserved()
        for name, given in program:
            found: str | None = getattr(self, f"_{name}")(**given)
            found = found or self._counters(f"after {name}", peaks)
            if found:
                return found
        for slot in SLOTS:
            found = self._contents(slot)
            if found:
                return found
            self._free(slot)
        found = self._release() or self._counters("after all", peaks)
        if found:
            return found
        left = max(self.gpu.memory_allocated() - started, self.gpu.memory_reserved() - reserved)
        if left > SLACK:
            return f"{left / MIB:.1f} MiB are still counted when all tensors are gone"
        return ""

    def release_memory(self) -> None:
        """Give back all that no tensor holds; no tensor here is part of a cycle."""
        self.gpu.synchronize()
        self.gpu.empty_cache()

    def _counters(self, when: str, peaks: bool) -> str:
        """What is wrong with the counters, which agree with each other and with the model."""
        self.gpu.synchronize()
        stats = self.gpu.memory_stats()
        for key in KEYS:
            if type(stats.get(key)) is not int:
                return f"{key} is {stats.get(key)!r}, which is no whole number"
        allocated, peak, reserved, reserved_peak = (stats[key] for key in KEYS)
        if not peak >= allocated >= 0 or not reserved_peak >= reserved >= allocated:
            shown = ", ".join(f"{key} {stats[key]}" for key in KEYS)
            return f"{when} a peak is below its current value, or reserved below allocated: {shown}"
        found = self.model.current().wrong(f"{when} allocated_bytes.all.current", allocated)
        if not found and peaks:
            found = self.model.highest.wrong(f"{when} allocated_bytes.all.peak", peak)
        return found

    # tensors

    def _fill(self, size: int, dtype: str, maker: str) -> torch.Tensor:
        import torch

        self.count = self.count % 100 + 1
        value = 1 if maker == "ones" or dtype == "bool" else self.count
        kind = getattr(torch, dtype)
        shape = (size // kind.itemsize,)
        place = {"dtype": kind, "device": self.gpu.device}
        if maker == "full":
            return torch.full(shape, value, **place)
        if maker == "ones":
            return torch.ones(shape, **place)
        return (torch.empty if maker == "empty" else torch.zeros)(shape, **place).fill_(value)

    def _room(self, size: int) -> bool:
        return self.model.live + size <= MOST_LIVE

    def _put(self, slot: str, tensor: torch.Tensor) -> None:
        self.leaves.pop(slot, None)
        self.tensors[slot] = tensor

    def _make(self, slot: str, size: int, dtype: str, maker: str) -> None:
        if not self._room(size):
            return
        self._put(slot, self._fill(size, dtype, maker))
        self.numbers[slot] = 1 if maker == "ones" or dtype == "bool" else self.count
        self.model.made(slot, [size])

    def _clone(self, slot: str, source: str) -> None:
        if source not in self.tensors:
            return
        tensor = self.tensors[source].detach()
        # where elements share memory a clone has as few of them again
        size = tensor.numel() * tensor.element_size()
        if not size or not self._room(size):
            return
        self._put(slot, tensor.contiguous().clone() if tensor.numel() else tensor.clone())
        self.numbers[slot] = self.numbers[source]
        self.model.also(size, 2 * size)
        self.model.garbage += 0 if tensor.is_contiguous() else size
        self.model.changed += not tensor.is_contiguous()
        self.model.made(slot, [size])

    def _view(self, slot: str, source: str, view: str) -> None:
        if source not in self.tensors or source in self.leaves:
            return
        whole = self.tensors[source]
        flat = whole if whole.is_contiguous() else whole[:0]
        if view == "slice":
            seen = whole[: whole.shape[0] // 2]
        elif view == "expand":
            seen = whole[:1].expand(3, *whole.shape[1:]) if whole.dim() == 1 else whole.detach()
        elif view == "reshape" and flat.numel():
            seen = flat.reshape(-1)
        elif view == "transpose":
            seen = whole.unsqueeze(0).transpose(0, 1)
        else:
            seen = whole.detach()
        self.numbers[slot] = self.numbers[source]
        self._put(slot, seen)
        self.model.keep(slot, self.model.slots[source])

    def _free(self, slot: str) -> None:
        self.leaves.pop(slot, None)
        self.tensors.pop(slot, None)
        self.model.keep(slot, None)

    def _write(self, slot: str) -> None:
        """In place: nothing is allocated, and every view sees it."""
        if slot not in self.tensors or slot in self.leaves:
            return
        tensor = self.tensors[slot]
        tensor.detach()[:1].fill_(self.numbers[slot])

    def _grow(self, slot: str) -> None:
        """Half as many elements again, in place, for a tensor whose storage nobody shares."""
        if slot not in self.tensors or slot in self.leaves:
            return
        tensor, storages = self.tensors[slot], self.model.slots[slot]
        old = self.model.live
        shared = any(storages & each for name, each in self.model.slots.items() if name != slot)
        size = sum(self.model.sizes[each] for each in storages)
        owned = tensor.is_contiguous() and tensor.numel() * tensor.element_size() == size
        if shared or not owned or old + 2 * size > MOST_LIVE:
            return
        more = (tensor.numel() * 3 // 2) * tensor.element_size()
        tensor.resize_(tensor.numel() * 3 // 2).fill_(self.numbers[slot])
        # whether the old memory lived until all of the new one was written is not said
        self.model.also(0, more)
        self.model.keep(slot, None)
        self.model.made(slot, [more])

    def _temporary(self, slot: str, error: bool) -> None:
        """Work that needs memory only while it runs, and may end by an error."""
        if slot not in self.tensors:
            return
        tensor = self.tensors[slot].detach()
        size = tensor.numel() * tensor.element_size()
        if not self._room(2 * size):
            return

        def work() -> None:
            held = tensor.clone()
            self.gpu.synchronize()
            if error:
                raise KeyError("on purpose")
            held.fill_(0)

        with contextlib.suppress(KeyError):
            work()
        # an expanded tensor's clone may keep its elements shared
        self.model.temporary(size if tensor.is_contiguous() else 0, size)

    def _graph(self, slot: str, size: int, links: int) -> None:
        """A result whose graph holds what backward will need: each sine its input."""
        if not self._room((links + 2) * size):
            return
        leaf = self._fill(size, "float32", "full").mul_(0).requires_grad_()
        result = leaf
        for _ in range(links):
            result = result.sin()
        self._put(slot, result)
        self.leaves[slot] = leaf
        self.numbers[slot] = 0
        self.model.made(slot, [size] * (links + 1))

    def _backward(self, slot: str) -> None:
        """The graph lets go of what it held; the leaf has a gradient then."""
        if slot not in self.leaves or self.leaves[slot].grad is not None:
            return
        result = self.tensors[slot]
        size = result.numel() * result.element_size()
        if not result.requires_grad or not self._room(3 * size):
            return
        result.sum().backward()
        storages = sorted(self.model.slots[slot])
        self.model.temporary(0, 3 * size)
        self.model.made(slot, [size], kept=frozenset((storages[0], storages[-1])))

    def _contents(self, slot: str) -> str:
        """A tensor that lives holds what was written into it."""
        if slot not in self.tensors:
            return ""
        tensor, number = self.tensors[slot].detach(), self.numbers[slot]
        if not tensor.numel():
            return ""
        ends = {complex(tensor.flatten()[:1].item()), complex(tensor.flatten()[-1:].item())}
        if ends != {complex(number)}:
            return f"a tensor of {number} holds {sorted(map(str, ends))} though it still lives"
        return ""

    # counters

    def _release(self) -> str:
        self.release_memory()
        return self.model.released(self.gpu.memory_allocated())

    def _reset(self) -> None:
        self._release()
        self.gpu.reset_peak_memory_stats()
        self.model.reset()

    def _read(self, thread: bool) -> str:
        """Each method against the statistics, which stay as they are."""
        found: list[int] = []
        before = self.gpu.memory_stats()
        kept = dict(before)
        names = (
            "memory_allocated",
            "max_memory_allocated",
            "memory_reserved",
            "max_memory_reserved",
        )
        _run(lambda: found.extend(getattr(self.gpu, name)() for name in names), thread)
        for name, key, value in zip(names, KEYS, found, strict=True):
            if type(value) is not int:
                return f"{name}() is {value!r}, which is no whole number"
            if abs(value - kept[key]) > SLACK:
                return f"{name}() is {value / MIB:.1f} MiB and {key} {kept[key] / MIB:.1f} MiB"
        changed = [key for key in kept if before.get(key) != kept[key]]
        return f"statistics that were read before changed in {changed[0]}" if changed else ""

    def _info(self) -> str:
        free, total = self.gpu.mem_get_info()
        stated = self.gpu.get_device_properties().total_memory
        used = self.gpu.device_memory_used()
        for name, value in (("free", free), ("total", total), ("device_memory_used", used)):
            if type(value) is not int:
                return f"the {name} memory is {value!r}, which is no whole number"
        if not 0 <= free <= total:
            return f"mem_get_info says that {free} of {total} bytes are free"
        if self.gpu.mem_get_info()[1] != total:
            return f"mem_get_info's total of {total} bytes changes between two calls"
        if abs(total - stated) > 0.01 * stated:
            return f"mem_get_info's total is {total} bytes, and the properties state {stated}"
        if not 0 <= used <= total:
            return f"device_memory_used is {used} of {total} bytes"
        if used < self.model.live - SLACK * (1 + self.model.number):
            return f"device_memory_used is {used} bytes, less than the tensors that live"
        return ""


def _run(work: Any, thread: bool) -> None:
    """Run it, in a thread of its own or here."""
    if not thread:
        work()
        return
    beside = threading.Thread(target=work)
    beside.start()
    beside.join()


AREA: Final = _Memory()
