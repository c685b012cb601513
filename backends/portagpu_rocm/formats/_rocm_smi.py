"""A GPU's reading from any output of ROCm SMI.

Its JSON holds what its log prints as "GPU[0] : key: value" (``printLog`` in ``rocm_smi.py``), so
both are read into one mapping of lower-case keys a card. Keys of ROCm 4.3 to 6.4: "GPU ID" became
"Device ID", "Card model" was the subsystem's id until "Subsystem ID" came and it became the
device's, and the name is "Card series", "Card Series" or "Device Name".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from portagpu.facts.formats import integer, pci_address, stated
from portagpu.facts.readings import End, GpuState, Link, Memory, Node, Pcie, Reading
from portagpu.facts.readings.model import without_none
from portagpu_rocm.formats._amd import (
    VENDOR,
    count,
    first_stated,
    generation,
    gfx_arch,
    measure,
    product_name,
    runtime_uuid,
)
from portagpu_rocm.formats._amd_smi import KINDS, most_bandwidth

Card = Mapping[str, str]
Pair = tuple[int, int]

_NO_NODE: Final = 0xFFFFFFFF
_VENDOR_ID: Final = 0x1002
_POWER: Final = (
    "average graphics package power (w)",
    "current socket graphics package power (w)",
    "average socket graphics package power (w)",
)
_EXTRA: Final = ("node id", "guid", "card sku", "partition id", "xgmi error count", "vram%")
_ACCESS: Final = {"TRUE": True, "FALSE": False}


def reading(index: int, card: Card, source: str, memory: Memory | None = None) -> Reading:
    """One card's keys as a Reading; ``memory`` is what a table of errors said of it."""
    unique_id = count(card.get("unique id")) or None
    model, subsystem = count(card.get("card model")), count(card.get("subsystem id"))
    if subsystem is None and "device name" not in card:
        # ROCm 4.3 prints the vendor's id where it cannot read it
        model, subsystem = None, model if model != _VENDOR_ID else None
    return Reading(
        source=source,
        vendor=VENDOR,
        index=index,
        pci=pci_address(card.get("pci bus")),
        uuid=runtime_uuid(unique_id),
        unique_id=unique_id,
        name=first_stated(
            product_name(card.get("card series")), product_name(card.get("device name"))
        ),
        arch=gfx_arch(stated(card.get("gfx version"))),
        device_id=first_stated(count(card.get("device id")), count(card.get("gpu id")), model),
        subsystem_id=subsystem,
        memory_bytes=count(card.get("vram total memory (b)")) or None,
        numa_node=_numa_node(card),
        firmware=_firmware(card),
        compute_partition=stated(card.get("compute partition")),
        memory_partition=stated(card.get("memory partition")),
        pcie=_pcie(card),
        memory=memory or Memory(),
        state=_state(card),
        extra={key: text for key in _EXTRA if (text := stated(card.get(key))) is not None},
    )


def _numa_node(card: Card) -> int | None:
    """The NUMA node from the kernel's affinity, or else from KFD's node."""
    for key in ("(topology) numa affinity", "(topology) numa node"):
        node = integer(card.get(key))
        if node is not None:
            return node if 0 <= node < _NO_NODE else None
    return None


def _firmware(card: Card) -> dict[str, str]:
    names = {key: key.removesuffix(" firmware version").upper() for key in card}
    names |= {"vbios version": "VBIOS"}
    return {
        name: version
        for key, name in names.items()
        if name != key.upper() and (version := stated(card.get(key))) is not None
    }


def _pcie(card: Card) -> Pcie:
    """(level, speed, lanes) of "1 (16.0GT/s x16)"."""
    match = re.search(
        r"(\d{1,3}(?:\.\d)?)\s?GT/s x(\d{1,2})\b", card.get("pcie clock level", "")[:80]
    )
    return Pcie(
        generation=generation(float(match.group(1))) if match is not None else None,
        width=int(match.group(2)) if match is not None else None,
        replays=count(card.get("pcie replay count")),
    )


def _state(card: Card) -> GpuState:
    sensors = (re.fullmatch(r"temperature \(sensor ([a-z0-9 ]+)\) \(c\)", key) for key in card)
    used = count(card.get("vram total used memory (b)"))
    return GpuState(
        temperatures_c=without_none(
            {match.group(1): measure(card[match.string]) for match in sensors if match is not None}
        ),
        power_w=first_stated(*(measure(card.get(key)) for key in _POWER)),
        power_limit_w=measure(card.get("max graphics package power (w)")),
        clock_mhz=_clock(card, "sclk"),
        memory_clock_mhz=_clock(card, "mclk"),
        utilization_percent=measure(card.get("gpu use (%)")),
        memory_used_bytes=used,
    )


def _clock(card: Card, name: str) -> float | None:
    """The clock in "(1402Mhz)" of "sclk clock speed", or "1 (1402Mhz)" of "sclk clock level"."""
    for key in (f"{name} clock speed", f"{name} clock level"):
        match = re.search(r"\b(\d{1,6}(?:\.\d)?)\s?mhz", card.get(key, "")[:80].lower())
        if match is not None:
            return float(match.group(1))
    return None


def link(pair: Pair, facts: Mapping[str, str], source: str) -> Link:
    """What ``facts`` ("weight", "hops", "type", "access", "bandwidth") say of two GPUs.

    ``bandwidth`` is "least-most" in MB/s.
    """
    a, b = (End(Node.GPU, f"GPU{index}", index=index) for index in pair)
    return Link(
        source=source,
        a=a,
        b=b,
        kind=KINDS.get(facts.get("type", "").upper(), "unknown"),
        bandwidth_bytes_s=most_bandwidth(stated(facts.get("bandwidth"))),
        weight=count(facts.get("weight")),
        hops=count(facts.get("hops")),
        peer_access=_ACCESS.get(facts.get("access", "").upper()),
    )
