"""NVML's fields, and the NVLinks of a GPU with their counters of errors.

Numbers and meanings: nvml.h, ``NVML_FI_DEV_*`` and ``NVML_NVLINK_ERROR_*``. Counters have the names
that ``nvidia-smi nvlink -e`` prints, in lower case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.formats import pci_address
from portagpu.facts.readings import End, Link, Node
from portagpu.facts.readings.library import Rarely, integer, number, text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from portagpu.facts.readings.library import Library

_MOST_LINKS: Final = 36  # NVML_NVLINK_MAX_LINKS of driver 590; NVML refuses what a GPU lacks
# NVML_NVLINK_ERROR_DL_*: those of NVLink 1 to 4
_COUNTERS: Final = {
    "replay errors": 0,
    "recovery errors": 1,
    "crc errors": 2,
}
# NVML_FI_DEV_NVLINK_COUNT_*, with the link as the scope: those of NVLink 5
_FIELDS: Final = {
    "malformed packet errors": 206,
    "buffer overrun errors": 207,
    "rx errors": 208,
    "rx remote errors": 209,
    "rx general errors": 210,
    "local link integrity errors": 211,
    "tx discards": 212,
    "link recovery successful events": 213,
    "link recovery failed events": 214,
}
# NVML_NVLINK_DEVICE_TYPE_*
_REMOTE: Final = {0: Node.GPU, 1: Node.CPU, 2: Node.SWITCH}
# nvmlValueType_t, and the member of the union that holds it
_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_rarely: Final = Rarely(10.0)
"""A GPU has up to 18 links with up to nine counters each: they are read every ten seconds."""


def field_values(
    nvml: Library, handle: Any, fields: Iterable[int | tuple[int, int]]
) -> dict[Any, Any]:
    """Field, or (field, scope) -> its value, of those that this GPU and driver have."""
    asked = list(fields)
    found: dict[Any, Any] = {}
    answer = nvml("nvmlDeviceGetFieldValues", handle, asked)
    # an array of ctypes has a length, and is no Iterable to collections.abc
    values = list(answer) if hasattr(answer, "__len__") else []
    for key, each in zip(asked, values, strict=False):
        if getattr(each, "nvmlReturn", 1) != 0:
            continue
        kind = integer(getattr(each, "valueType", None))
        member = _MEMBERS[kind] if kind is not None and kind < len(_MEMBERS) else "uiVal"
        value = number(getattr(getattr(each, "value", None), member, None))
        if value is not None:
            found[key] = value
    return found


def nvlinks(nvml: Library, handle: Any, index: int, pci: str | None) -> tuple[Link, ...]:
    """The NVLinks of a GPU, read again after some seconds; empty without any."""

    def read() -> tuple[Link, ...]:
        found = (_link(nvml, handle, number, index, pci) for number in range(_MOST_LINKS))
        return tuple(link for link in found if link is not None)

    return _rarely((pci, index), read)


def _link(nvml: Library, handle: Any, link: int, index: int, pci: str | None) -> Link | None:
    up = nvml.integer("nvmlDeviceGetNvLinkState", handle, link)
    if up is None:
        return None
    errors = {
        name: nvml.integer("nvmlDeviceGetNvLinkErrorCounter", handle, link, counter)
        for name, counter in _COUNTERS.items()
    }
    newer = field_values(nvml, handle, [(field, link) for field in _FIELDS.values()])
    counted = {name: count for name, count in errors.items() if count is not None}
    counted |= {name: newer[(n, link)] for name, n in _FIELDS.items() if (n, link) in newer}
    remote = getattr(nvml("nvmlDeviceGetNvLinkRemotePciInfo", handle, link), "busId", None)
    where = pci_address(text(remote) or "")
    kind = nvml.integer("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    node = _REMOTE.get(kind, Node.UNKNOWN) if kind is not None and where else Node.UNKNOWN
    return Link(
        source="nvml",
        a=End(Node.GPU, f"GPU{index}", pci, index),
        b=End(node, where or "not stated", where),
        kind="nvlink",
        count=1,
        up=bool(up),
        errors=counted,
        extra={"link": str(link)},
    )
