"""Links in KFD trees: units, flags, and trees that are incomplete or change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pytest

from portagpu.facts.host.gpus import read_kfd
from portagpu.facts.host.tree import Tree
from portagpu.facts.readings import Findings, Link, Node
from portagpu.machine.inventory.kernel_links import kfd_links, packages
from tests.support.host_trees import KFD, build, gfx942_node, kfd_node

if TYPE_CHECKING:
    from pathlib import Path

CPU = {"cpu_cores_count": 64, "simd_count": 0, "vendor_id": 0, "location_id": 0}


def link(start: int, number: int, **properties: int) -> dict[str, str]:
    """A link in the folder of node ``start``; ``p2p`` puts it into the other list."""
    kind = "p2p_links" if properties.pop("p2p", 0) else "io_links"
    lines = {"type": 11, "node_from": start, "weight": 15, "flags": 1} | properties
    text = "\n".join(f"{key} {value}" for key, value in lines.items())
    return {f"{KFD}/{start}/{kind}/{number}/properties": text}


def machine(*links: dict[str, str]) -> dict[str, str]:
    """A socket, nodes 3 and 7 as two GPUs of a hive; the numbers have gaps."""
    files = (
        kfd_node(0, **CPU) | gfx942_node(3, 0x6300, hive_id=5) | gfx942_node(7, 0x4300, hive_id=5)
    )
    for one in links:
        files |= one
    return files


def read(tmp_path: Path, *links: dict[str, str]) -> Findings:
    return kfd_links(Tree(build(tmp_path, machine(*links))))


def only(findings: Findings) -> Link:
    (found,) = findings.links
    assert findings.problems == ()
    return found


def test_an_xgmi_link_of_two_gpus(tmp_path: Path) -> None:
    found = only(read(tmp_path, link(3, 0, node_to=7, min_bandwidth=50000, max_bandwidth=100000)))
    assert (found.kind, found.weight, found.bandwidth_bytes_s) == ("xgmi", 15, 100e9)
    assert (found.a.node, found.a.index, found.a.pci) == (Node.GPU, 3, "0000:63:00.0")
    assert (found.b.name, found.peer_access) == ("node 7", True)
    assert found.extra == {"list": "io_links", "min_bandwidth_bytes_s": "50000000000"}


@pytest.mark.parametrize(
    ("number", "kind"), [(11, "xgmi"), (2, "pcie"), (1, "cpu"), (5, "cpu"), (14, "type 14")]
)
def test_types(tmp_path: Path, number: int, kind: str) -> None:
    assert only(read(tmp_path, link(3, 0, node_to=0, type=number))).kind == kind


def test_a_link_to_a_socket_states_no_access_between_peers(tmp_path: Path) -> None:
    found = only(read(tmp_path, link(0, 0, node_to=3, type=2, max_bandwidth=64000)))
    assert (found.a.node, found.a.pci, found.peer_access) == (Node.CPU, None, None)


@pytest.mark.parametrize("bandwidth", [{}, {"max_bandwidth": 0}, {"max_bandwidth": 1 << 70}])
def test_bandwidth_that_is_not_stated(tmp_path: Path, bandwidth: dict[str, int]) -> None:
    assert only(read(tmp_path, link(3, 0, node_to=7, **bandwidth))).bandwidth_bytes_s is None


@pytest.mark.parametrize(("flags", "access"), [(1, True), (1 | 1 << 4, False), (0, None)])
def test_flags(tmp_path: Path, flags: int, access: bool | None) -> None:
    found = only(read(tmp_path, link(3, 0, node_to=7, p2p=1, type=2, flags=flags)))
    assert found.peer_access is access
    assert found.extra["list"] == "p2p_links"


def test_partitions_of_one_package(tmp_path: Path) -> None:
    files = kfd_node(0, **CPU)
    for index in (1, 2):
        files |= gfx942_node(index, 0x500 + index, unique_id=9, num_xcc=2, hive_id=5)
    files |= gfx942_node(3, 0x600, unique_id=10, hive_id=5)
    files |= link(1, 0, node_to=2, weight=13) | link(1, 1, node_to=3)
    tree = Tree(build(tmp_path, files))
    first, second = packages(read_kfd(tree))
    assert [node.index for node in first.nodes] == [1, 2]
    assert (first.xcc_count, first.hive_id, second.xcc_count) == (4, 5, None)
    inside, outside = kfd_links(tree).links
    assert (inside.extra.get("within"), outside.extra.get("within")) == ("package", None)


def test_two_sockets_are_not_a_package(tmp_path: Path) -> None:
    files = kfd_node(0, **CPU) | kfd_node(1, **CPU) | link(0, 0, node_to=1, type=1)
    (found,) = kfd_links(Tree(build(tmp_path, files))).links
    assert (found.kind, found.a.node, found.b.node) == ("cpu", Node.CPU, Node.CPU)
    assert "within" not in found.extra


def test_gpus_without_a_unique_id_are_packages_of_their_own(tmp_path: Path) -> None:
    files = gfx942_node(1, 0x500, unique_id=0) | gfx942_node(2, 0x600, unique_id=0)
    assert len(packages(read_kfd(Tree(build(tmp_path, files))))) == 2


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (link(3, 0, node_to=9), "links to a node that is not there, left out: 1"),
        (link(3, 0, node_to=-1), "links to a node that is not there, left out: 1"),
        (link(3, 0, node_to=3), "links from a node to itself, left out: 1"),
        (link(3, 0, node_from=7, node_to=0), "links in another node's folder, left out: 1"),
        (link(3, 0), "links without properties, left out: 1"),
        ({f"{KFD}/3/io_links/0/other": "x"}, "links without properties, left out: 1"),
        ({f"{KFD}/3/io_links/0/properties": "\0\ufffd"}, "links without properties, left out: 1"),
    ],
)
def test_links_that_cannot_be(tmp_path: Path, bad: dict[str, str], problem: str) -> None:
    findings = read(tmp_path, bad, link(7, 0, node_to=3))
    assert [found.b.index for found in findings.links] == [3]
    assert findings.problems == (problem,)


def test_a_link_that_is_stated_twice_counts_once(tmp_path: Path) -> None:
    findings = read(tmp_path, link(3, 0, node_to=7), link(3, 5, node_to=7, weight=99))
    assert [found.weight for found in findings.links] == [15]


def test_files_that_point_at_one_another_end_nothing(tmp_path: Path) -> None:
    root = build(
        tmp_path,
        machine(link(7, 0, node_to=3)),
        {f"{KFD}/3/io_links": "io_links", f"{KFD}/0/p2p_links": "../0"},
    )
    findings = kfd_links(Tree(root))
    assert [found.a.index for found in findings.links] == [7]


def test_no_tree_has_no_links(tmp_path: Path) -> None:
    assert kfd_links(Tree(tmp_path)) == Findings(kind="kfd links")


@dataclass(frozen=True, slots=True)
class Changing(Tree):
    """A tree whose topology is another one at each look, and whose last GPU is then gone."""

    looks: ClassVar[list[str]] = []

    def text(self, path: str) -> str | None:
        if path.endswith("generation_id"):
            self.looks.append(path)
            return str(len(self.looks))
        return None if "/7/" in path else super(Changing, self).text(path)


def test_a_topology_that_changes_while_it_is_read_is_said(tmp_path: Path) -> None:
    files = machine(link(3, 0, node_to=7), link(3, 1, node_to=0, type=2))
    findings = kfd_links(Changing(build(tmp_path, files)))
    assert [found.b.index for found in findings.links] == [0]
    assert findings.problems == (
        "links to a node that is not there, left out: 1",
        "the topology changed while it was read; read it again",
    )


def test_what_a_node_states_next_to_its_units(tmp_path: Path) -> None:
    files = gfx942_node(1, 0x500, wave_front_size=64, num_xcc=8, hive_id=5)
    files |= {f"{KFD}/1/name": "ip discovery"}
    files |= kfd_node(2, simd_count=4, vendor_id=0x1002, location_id=8, local_mem_size=1024)
    new, old = read_kfd(Tree(build(tmp_path, files)))
    assert (new.name, new.warp_size, new.xcc_count, new.hive_id) == ("ip discovery", 64, 8, 5)
    assert new.simd_count == 1216
    assert (old.arch, old.name, old.warp_size, old.xcc_count, old.hive_id) == (None,) * 5
    assert old.memory_bytes == 1024
