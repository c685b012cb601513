"""The tree of PCI devices in the kernel's files, down to GPUs and NICs.

A folder of ``sys/bus/pci/devices`` is a link into ``sys/devices``, whose path names every bridge on
the way (Linux ``Documentation/ABI/testing/sysfs-bus-pci``). A recording may hold copies instead;
there the bridges' ``secondary_bus_number`` tells which bus lies behind which.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats.pci import generation, node_kind, transfer_rate, vendor_name
from portagpu.facts.host.tree import Tree, as_tree
from portagpu.facts.readings.model import End, Findings, Link, Node, Pcie, Reading

if TYPE_CHECKING:
    from pathlib import Path

KIND: Final = "sysfs pci"

_DEVICES: Final = "sys/bus/pci/devices"
_ADDRESS: Final = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_ROOT: Final = r"pci[0-9a-f]{4,8}:[0-9a-f]{2}"


@dataclass(frozen=True, slots=True)
class _PciDevice:
    address: str
    node: Node
    vendor_id: int | None
    device_id: int | None
    parent: str | None
    """An address, or the name of a root complex ("pci0000:00")."""
    numa_node: int | None
    secondary: str | None
    """The bus behind a bridge, as "domain:bus"."""
    rate: float | None
    width: int | None
    max_rate: float | None
    max_width: int | None


def read_pci(root: Tree | Path | str = "/") -> Findings:
    """GPUs as readings, and each link of GPUs, NICs and the bridges on their way to the CPUs.

    A link's own figures are what it does now; ``extra`` has "max_gt_s" and "max_width", the most
    that both its ends can do. Empty where the kernel's files are not there.
    """
    tree = as_tree(root)
    found = [_read_device(tree, address) for address in tree.names(_DEVICES, _ADDRESS)]
    devices = {device.address: device for device in found if device is not None}
    buses = {d.secondary: d.address for d in devices.values() if d.secondary is not None}
    parents = {
        device.address: device.parent or buses.get(device.address.rpartition(":")[0])
        for device in devices.values()
    }
    needed: dict[str, None] = {}
    for device in devices.values():
        at: str | None = device.address if device.node is not Node.SWITCH else None
        while at is not None and at not in needed:
            needed[at] = None
            at = parents.get(at)
    # devices below one root complex repeat its way to the NUMA node
    links = {
        (link.a.name, link.b.name): link
        for address in needed
        if address in devices
        for link in _links(devices[address], parents[address], devices)
    }
    readings = tuple(
        _reading(device, vendor, devices.get(parents[device.address] or ""))
        for device in devices.values()
        if device.node is Node.GPU and (vendor := vendor_name(device.vendor_id)) is not None
    )
    return Findings(kind=KIND, readings=readings, links=tuple(links.values()))


def _read_device(tree: Tree, address: str) -> _PciDevice | None:
    folder = f"{_DEVICES}/{address}"
    code, vendor_id = tree.integer(f"{folder}/class"), tree.integer(f"{folder}/vendor")
    node = node_kind(None if code is None else code >> 8, vendor_id)
    # a virtual function that its own host still sees is a part of the physical one
    if node is None or vendor_id is None or tree.exists(f"{folder}/physfn"):
        return None
    parts = tree.link_parts(folder)
    above = parts[-2] if len(parts) > 1 else ""
    numa_node = tree.integer(f"{folder}/numa_node")
    secondary = tree.integer(f"{folder}/secondary_bus_number")
    return _PciDevice(
        address=address,
        node=node,
        vendor_id=vendor_id,
        device_id=tree.integer(f"{folder}/device"),
        parent=above if re.fullmatch(f"{_ADDRESS}|{_ROOT}", above) else None,
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
        secondary=f"{address.split(':')[0]}:{secondary:02x}" if secondary else None,
        rate=transfer_rate(tree.text(f"{folder}/current_link_speed")),
        width=tree.integer(f"{folder}/current_link_width") or None,
        max_rate=transfer_rate(tree.text(f"{folder}/max_link_speed")),
        max_width=_lanes(tree.integer(f"{folder}/max_link_width")),
    )


def _lanes(width: int | None) -> int | None:
    # the kernel writes 255 where the device has no link of its own
    return width if width is not None and 0 < width < 255 else None


def _links(device: _PciDevice, parent: str | None, devices: dict[str, _PciDevice]) -> list[Link]:
    end = End(device.node, device.address, device.address)
    near = (
        End(Node.CPU, f"node {device.numa_node}", index=device.numa_node)
        if device.numa_node is not None
        else End(Node.CPU, "host")
    )
    above = devices.get(parent or "")
    root = End(Node.SWITCH, f"root complex {parent}") if parent and above is None else None
    other = root or (End(Node.SWITCH, parent, parent) if parent else near)
    rate, width = _common_limits(device, above)
    limits = {"max_gt_s": f"{rate:g}" if rate else "", "max_width": f"{width}" if width else ""}
    link = Link(
        source=KIND,
        a=end,
        b=other,
        kind="pcie",
        width=device.width,
        speed_gbit_s=device.rate,
        extra={key: value for key, value in limits.items() if value},
    )
    return [link] if root is None else [link, Link(source=KIND, a=root, b=near, kind="pcie")]


def _common_limits(device: _PciDevice, above: _PciDevice | None) -> tuple[float | None, int | None]:
    """(GT/s, lanes): the most that a device and the bridge above it can both do.

    None where one of them is not known: a virtual machine shows no bridge.
    """
    if above is None:
        return None, None
    rates, widths = (device.max_rate, above.max_rate), (device.max_width, above.max_width)
    return (
        None if None in rates else min(rate for rate in rates if rate is not None),
        None if None in widths else min(width for width in widths if width is not None),
    )


def _reading(device: _PciDevice, vendor: str, above: _PciDevice | None) -> Reading:
    rate, width = _common_limits(device, above)
    return Reading(
        source=KIND,
        vendor=vendor,
        pci=device.address,
        device_id=device.device_id,
        numa_node=device.numa_node,
        pcie=Pcie(
            generation=generation(device.rate),
            width=device.width,
            device_generation=generation(device.max_rate),
            device_width=device.max_width,
            max_generation=generation(rate),
            max_width=width,
        ),
    )
