"""What a device says of its memory, and what is wrong with it whatever tensors live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.difference import Difference, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.devices.contract import Backend

KEYS: Final = tuple(
    f"{kind}_bytes.all.{what}" for kind in ("allocated", "reserved") for what in ("current", "peak")
)
TRIES: Final = 3
"""How often two calls may see another amount in use: processes beside this one take and free."""


def wrong_counters(stats: Mapping[str, int]) -> str:
    """What is wrong with statistics by themselves."""
    for key in KEYS:
        if key not in stats:
            return f"the statistics have no {key}"
        if type(stats[key]) is not int or stats[key] < 0:
            return f"{key} is {stats[key]!r}, which is no whole number of bytes"
    return ""


def wrong_info(source: Any, gpu: Backend, in_use: int = 0) -> str:
    """What is wrong with free, total and used memory, where so many bytes at least are in use.

    ``source`` is asked: the device, or the module for the current device.
    """
    for _ in range(TRIES):
        free, total = source.mem_get_info()
        used = source.device_memory_used()
        for name, value in (("free", free), ("total", total), ("used", used)):
            if type(value) is not int:
                return f"the {name} memory is {value!r}, which is no whole number"
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
