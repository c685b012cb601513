"""The model: which storages live, and between which bytes each counter may be then.

Contract: a tensor counts as allocated to within 16 MiB while it lives. What it leaves when it dies
may count until ``empty_cache()``, since a CPU's counters are the process's resident memory. So the
counters are known best right after ``empty_cache()``, and programs are judged from there: what
changed since is SLACK for each storage that came or went, and up to all garbage more.

What the kernel mapped or took back meanwhile is known, and may count too (:func:`kernel_share`).
A CPU's counters are the process's resident memory (``Backend.memory_stats``). It has pages of files
too, which are the code that ran: the kernel takes them back where other processes need memory, and
maps them again, some around each, when they are used (``filemap_map_pages`` in mm/filemap.c). And
pages of tensors that were swapped out do not count as resident
(Documentation/filesystems/proc.rst, ``RssFile`` and ``VmSwap`` in /proc/PID/status).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.area import Difference, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.devices.contract import Backend


MIB: Final = 1 << 20
SLACK: Final = 16 * MIB
"""How far a tensor's count may be off: ``Backend.memory_stats``."""
KEYS: Final = tuple(
    f"{kind}_bytes.all.{what}" for kind in ("allocated", "reserved") for what in ("current", "peak")
)
TRIES: Final = 3
"""How often two calls may see another amount in use: other processes take and free memory."""
_STATUS: Final = Path("/proc/self/status")
_FIELDS: Final = re.compile(rb"^(RssFile|VmSwap):\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The lowest and the highest that a counter may be, in bytes."""

    low: int
    high: int

    def wrong(self, name: str, value: int) -> str:
        """How the value misses the bounds; empty if it does not."""
        if self.low <= value <= self.high:
            return ""
        low, high = self.low / MIB, self.high / MIB
        shown = f"{name} is {value / MIB:.1f} MiB, not between {low:.1f} and {high:.1f}"
        return Difference(shown, Kind.COUNTER)


@dataclass(slots=True)
class Model:
    """Storages by number, with their bytes, and by slot the storages that it keeps alive."""

    sizes: dict[int, int] = field(default_factory=dict)
    slots: dict[str, frozenset[int]] = field(default_factory=dict)
    base: int = 0
    """The counter right after the last release."""
    base_live: int = 0
    changed: int = 0
    """Storages that came or went since."""
    garbage: int = 0
    """Bytes that may still count though nothing lives there."""
    highest: Bounds = field(default_factory=lambda: Bounds(0, 0))
    """Of the peak since the last reset: the highest of what the counter was between."""
    number: int = 0
    share: int = 0
    """What of resident memory was the kernel's when it was looked at last."""
    base_share: int = 0
    """The same at the last release."""
    moved: tuple[int, int] = (0, 0)
    """Between how many bytes that has grown since; below 0 it fell."""

    @property
    def live(self) -> int:
        """Bytes of all storages that live."""
        return sum(self.sizes[each] for each in self.storages)

    @property
    def storages(self) -> frozenset[int]:
        """All that some slot keeps alive."""
        return frozenset().union(*self.slots.values())

    def made(self, slot: str, sizes: list[int], kept: frozenset[int] = frozenset()) -> None:
        """The slot keeps new storages of those sizes alive, and ``kept`` ones."""
        numbers = []
        for size in sizes:
            self.number += 1
            self.sizes[self.number] = size
            numbers.append(self.number)
        # the old tensor of the slot lives until the new one is there
        self.changed += len(sizes)
        self.also(sum(sizes))
        self.keep(slot, kept | frozenset(numbers))

    def keep(self, slot: str, storages: frozenset[int] | None) -> None:
        """The slot keeps these alive and nothing else; None empties it."""
        before = self.storages
        if storages is None:
            self.slots.pop(slot, None)
        else:
            self.slots[slot] = storages
        for each in before - self.storages:
            self.garbage += self.sizes[each]
            self.changed += 1

    def also(self, size: int, most: int = 0) -> None:
        """For a moment this many bytes more were alive, at most ``most``, and are garbage after."""
        now = self.current()
        low, high = now.low + size, now.high + max(size, most)
        self.highest = Bounds(max(self.highest.low, low), max(self.highest.high, high))

    def temporary(self, size: int, most: int) -> None:
        """What :meth:`also` says of memory that is gone again."""
        self.changed += 1
        self.also(size, most)
        self.garbage += most

    def current(self) -> Bounds:
        """Of the allocated bytes now."""
        level = self.base + self.live - self.base_live
        slack = SLACK * max(1, self.changed)
        fell, rose = min(0, self.moved[0]), max(0, self.moved[1])
        return Bounds(level - slack + fell, level + self.garbage + slack + rose)

    def sees(self, *shares: int) -> None:
        """The kernel's share was so much right before and after a counter was read."""
        before, self.moved = (
            self.moved,
            (
                min(shares) - self.base_share,
                max(shares) - self.base_share,
            ),
        )
        # a peak may have been before the share fell, or after it rose
        fell, rose = min(0, self.moved[0] - before[0]), max(0, self.moved[1] - before[1])
        self.highest = Bounds(self.highest.low + fell, self.highest.high + rose)
        self.share = shares[-1]

    def released(self, value: int) -> str:
        """No garbage is left, and the counter is ``value``; the difference."""
        self.garbage = 0
        # what is gone may not count any more
        self.changed = min(self.changed, len(self.storages))
        found = self.current().wrong("memory_allocated() after empty_cache()", value)
        self.start(value)
        return found

    def start(self, value: int) -> None:
        """The counter is ``value``, and what lives now is counted in it."""
        self.base, self.base_live, self.changed = value, self.live, 0
        self.base_share, self.moved = self.share, (0, 0)
        self.also(0)

    def reset(self) -> None:
        """The peaks begin again."""
        self.highest = self.current()


def wrong_counters(stats: Mapping[str, int]) -> str:
    """What is wrong with statistics by themselves."""
    for key in KEYS:
        if key not in stats:
            return f"the statistics have no {key}"
        if type(stats[key]) is not int or stats[key] < 0:
            return f"{key} is {stats[key]!r}, which is not a whole number of bytes"
    return ""


def wrong_info(source: Any, gpu: Backend, in_use: int = 0) -> str:
    """What is wrong with free, total and used memory, where at least this many bytes are in use.

    ``source`` is asked: the device, or the module for the current device.
    """
    for _ in range(TRIES):
        free, total = source.mem_get_info()
        used = source.device_memory_used()
        for name, value in (("free", free), ("total", total), ("used", used)):
            if type(value) is not int:
                return f"the {name} memory is {value!r}, which is not a whole number"
        if not 0 <= free <= total or not total:
            return f"mem_get_info says that {free} of {total} bytes are free"
        if abs(total - free - used) <= total // 20:
            break
    else:
        text = f"device_memory_used is {used} where {free} of {total} bytes are free"
        return Difference(text, Kind.COUNTER)
    stated = gpu.get_device_properties().total_memory
    if source.mem_get_info()[1] != total:
        return f"mem_get_info's total of {total} bytes changes between two calls"
    if abs(total - stated) > 0.01 * stated:
        return f"mem_get_info's total is {total} bytes, and the properties state {stated}"
    if not 0 <= used <= total:
        return f"device_memory_used is {used} of {total} bytes"
    if used < in_use:
        text = f"device_memory_used is {used} bytes, less than the tensors that live"
        return Difference(text, Kind.COUNTER)
    if (allocated := gpu.memory_allocated()) > total:
        return f"{allocated} bytes of tensors are on a device of {total}"
    return ""


def kernel_share(gpu: Backend, status: Path = _STATUS) -> int:
    """Bytes of mapped files that are resident, less those that were swapped out.

    0 on a device with memory of its own, and where the kernel does not state them.
    """
    if gpu.device.type != "cpu":
        return 0
    try:
        found = dict(_FIELDS.findall(status.read_bytes()))
    except OSError:
        return 0
    return 1024 * (int(found.get(b"RssFile", b"0")) - int(found.get(b"VmSwap", b"0")))
