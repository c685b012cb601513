"""Links in the kernel's files: those of the KFD topology tree, and InfiniBand ports.

The amdgpu kernel driver publishes the tree (Linux ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``;
numbers of types and flags: ``kfd_crat.h``). ``io_links`` are the direct links, ``p2p_links`` the
paths that lead through a socket to another GPU or socket. Bandwidths are in MB/s of 10^6 bytes,
from lanes and their raw rate (``amdgpu_amdkfd.c``: an xGMI link of 16 lanes of 25 Gbit/s is 50000),
and 0 where the driver does not know: of an indirect xGMI peer, of every p2p link.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import pci_address, stated
from portagpu.facts.host.gpus import NODES, KfdNode, kfd_properties, read_kfd, sum_if_known
from portagpu.facts.host.tree import Tree, as_tree, to_int
from portagpu.facts.readings.model import End, Findings, Link, Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_KFD_KIND: Final = "kfd links"

# CRAT_IOLINK_TYPE_*: HyperTransport and QPI join sockets
_TYPES: Final = {1: "cpu", 2: "pcie", 5: "cpu", 11: "xgmi"}
_ENABLED: Final = 1 << 0  # CRAT_IOLINK_FLAGS_ENABLED
_NO_PEER_DMA: Final = 1 << 4  # CRAT_IOLINK_FLAGS_NO_PEER_TO_PEER_DMA
INDIRECT: Final = "p2p_links"
"""The list of paths through a socket: the device at their end is attached elsewhere."""
_LISTS: Final = ("io_links", INDIRECT)


@dataclass(frozen=True, slots=True)
class Package:
    """One GPU: its node, or the nodes of its compute partitions, in the tree's order.

    ``xcc_count`` counts the accelerator dies of the nodes together; None where a kernel does not
    state it.
    """

    unique_id: int | None
    hive_id: int | None
    nodes: tuple[KfdNode, ...]
    xcc_count: int | None


def packages(nodes: Iterable[KfdNode]) -> tuple[Package, ...]:
    """The GPUs that ``nodes`` are parts of: those with one unique id; without one, each its own."""
    groups: dict[tuple[str, int], list[KfdNode]] = {}
    for node in nodes:
        key = ("node", node.index) if node.unique_id is None else ("id", node.unique_id)
        groups.setdefault(key, []).append(node)
    return tuple(
        Package(
            unique_id=members[0].unique_id,
            hive_id=members[0].hive_id,
            nodes=tuple(members),
            xcc_count=sum_if_known(node.xcc_count for node in members),
        )
        for members in groups.values()
    )


def kfd_links(tree: Tree, nodes: str = NODES) -> Findings:
    """Every link below ``nodes``; another source reads the GPUs themselves.

    An end is "node 2", with the node's number as its index. ``extra`` has the list that the link
    is in, the least bandwidth, and "within": "package" between partitions of one GPU. Links to
    themselves or to nodes that are not there are left out with a sentence, as is what vanished
    while it was read.
    """
    counter = f"{nodes.rpartition('/')[0]}/generation_id"
    before = tree.text(counter)
    gpus = read_kfd(tree, nodes)
    ends = _ends(tree, nodes, gpus)
    owners = {node.index: number for number, p in enumerate(packages(gpus)) for node in p.nodes}
    found: dict[tuple[str, int, int], Link] = {}
    lost: dict[str, int] = {}
    for start in ends:
        for kind, values in _link_entries(tree, f"{nodes}/{start}"):
            stop = values.get("node_to")
            problem = _problem(values, start, stop, ends)
            if problem is not None or stop is None:
                lost[problem or ""] = lost.get(problem or "", 0) + 1
                continue
            same = owners.get(start, -1) == owners.get(stop, -2)
            found.setdefault(
                (kind, start, stop), _link(values, ends[start], ends[stop], kind, same)
            )
    problems = [f"links {problem}, left out: {number}" for problem, number in lost.items()]
    if tree.text(counter) != before:
        problems.append("the topology changed while it was read; read it again")
    return Findings(kind=_KFD_KIND, links=tuple(found.values()), problems=tuple(problems))


def _ends(tree: Tree, nodes: str, gpus: tuple[KfdNode, ...]) -> dict[int, End]:
    """The ends by node number: GPUs as they are read, every other node with properties a CPU."""
    addresses = {gpu.index: gpu.pci for gpu in gpus}
    found: dict[int, End] = {}
    for name in tree.names(nodes, r"[0-9]{1,9}"):
        index = int(name)
        values = {} if index in addresses else kfd_properties(tree, f"{nodes}/{name}")
        if index in addresses or values.get("simd_count", 0) > 0:
            found[index] = End(Node.GPU, f"node {index}", addresses.get(index), index)
        elif values:
            found[index] = End(Node.CPU, f"node {index}", index=index)
    return found


def _link_entries(tree: Tree, folder: str) -> Iterator[tuple[str, Mapping[str, int]]]:
    for kind in _LISTS:
        for number in tree.names(f"{folder}/{kind}", r"[0-9]{1,9}"):
            yield kind, kfd_properties(tree, f"{folder}/{kind}/{number}")


def _problem(
    values: Mapping[str, int], start: int, stop: int | None, ends: Mapping[int, End]
) -> str | None:
    """Why a link cannot be used, in words that follow "links"."""
    if stop is None:
        return "without properties"
    if values.get("node_from", start) != start:
        return "in another node's folder"
    if stop == start:
        return "from a node to itself"
    return None if stop in ends else "to a node that is not there"


def _link(values: Mapping[str, int], a: End, b: End, kind: str, same_package: bool) -> Link:
    number, flags = values.get("type"), values.get("flags", 0)
    least = values.get("min_bandwidth", 0)
    extra = {"list": kind}
    if least > 0:
        extra["min_bandwidth_bytes_s"] = f"{least * 10**6}"
    if same_package:
        extra["within"] = "package"
    between_gpus = a.node is Node.GPU and b.node is Node.GPU
    most = values.get("max_bandwidth", 0)
    return Link(
        source=_KFD_KIND,
        a=a,
        b=b,
        kind=_TYPES.get(number, f"type {number}") if number is not None else "unknown",
        # a number above 32 bits is not a bandwidth
        bandwidth_bytes_s=most * 1e6 if 0 < most < 1 << 32 else None,
        weight=values.get("weight"),
        peer_access=not flags & _NO_PEER_DMA if between_gpus and flags & _ENABLED else None,
        extra=extra,
    )


INFINIBAND_KIND: Final = "sysfs infiniband"
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
            Link(
                source=INFINIBAND_KIND,
                a=nic,
                b=near or End(Node.CPU, "host"),
                kind="pcie",
                extra=about,
            )
        )
    return Findings(kind=INFINIBAND_KIND, links=tuple(links), problems=tuple(problems))


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
        source=INFINIBAND_KIND,
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
