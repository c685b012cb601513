"""PCI values: classes, vendors and link speeds."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from portagpu.facts.host.gpus import GPU_CLASSES, PCI_VENDORS
from portagpu.facts.pcie import GENERATION
from portagpu.facts.readings.model import Node
from portagpu.facts.targets.model import normalise
from portagpu.facts.vendors import vendors

# PCI Code and ID Assignment: Ethernet, InfiniBand, fabric and other network controllers
_NIC_CLASSES: Final = frozenset({0x0200, 0x0207, 0x0208, 0x0280})
# PCI-to-PCI bridges, and other bridges, as which NVSwitches appear
_BRIDGE_CLASS: Final = 0x0604
_OTHER_BRIDGE: Final = 0x0680


CLASS_WORDS: Final = {
    "VGA compatible controller": 0x0300,
    "XGA compatible controller": 0x0301,
    "3D controller": 0x0302,
    "Display controller": 0x0380,
    "Processing accelerators": 0x1200,
    "Ethernet controller": 0x0200,
    "Infiniband controller": 0x0207,
    "Fabric controller": 0x0208,
    "Network controller": 0x0280,
    "PCI bridge": 0x0604,
    "Bridge": 0x0680,
}
"""Classes as pci.ids names them, which ``lspci`` without ``-n`` prints."""


@cache
def _makers() -> tuple[tuple[str, re.Pattern[str]], ...]:
    known = ((name, each) for name, each in vendors().items() if each.makers and each.pci_ids)
    return tuple((name, re.compile(rf"(?:{'|'.join(each.makers)})\b")) for name, each in known)


def vendor_of_words(name: str) -> str | None:
    """The vendor of GPUs whose name a device's name in pci.ids begins with."""
    words = normalise(name)
    return next((vendor for vendor, maker in _makers() if maker.match(words)), None)


def node_kind(code: int | None, vendor_id: int | None) -> Node | None:
    """What a device of PCI class ``code`` (base class and subclass) is; None for anything else."""
    if code in GPU_CLASSES and (vendor_id is None or vendor_id in PCI_VENDORS):
        return Node.GPU
    if code in _NIC_CLASSES:
        return Node.NIC
    if code == _BRIDGE_CLASS or (code == _OTHER_BRIDGE and vendor_id in PCI_VENDORS):
        return Node.SWITCH
    return None


def vendor_name(vendor_id: int | None) -> str | None:
    """The vendor of GPUs with that PCI vendor id."""
    return None if vendor_id is None else PCI_VENDORS.get(vendor_id)


def transfer_rate(text: str | None) -> float | None:
    """GT/s of a lane: "16.0 GT/s PCIe", "Speed 16GT/s"; None for "Unknown" and anything else."""
    match = re.search(r"(\d{1,3}(?:\.\d{1,3})?) ?GT/s", text or "")
    return float(match.group(1)) if match is not None else None


def generation(rate_gt_s: float | None) -> int | None:
    """The generation of PCI Express that has this transfer rate."""
    return None if rate_gt_s is None else GENERATION.get(rate_gt_s)


def hexadecimal(text: str | None) -> int | None:
    """ "0x10de" or "10de" as a number; None for anything else."""
    value = (text or "").strip().lower().removeprefix("0x")
    return int(value, 16) if re.fullmatch(r"[0-9a-f]{1,16}", value) else None
