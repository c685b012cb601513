"""RDMA devices and their ports, from the kernel's files.

Files: Linux ``Documentation/ABI/stable/sysfs-class-infiniband``. A device is a NIC, a
port is one link of it to whatever it is plugged into. A recording may hold the devices' folders
without the PCI device that ``device`` points to.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import pci_address, stated
from portagpu.facts.host.tree import Tree, as_tree, to_int
from portagpu.facts.readings.model import End, Findings, Link, Node

if TYPE_CHECKING:
    from pathlib import Path

KIND: Final = "sysfs infiniband"
FOLDER: Final = "sys/class/infiniband"

_LAYERS: Final = {"InfiniBand": "infiniband", "Ethernet": "roce"}
_RATE: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec \((\d{1,2})X")
_COUNTERS: Final = {
    "counters": (
        "link_downed", "link_error_recovery", "symbol_error", "local_link_integrity_errors",
        "excessive_buffer_overrun_errors", "port_rcv_errors", "port_xmit_discards",
        "port_rcv_data", "port_xmit_data", "port_xmit_wait",
    ),
    "hw_counters": (
        "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err",
        "roce_adp_retrans", "roce_slow_restart", "rx_icrc_encapsulated",
    ),
}  # fmt: skip
"""Counters that show a bad link, or how much it carried (in units of 4 bytes)."""


def read_infiniband(root: Tree | Path | str = "/", folder: str = FOLDER) -> Findings:
    """The devices below ``folder``: a link for each port, and one to the NUMA node of the device.

    Empty without any; a port whose rate or state cannot be read has None there.
    """
    tree = as_tree(root)
    links: list[Link] = []
    problems = []
    for name in tree.names(folder):
        device = f"{folder}/{name}"
        ports = tree.names(f"{device}/ports", r"\d{1,3}")
        if not ports:
            problems.append(f"{name} has no ports")
        nic = End(Node.NIC, name, _address(tree, device))
        links += [_port(tree, f"{device}/ports/{port}", port, nic) for port in ports]
        node = tree.integer(f"{device}/device/numa_node")
        about = {
            key: value
            for key in ("hca_type", "fw_ver", "board_id", "node_guid")
            if (value := stated(tree.text(f"{device}/{key}"))) is not None
        }
        # the kernel writes -1 where the machine does not say
        near = End(Node.CPU, f"node {node}", index=node) if node is not None and node >= 0 else None
        links.append(
            Link(source=KIND, a=nic, b=near or End(Node.CPU, "host"), kind="pcie", extra=about)
        )
    return Findings(kind=KIND, links=tuple(links), problems=tuple(problems))


def _address(tree: Tree, device: str) -> str | None:
    link = pci_address(tree.link_name(f"{device}/device"))
    return link or pci_address(
        tree.fields(f"{device}/device/uevent", separator="=").get("PCI_SLOT_NAME")
    )


def _port(tree: Tree, folder: str, port: str, nic: End) -> Link:
    rate = _RATE.match(tree.text(f"{folder}/rate") or "")
    state = tree.text(f"{folder}/state")
    total = float(rate.group(1)) if rate is not None else None
    lanes = int(rate.group(2)) if rate is not None else None
    layer = tree.text(f"{folder}/link_layer") or ""
    about = {
        key: value
        for key in ("rate", "state", "phys_state")
        if (value := stated(tree.text(f"{folder}/{key}"))) is not None
    }
    counters = {
        name: str(count)
        for group, names in _COUNTERS.items()
        for name in names
        if (count := to_int(tree.text(f"{folder}/{group}/{name}"))) is not None
    }
    return Link(
        source=KIND,
        a=nic,
        b=End(Node.SWITCH, f"{nic.name} port {port}"),
        kind=_LAYERS.get(layer, "network"),
        width=lanes,
        speed_gbit_s=total / lanes if total is not None and lanes else None,
        bandwidth_bytes_s=None if total is None else total * 1e9 / 8,
        # "4: ACTIVE": every other state carries no data
        up=None if not state else state.startswith("4"),
        extra=about | counters,
    )
