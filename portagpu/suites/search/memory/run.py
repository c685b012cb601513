"""One program of tensors on the device, and the model of its counters."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.capability import Capability
from portagpu.suites.search.area import Difference, Kind
from portagpu.suites.search.memory.model import (
    KEYS,
    MIB,
    SLACK,
    Model,
    kernel_share,
    wrong_counters,
    wrong_info,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.suites.search.area import Program

SLOTS: Final = ("x", "y", "z")
MAX_LIVE: Final = 144 * MIB


@dataclass(slots=True)
class Run:
    """One program on the device and in the model."""

    gpu: Backend
    model: Model = field(default_factory=Model)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    leaves: dict[str, torch.Tensor] = field(default_factory=dict)
    """By slot that holds a graph's result: the leaf that gets a gradient."""
    parts: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """By slot: up to which element of the memory there is which number; views share a list."""
    count: int = 1
    seen: tuple[Mapping[str, int], dict[str, int]] | None = None
    """The statistics that were read last, and what was in them."""
    peaks: tuple[int, int] = (0, 0)
    """Of allocated and reserved memory, as they were read last since they were reset."""
    gap: int = 0
    """Bytes that were reserved and not allocated before there was any tensor."""

    def all(self, program: Program) -> str:
        """The first difference."""
        lacks = wrong_counters(self.gpu.memory_stats())
        if lacks:
            return lacks
        self.release_memory()
        peaks = self.gpu.supports(Capability.PEAK_MEMORY)
        found: str | None = self._reset_peaks("method") if peaks else ""
        self.model.sees(share := self._share())
        started, reserved = self.gpu.memory_allocated(), self.gpu.memory_reserved()
        self.gap = max(0, reserved - started)
        self.model.start(started)
        self.model.reset()
        found = found or self._counters("before all", peaks)
        found = found or self.info("method") or self.info("function")
        if found:
            return found
        for name, given in program:
            found = CALLS[name](self, **given)
            found = found or self._counters(f"after {name}", peaks)
            if found:
                return found
        for slot in SLOTS:
            found = self._contents(slot)
            if found:
                return found
            self.free(slot)
        found = self._empty_cache("method") or self._counters("after all", peaks)
        if found:
            return found
        for kind, before in (("allocated", started), ("reserved", reserved)):
            left = getattr(self.gpu, f"memory_{kind}")() - before
            if left > SLACK + max(0, self._share() - share):
                shown = f"{left / MIB:.1f} MiB still count as {kind}"
                text = f"{shown} when all tensors are gone and the cache is empty"
                return Difference(text, Kind.COUNTER)
        return ""

    def release_memory(self) -> None:
        """Give back all that no tensor holds; no tensor here is part of a cycle."""
        self.gpu.synchronize()
        self.gpu.empty_cache()

    def _share(self) -> int:
        return kernel_share(self.gpu)

    def _source(self, by: str) -> Any:
        """Where a call is made: the handle, or the module where that is about the same device."""
        from portagpu.devices import functions
        from portagpu.devices.registry import backend

        return functions if by == "function" and backend() is self.gpu else self.gpu

    def _counters(self, when: str, peaks: bool) -> str:
        """What is wrong with the counters, which agree with each other and with the model."""
        self.gpu.synchronize()
        found = self._changed(when)
        if found:
            return found
        share = self._share()
        stats = self.gpu.memory_stats()
        self.model.sees(share, self._share())
        self.seen = stats, dict(stats)
        found = wrong_counters(stats)
        if found:
            return found
        allocated, peak, reserved, reserved_peak = (stats[key] for key in KEYS)
        for kind, now, highest in (
            ("allocated", allocated, peak),
            ("reserved", reserved, reserved_peak),
        ):
            if highest < now:
                return f"{when} the {kind} peak {highest} is below the current {now}"
        if reserved < allocated:
            return f"{when} the {reserved} reserved bytes are less than {allocated} allocated ones"
        found = self.model.current().wrong(f"{when} allocated_bytes.all.current", allocated)
        if found:
            return Difference(f"{found}{self._stays(allocated)}", Kind.COUNTER)
        if not peaks:
            return ""
        found = self.model.highest.wrong(f"{when} allocated_bytes.all.peak", peak)
        low = self.model.highest.low + self.gap
        if not found and reserved_peak < low:
            shown = f"{when} reserved_bytes.all.peak is {reserved_peak / MIB:.1f} MiB"
            text = f"{shown}, less than {low / MIB:.1f} with the tensors that lived"
            return Difference(text, Kind.COUNTER)
        for kind, before, now in zip(
            ("allocated", "reserved"), self.peaks, (peak, reserved_peak), strict=True
        ):
            if not found and before - now > SLACK:
                text = f"{when} the {kind} peak fell by {(before - now) / MIB:.1f} MiB, not reset"
                found = Difference(text, Kind.COUNTER)
        self.peaks = peak, reserved_peak
        return found

    def _stays(self, before: int) -> str:
        """Whether the counter stays as it is when all tensors are gone, which ends the program."""
        live = self.model.live
        self.tensors.clear()
        self.leaves.clear()
        self.release_memory()
        stays = live and before - self.gpu.memory_allocated() < live // 2
        return ", and it does not fall when all tensors are gone" if stays else ""

    def _changed(self, when: str) -> str:
        """How statistics of before changed."""
        if self.seen is None:
            return ""
        stats, kept = self.seen
        changed = [key for key in kept if stats.get(key) != kept[key]]
        return f"{when} the statistics of before changed in {changed[0]}" if changed else ""

    # tensors

    def _fill(self, size: int, dtype: str, maker: str) -> torch.Tensor:
        import torch

        kind = getattr(torch, dtype)
        self.count = self.count % 100 + 1
        value = 1 if kind is torch.bool else self.count
        shape = (size // kind.itemsize,)
        place = {"dtype": kind, "device": self.gpu.device}
        if maker == "full":
            return torch.full(shape, value, **place)
        if maker == "ones":
            return torch.ones(shape, **place)
        return (torch.empty if maker == "empty" else torch.zeros)(shape, **place).fill_(value)

    def _number(self, tensor: torch.Tensor) -> int:
        """What the last fill wrote into a tensor."""
        return 1 if str(tensor.dtype) == "torch.bool" else self.count

    def _room(self, size: int) -> bool:
        return self.model.live + size <= MAX_LIVE

    def _put(self, slot: str, tensor: torch.Tensor) -> None:
        self.leaves.pop(slot, None)
        self.tensors[slot] = tensor

    def make(self, slot: str, size: int, dtype: str, maker: str) -> None:
        if not self._room(size):
            return
        tensor = self._fill(size, dtype, maker)
        self._put(slot, tensor)
        self.parts[slot] = [(tensor.numel(), 1 if maker == "ones" else self._number(tensor))]
        self.model.made(slot, [size])

    def clone(self, slot: str, source: str) -> None:
        if source not in self.tensors:
            return
        tensor = self.tensors[source].detach()
        # where elements share memory a clone has as few of them again
        size = tensor.numel() * tensor.element_size()
        if not size or not self._room(size):
            return
        parts = self._parts(source)
        if _expanded(tensor):
            parts = [(tensor.numel(), parts[0][1])]
        self._put(slot, tensor.contiguous().clone() if tensor.numel() else tensor.clone())
        self.parts[slot] = parts
        self.model.also(size, 2 * size)
        self.model.garbage += 0 if tensor.is_contiguous() else size
        self.model.changed += not tensor.is_contiguous()
        self.model.made(slot, [size])

    def view(self, slot: str, source: str, view: str, write: bool) -> None:
        """Another tensor of the same memory, which may be written through it."""
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
        self.parts[slot] = self.parts[source]
        self._put(slot, seen)
        self.model.keep(slot, self.model.slots[source])
        if write:
            self.write(slot)

    def free(self, slot: str) -> None:
        self.leaves.pop(slot, None)
        self.tensors.pop(slot, None)
        self.model.keep(slot, None)

    def write(self, slot: str) -> None:
        """Another number, in place: nothing is allocated, and every view sees it."""
        if slot not in self.tensors or slot in self.leaves:
            return
        tensor = self.tensors[slot].detach()
        tensor = tensor[:1] if _expanded(tensor) else tensor
        self.count = self.count % 100 + 1
        tensor.fill_(self._number(tensor))
        parts = self.parts[slot]
        seen = tensor.numel()
        rest = [each for each in parts if each[0] > seen]
        parts[:] = [*([(seen, self._number(tensor))] if seen else []), *rest]

    def grow(self, slot: str) -> None:
        """Half as many elements again, in place, for a tensor whose storage nobody shares."""
        if slot not in self.tensors or slot in self.leaves:
            return
        tensor, storages = self.tensors[slot], self.model.slots[slot]
        old = self.model.live
        shared = any(storages & each for name, each in self.model.slots.items() if name != slot)
        size = sum(self.model.sizes[each] for each in storages)
        owned = tensor.is_contiguous() and tensor.numel() * tensor.element_size() == size
        if shared or not owned or old + 2 * size > MAX_LIVE:
            return
        more = (tensor.numel() * 3 // 2) * tensor.element_size()
        tensor.resize_(tensor.numel() * 3 // 2).fill_(self._number(tensor))
        self.parts[slot] = [(tensor.numel(), self._number(tensor))]
        # whether the old memory lived until all of the new one was written is not said
        self.model.also(0, more)
        self.model.keep(slot, None)
        self.model.made(slot, [more])

    def temporary(self, slot: str, error: bool) -> None:
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

    def graph(self, slot: str, size: int, links: int) -> None:
        """A result whose graph holds what backward will need: each sine its input."""
        if not self._room((links + 2) * size):
            return
        leaf = self._fill(size, "float32", "full").mul_(0).requires_grad_()
        result = leaf
        for _ in range(links):
            result = result.sin()
        self._put(slot, result)
        self.leaves[slot] = leaf
        self.parts[slot] = [(leaf.numel(), 0)]
        self.model.made(slot, [size] * (links + 1))

    def backward(self, slot: str) -> None:
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

    def _parts(self, slot: str) -> list[tuple[int, int]]:
        """The numbers that a slot's tensor sees, each with the element up to which it is there."""
        tensor, found = self.tensors[slot], []
        most = 1 if _expanded(tensor) else tensor.numel()
        for until, number in self.parts[slot]:
            found.append((min(until, most), number))
            if until >= most:
                break
        return found

    def _contents(self, slot: str, when: str = "at the end") -> str:
        """A tensor that lives holds what was written into it, and into all views of its memory."""
        if slot not in self.tensors:
            return ""
        tensor, start = self.tensors[slot].detach(), 0
        flat = tensor[:1] if _expanded(tensor) else tensor.reshape(-1)
        for until, number in self._parts(slot):
            found = _numbers(flat, start, until) - {complex(number)} if until > start else set()
            if found:
                shown = " and ".join(
                    f"{each if each.imag else each.real:g}" for each in sorted(found, key=abs)
                )
                return f"{when} a tensor that lives holds {shown} where {number} was written"
            start = until
        return ""

    def _all_contents(self, when: str) -> str:
        return next(filter(None, (self._contents(slot, when) for slot in SLOTS)), "")

    # counters

    def release(self, by: str) -> str:
        return self._empty_cache(by) or self._all_contents("after empty_cache()")

    def _empty_cache(self, by: str) -> str:
        self.gpu.synchronize()
        self._source(by).empty_cache()
        share, value = self._share(), self.gpu.memory_allocated()
        self.model.sees(share, self._share())
        return self.model.released(value)

    def ipc_collect(self, by: str) -> str:
        self._source(by).ipc_collect()
        return self._all_contents("after ipc_collect()")

    def reset(self, by: str) -> str:
        found = self._empty_cache(by) or self._reset_peaks(by)
        self.model.reset()
        return found

    def _reset_peaks(self, by: str) -> str:
        """The peaks begin again near the current values."""
        share = self._share()
        self._source(by).reset_peak_memory_stats()
        self.peaks = 0, 0
        stats = self.gpu.memory_stats()
        slack = SLACK + max(0, share - self._share())
        found = wrong_counters(stats)
        if found:
            return found
        for kind in ("allocated", "reserved"):
            over = stats[f"{kind}_bytes.all.peak"] - stats[f"{kind}_bytes.all.current"]
            if over > slack:
                shown = f"{over / MIB:.1f} MiB above the current value"
                text = f"after reset_peak_memory_stats() the {kind} peak is {shown}"
                return Difference(text, Kind.COUNTER)
        return ""

    def read(self, thread: bool, by: str) -> str:
        """Each call against the statistics, which stay as they are."""
        found: list[int] = []
        # another thread has a current device of its own
        source = self.gpu if thread else self._source(by)
        share = self._share()
        before = source.memory_stats()
        wrong = wrong_counters(before)
        if wrong:
            return wrong
        self.seen = before, dict(before)
        names = (
            "memory_allocated",
            "max_memory_allocated",
            "memory_reserved",
            "max_memory_reserved",
        )
        _run(lambda: found.extend(getattr(source, name)() for name in names), thread)
        slack = SLACK + abs(self._share() - share)
        for name, key, value in zip(names, KEYS, found, strict=True):
            if type(value) is not int:
                return f"{name}() is {value!r}, which is not a whole number"
            kept = self.seen[1][key]
            if abs(value - kept) > slack:
                shown = f"{name}() is {value / MIB:.1f} MiB and {key} {kept / MIB:.1f} MiB"
                return Difference(shown, Kind.COUNTER)
        return self._changed("after read")

    def info(self, by: str) -> str:
        in_use = self.model.live - SLACK * (1 + self.model.number)
        return wrong_info(self._source(by), self.gpu, in_use)


CALLS: Final[dict[str, Callable[..., str | None]]] = {
    "backward": Run.backward,
    "clone": Run.clone,
    "free": Run.free,
    "graph": Run.graph,
    "grow": Run.grow,
    "info": Run.info,
    "ipc_collect": Run.ipc_collect,
    "make": Run.make,
    "read": Run.read,
    "release": Run.release,
    "reset": Run.reset,
    "temporary": Run.temporary,
    "view": Run.view,
    "write": Run.write,
}
"""What runs each call of a program."""


def _numbers(flat: torch.Tensor, start: int, until: int) -> set[complex]:
    """Numbers of these elements: the ends, and of all between them two, which differ if any do."""
    import torch

    each = 8 // flat.element_size()
    found = [flat[start : start + 1], flat[until - 1 : until]]
    if until - start > 2 * each:
        # a reduction of words needs no memory for a copy, whatever the dtype
        words = flat[-(-start // each) * each : until // each * each].view(torch.int64)
        found.append(torch.stack(words.aminmax()).view(flat.dtype))
    return {complex(one) for part in found for one in part.tolist()}


def _expanded(tensor: torch.Tensor) -> bool:
    """Whether its elements share memory."""
    return tensor.numel() > 1 and 0 in tensor.stride()


def _run(work: Any, thread: bool) -> None:
    """Run it, in a thread of its own or here."""
    if not thread:
        work()
        return
    other = threading.Thread(target=work)
    other.start()
    other.join()
