"""The GPUs of ``portagpu info`` as rows: common properties first, then one row for each GPU."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from portagpu.base.units import UNKNOWN, count, size

if TYPE_CHECKING:
    from collections.abc import Iterable

_Rows = list[tuple[str, str]]


def gpu_rows(gpus: list[dict[str, Any]], devices: list[dict[str, Any]]) -> _Rows:
    """Rows of (label, text); ``devices`` are those of ``gpus``, in the same order."""
    rows: _Rows = []
    numbered, first = [], 0
    for gpu in gpus:
        many = len(gpu["parts"]) or 1
        numbered.append((gpu, first, devices[first]["target"] if first < len(devices) else None))
        first += many
    for lines, group in groupby(numbered, key=lambda each: _common_lines(each[0], each[2])):
        same = list(group)
        product = lines[0] if len(same) > 1 else lines[0].replace(" each,", ",")
        rows.append((count(len(same), "GPU"), product))
        rows.extend(("", line) for line in lines[1:] if line)
        for gpu, number, _ in same:
            rows.extend(_gpu_rows(gpu, number))
    return rows


def _common_lines(gpu: dict[str, Any], target: str | None) -> tuple[str, ...]:
    """The lines that GPUs of one product, driver and mode have in common."""
    arch = gpu["arch"] or "architecture unknown"
    product = [f"{gpu['name'] or 'unnamed ' + gpu['vendor']} ({arch})"]
    if gpu["memory_bytes"] is not None:
        product.append(f"{size(gpu['memory_bytes'])} each")
    product.append(f"target {target or UNKNOWN}")
    driver = [word for word in (gpu["driver"], gpu["driver_version"]) if word]
    modes = [mode for mode in (gpu["compute_partition"], gpu["memory_partition"]) if mode]
    state = [
        f"driver {' '.join(driver)}" if driver else "no driver shown",
        "/".join(modes),
        {True: "MIG on", False: "MIG off", None: ""}[gpu["mig_enabled"]],
        _link(gpu["pcie"]),
        f"known from {', '.join(gpu['sources'])}",
    ]
    return ", ".join(product), ", ".join(filter(None, state))


def _link(link: dict[str, Any]) -> str:
    """The fastest stated link, because an idle GPU slows down its present one."""
    for kind in ("max_", "device_", ""):
        generation, width = link[f"{kind}generation"], link[f"{kind}width"]
        if generation is not None:
            lanes = width if width is not None else link["width"]
            return f"PCIe {generation}" + (f" x{lanes}" if lanes is not None else "")
    return ""


def _gpu_rows(gpu: dict[str, Any], number: int) -> Iterable[tuple[str, str]]:
    parts = gpu["parts"]
    node = gpu["numa_node"]
    words = [
        gpu["pci"] or "PCI address unknown",
        gpu["uuid"] or "UUID unknown",
        f"NUMA node {node}" if node is not None else "",
    ]
    if not parts:
        yield f"gpu {number}", _columns(words)
        return
    last = number + len(parts) - 1
    named = [part["uuid"] for part in parts]
    label = f"gpu {number}" if last == number else f"gpu {number}-{last}"
    if any(named):
        yield "", _columns(words)
        for index, part in enumerate(parts, number):
            yield (
                f"gpu {index}",
                _columns([part["profile"] or "part", part["uuid"] or "", _part_size(part)]),
            )
    else:
        profiles = " and ".join(dict.fromkeys(part["profile"] or "part" for part in parts))
        sizes = "; ".join(dict.fromkeys(filter(None, map(_part_size, parts))))
        words.append(f"{len(parts)} x {profiles}" + (f" of {sizes}" if sizes else ""))
        yield label, _columns(words)


def _part_size(part: dict[str, Any]) -> str:
    words = []
    if part["memory_bytes"] is not None:
        words.append(size(part["memory_bytes"]))
    if part["unit_count"] is not None:
        words.append(count(part["unit_count"], "unit"))
    return ", ".join(words)


def _columns(words: list[str]) -> str:
    return "  ".join(filter(None, words))
