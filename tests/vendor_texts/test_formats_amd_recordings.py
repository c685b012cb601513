"""Recorded outputs of real AMD machines: what is known of each, one row a fact.

The facts are those that the recordings' list states of their content; the recordings are not part
of the project, and without them nothing here runs.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.facts.host.gpus import KfdNode, read_kfd
from portagpu.facts.host.tree import Tree
from portagpu.machine.inventory.kernel_links import kfd_links, packages
from tests.support.host_trees import build
from tests.support.read_parts import read_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.facts.readings import Findings

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"

pytestmark = pytest.mark.skipif(
    not RECORDINGS.is_dir(), reason="no recordings next to this checkout"
)


@cache
def read(path: str) -> Findings:
    return read_all((RECORDINGS / path).read_text(encoding="utf-8"))


def files(*folders: str) -> list[str]:
    found = [file for folder in folders for file in sorted((RECORDINGS / folder).glob("*.*"))]
    return [str(file.relative_to(RECORDINGS)) for file in found]


@pytest.mark.parametrize("path", files("amd-smi", "rocm-smi", "rocminfo", "amdgpu-top"))
def test_every_recording_is_of_one_format_and_has_gpus(path: str) -> None:
    findings = read(path)
    assert findings.readings
    assert {reading.vendor for reading in findings.readings} == {"amd"}
    assert {reading.source for reading in findings.readings} == {findings.kind}


MIB = 1 << 20
SMI, ROCM = "amd-smi", "rocm-smi"

FACTS: list[tuple[str, str, Callable[[Findings], Any], Any]] = [
    (f"{SMI}/changelog-list-partitioned.txt", "partition ids",
     lambda f: [r.extra["partition_id"] for r in f.readings], ["0", "0"]),
    (f"{SMI}/changelog-list-partitioned.txt", "a UUID that was taken out is none",
     lambda f: [r.unique_id for r in f.readings], [None, None]),
    (f"{SMI}/changelog-metric-clock.txt", "clocks of GFX_0 to GFX_7",
     lambda f: (f.readings[0].state.clock_mhz, f.readings[0].state.max_clock_mhz), (113, 1800)),
    (f"{SMI}/changelog-metric-clock.txt", "memory clock",
     lambda f: f.readings[0].state.memory_clock_mhz, 900),
    (f"{SMI}/changelog-metric-usage-xcp.txt", "usage with arrays a partition",
     lambda f: [r.state.utilization_percent for r in f.readings], [0, 0]),
    (f"{SMI}/changelog-topology-json-a.txt", "links of each GPU",
     lambda f: [(k.kind, k.weight, k.hops, k.peer_access) for k in f.links],
     [("pcie", 40, 2, False)] * 2),
    (f"{SMI}/changelog-topology-json-a.txt", "bandwidth N/A is not 0",
     lambda f: {k.bandwidth_bytes_s for k in f.links}, {None}),
    (f"{SMI}/changelog-topology-tables.txt", "8x8 tables ACCESS, WEIGHT, HOPS, TYPE, NUMA BW",
     lambda f: Counter((k.peer_access, k.weight, k.hops, k.kind, k.bandwidth_bytes_s)
                       for k in f.links),
     {(True, 15, 1, "xgmi", 50e9): 56}),
    (f"{SMI}/changelog-topology-tables.txt", "first address",
     lambda f: f.readings[0].pci, "0000:0c:00.0"),
    (f"{SMI}/changelog-xgmi-table.txt", "8 GPUs", lambda f: len(f.readings), 8),
    (f"{SMI}/changelog-xgmi-table.txt", "32 Gb/s, 512 Gb/s, XGMI",
     lambda f: {(k.speed_gbit_s, k.bandwidth_bytes_s, k.kind) for k in f.links},
     {(32, 64e9, "xgmi")}),
    (f"{SMI}/mi300x-list.txt", "GPUs with address and UUID",
     lambda f: [(r.pci is not None, r.unique_id is not None) for r in f.readings],
     [(True, True)] * 3),
    (f"{SMI}/mi300x-list.txt", "UUID of GPU 0", lambda f: f.readings[0].extra["amd-smi uuid"],
     "afff74a1-0000-1000-8054-e92b0a5d57c8"),
    (f"{SMI}/mi300x-list.txt", "its serial number, as static prints it",
     lambda f: f.readings[0].unique_id, 0xAF54E92B0A5D57C8),
    (f"{SMI}/mi300x-monitor.txt", "8 rows",
     lambda f: [r.state.power_w for r in f.readings], [182, 143, 117, 116, 118, 118, 116, 118]),
    (f"{SMI}/mi300x-process-csv.txt", "a process on each of 8 GPUs",
     lambda f: [r.state.processes for r in f.readings], [1] * 8),
    (f"{SMI}/mi300x-static.txt", "market name", lambda f: f.readings[0].name, "MI300X-O"),
    (f"{SMI}/mi300x-static.txt", "device id", lambda f: f.readings[0].device_id, 0x74A1),
    (f"{SMI}/mi300x-static.txt", "serial number",
     lambda f: f.readings[0].unique_id, 0xAF54E92B0A5D57C8),
    (f"{SMI}/mi300x-topology.txt", "8 GPUs, first address",
     lambda f: (len(f.readings), f.readings[0].pci), (8, "0000:05:00.0")),
    (f"{SMI}/mi300x-topology.txt", "ACCESS and WEIGHT; the others were left out",
     lambda f: {(k.peer_access, k.weight, k.hops, k.kind) for k in f.links},
     {(True, 15, None, "unknown")}),
    (f"{SMI}/mi300x-topology.txt", "it says that parts were left out",
     lambda f: len(f.problems), 1),
    ("amdgpu-top/sample.json", "versions of ROCm and of the tool",
     lambda f: (f.versions["rocm"], f.versions["amdgpu_top"]), ("7.12.0", "0.11.5")),
    ("amdgpu-top/sample.json", "time", lambda f: f.taken, "2026-06-14T10:10:31.197455510+00:00"),
    ("amdgpu-top/sample.json", "devices and suspended devices",
     lambda f: [r.extra.get("runtime_status") for r in f.readings], [None, "suspended"]),
    ("amdgpu-top/sample.json", "names",
     lambda f: [r.name for r in f.readings], ["AMD Radeon Graphics", "AMD Radeon RX 9060 XT"]),
    (f"{ROCM}/concise-4xMI300A-rocprofsdk-docs.txt", "nodes 4 to 7",
     lambda f: [r.extra["node id"] for r in f.readings], ["4", "5", "6", "7"]),
    (f"{ROCM}/concise-4xMI300A-rocprofsdk-docs.txt", "device id",
     lambda f: {r.device_id for r in f.readings}, {0x74A0}),
    (f"{ROCM}/concise-4xMI300A-rocprofsdk-docs.txt", "GUIDs",
     lambda f: [r.extra["guid"] for r in f.readings], ["50375", "20890", "44670", "15139"]),
    (f"{ROCM}/concise-4xMI300A-rocprofsdk-docs.txt", "NPS1, SPX",
     lambda f: {(r.memory_partition, r.compute_partition) for r in f.readings}, {("NPS1", "SPX")}),
    (f"{ROCM}/concise-4xMI300A-rocprofsdk-docs.txt", "cap of 550 W",
     lambda f: {r.state.power_limit_w for r in f.readings}, {550}),
    (f"{ROCM}/concise-8xmi300x-rocm61.txt", "model, temperature, power, cap of GPU 0",
     lambda f: (f.readings[0].subsystem_id, f.readings[0].state.temperatures_c,
                f.readings[0].state.power_w, f.readings[0].state.power_limit_w),
     (0x74A1, {"junction": 35}, 140, 750)),
    (f"{ROCM}/concise-8xmi300x-rocm61.txt", "partitions and clocks of GPU 0",
     lambda f: (f.readings[0].memory_partition, f.readings[0].compute_partition,
                f.readings[0].state.clock_mhz, f.readings[0].state.memory_clock_mhz),
     ("NPS1", "SPX", 132, 900)),
    (f"{ROCM}/concise-8xmi300x-rocm61.txt", "names",
     lambda f: [r.name for r in f.readings], ["AMD Instinct MI300X"] * 8),
    (f"{ROCM}/concise-mi210-node-affinity-blog.txt", "8 devices with model and revision",
     lambda f: [r.subsystem_id for r in f.readings], [0x0C34] * 8),
    (f"{ROCM}/concise-mi210-node-affinity-blog.txt", "partitions N/A are none",
     lambda f: {(r.memory_partition, r.compute_partition) for r in f.readings}, {(None, None)}),
    (f"{ROCM}/concise-rocm5-layout.txt", "row of GPU 0",
     lambda f: (f.readings[0].state.temperatures_c, f.readings[0].state.power_w,
                f.readings[0].state.clock_mhz, f.readings[0].state.power_limit_w,
                f.readings[0].state.utilization_percent),
     ({"edge": 52}, 179, 1700, 300, 100)),
    (f"{ROCM}/json-mi100_rocm571.json", "6 cards", lambda f: len(f.readings), 6),
    (f"{ROCM}/json-mi100_rocm571.json", "hops between devices",
     lambda f: Counter((k.hops, k.weight, k.kind) for k in f.links), {(2, 40, "pcie"): 30}),
    (f"{ROCM}/json-mi100_rocm571.json", "device id", lambda f: f.readings[0].device_id, 0x738C),
    (f"{ROCM}/json-mi100_rocm571.json", "unique id N/A is none",
     lambda f: {r.unique_id for r in f.readings}, {None}),
    (f"{ROCM}/json-mi100_rocm571.json", "VBIOS",
     lambda f: f.readings[0].firmware["VBIOS"], "113-D3430400-037"),
    (f"{ROCM}/json-mi100_rocm571.json", "edge temperature",
     lambda f: f.readings[0].state.temperatures_c["edge"], 31),
    (f"{ROCM}/json-rx6700xt_rocm430.json", "one card, driver's version",
     lambda f: (len(f.readings), f.versions), (1, {"amdgpu": "6.3.6"})),
    (f"{ROCM}/json-rx6700xt_rocm430.json", "device id", lambda f: f.readings[0].device_id, 0x73DF),
    (f"{ROCM}/json-rx6700xt_rocm430.json", "the vendor's id is not a name",
     lambda f: f.readings[0].name, None),
    (f"{ROCM}/json-rx6700xt_rocm430.json", "unique id N/A is none",
     lambda f: f.readings[0].unique_id, None),
    (f"{ROCM}/json-rx6700xt_rocm430.json", "VBIOS",
     lambda f: f.readings[0].firmware["VBIOS"], "113-67XA6SSB1-D01"),
    (f"{ROCM}/json-rx6700xt_rocm430.json", "edge temperature; HBM N/A is not 0",
     lambda f: f.readings[0].state.temperatures_c, {"edge": 45, "junction": 47, "memory": 46}),
    (f"{ROCM}/json-rx6700xt_rocm602.json", "one card, driver's version",
     lambda f: (len(f.readings), f.versions), (1, {"amdgpu": "6.3.6"})),
    (f"{ROCM}/json-rx6700xt_rocm602.json", "device id", lambda f: f.readings[0].device_id, 0x73DF),
    (f"{ROCM}/json-rx6700xt_rocm602.json", "unique id N/A is none",
     lambda f: f.readings[0].unique_id, None),
    (f"{ROCM}/json-rx6700xt_rocm602.json", "VBIOS",
     lambda f: f.readings[0].firmware["VBIOS"], "113-67XA6SSB1-D01"),
    (f"{ROCM}/json-rx6700xt_rocm602.json", "power of a secondary die is not 0",
     lambda f: f.readings[0].state.power_w, None),
    (f"{ROCM}/json-vega-10-XT.json", "one card, driver's version",
     lambda f: (len(f.readings), f.versions), (1, {"amdgpu": "5.9.25"})),
    (f"{ROCM}/json-vega-10-XT.json", "device id", lambda f: f.readings[0].device_id, 0x6861),
    (f"{ROCM}/json-vega-10-XT.json", "unique id",
     lambda f: f.readings[0].unique_id, 0x2150E7D042A1124),
    (f"{ROCM}/json-vega-10-XT.json", "VBIOS",
     lambda f: f.readings[0].firmware["VBIOS"], "113-D0510100-106"),
    (f"{ROCM}/json-vega-10-XT.json", "edge temperature",
     lambda f: f.readings[0].state.temperatures_c["edge"], 39),
    (f"{ROCM}/json-vega-10-XT.json", "no name is none", lambda f: f.readings[0].name, None),
    (f"{ROCM}/showbus-lumi-mi250x-1.txt", "four GPUs: C9, CE, D1, D6",
     lambda f: [r.pci for r in f.readings],
     ["0000:c9:00.0", "0000:ce:00.0", "0000:d1:00.0", "0000:d6:00.0"]),
    (f"{ROCM}/showproductname-mi210.txt", "series",
     lambda f: f.readings[0].name, "AMD INSTINCT MI250 (MCM) OAM AC MBA"),
    (f"{ROCM}/showproductname-mi210.txt", "model", lambda f: f.readings[0].subsystem_id, 0x0B0C),
    (f"{ROCM}/showproductname-mi300x-rocm62.txt", "series",
     lambda f: f.readings[0].name, "AMD Instinct MI300X OAM"),
    (f"{ROCM}/showproductname-mi300x-rocm62.txt", "model is the device's",
     lambda f: f.readings[0].device_id, 0x74A1),
    (f"{ROCM}/showproductname-mi300x-rocm62.txt", "SKU",
     lambda f: f.readings[0].extra["card sku"], "MI3SRIOV"),
    (f"{ROCM}/showtoponuma-8xMI210.txt", "NUMA nodes",
     lambda f: [r.numa_node for r in f.readings], [3, 2, 1, 0, 7, 6, 5, 4]),
    ("rocminfo/8xMI210-gfx90a.txt", "8 agents gfx90a",
     lambda f: [r.arch for r in f.readings], ["gfx90a"] * 8),
    ("rocminfo/8xMI210-gfx90a.txt", "marketing name",
     lambda f: {r.name for r in f.readings}, {"AMD Instinct MI210"}),
    ("rocminfo/8xMI210-gfx90a.txt", "104 compute units",
     lambda f: {r.unit_count for r in f.readings}, {104}),
    ("rocminfo/8xMI210-gfx90a.txt", "ISA",
     lambda f: {r.extra["isa"] for r in f.readings}, {"gfx90a:sramecc+:xnack-"}),
    ("rocminfo/8xMI210-gfx90a.txt", "runtime version", lambda f: f.versions["hsa"], "1.1"),
    ("rocminfo/8xMI210-gfx90a.txt", "eight UUIDs and addresses",
     lambda f: (len({r.unique_id for r in f.readings}), len({r.pci for r in f.readings})), (8, 8)),
    ("rocminfo/mi300x-gfx942-excerpt.txt", "architecture, wavefront, compute units",
     lambda f: [(r.arch, r.warp_size, r.unit_count) for r in f.readings], [("gfx942", 64, 304)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "fact", "look", "expected"), FACTS, ids=[f"{row[0]}: {row[1]}" for row in FACTS]
)
def test_recorded_fact(
    path: str, fact: str, look: Callable[[Findings], Any], expected: object
) -> None:
    assert look(read(path)) == expected, fact


# --- KFD trees -------------------------------------------------------------------------------

MI210, CPX, VEGA = "mi210-8gpu-xgmi-pcie", "mi300x-cpx-64part", "vega10-1gpu-plus-copy"


@cache
def gpu_nodes(name: str) -> tuple[KfdNode, ...]:
    return read_kfd(Tree(RECORDINGS / "kfd" / name), "nodes")


def node_count(name: str) -> int:
    return len(Tree(RECORDINGS / "kfd" / name).names("nodes"))


def same(name: str, field: str) -> set[object]:
    return {getattr(node, field) for node in gpu_nodes(name)}


@cache
def cpx_links() -> Counter[tuple[object, ...]]:
    """Of the complete tree: the folder next to it has the links of five nodes only."""
    with (
        TemporaryDirectory() as folder,
        tarfile.open(RECORDINGS / "kfd" / f"{CPX}.full.tar.gz") as archive,
    ):
        archive.extractall(folder, filter="data")
        found = kfd_links(Tree(Path(folder)), "nodes")
    return Counter(
        (k.kind, k.weight, k.bandwidth_bytes_s, k.extra.get("within")) for k in found.links
    )


@cache
def mi210_links(name: str) -> Counter[tuple[object, ...]]:
    found = kfd_links(Tree(RECORDINGS / "kfd" / MI210), "nodes")
    return Counter(
        (k.kind, k.weight, k.bandwidth_bytes_s) for k in found.links if k.extra["list"] == name
    )


KFD_FACTS: list[tuple[str, str, Callable[[], Any], Any]] = [
    (MI210, "10 nodes, 8 of them GPUs", lambda: (node_count(MI210), len(gpu_nodes(MI210))),
     (10, 8)),
    (MI210, "416 SIMDs", lambda: same(MI210, "simd_count"), {416}),
    (MI210, "gfx_target_version 90010", lambda: same(MI210, "arch"), {"gfx90a"}),
    (MI210, "device id", lambda: same(MI210, "device_id"), {0x740F}),
    (MI210, "wavefront of 64", lambda: same(MI210, "warp_size"), {64}),
    (MI210, "io_links: 24 xGMI, 16 PCIe, 2 between CPUs", lambda: mi210_links("io_links"),
     {("xgmi", 15, 50e9): 24, ("pcie", 20, 32e9): 16, ("cpu", 32, None): 2}),
    (MI210, "p2p_links: 32 of weight 72, 16 of weight 52", lambda: mi210_links("p2p_links"),
     {("pcie", 72, None): 32, ("pcie", 52, None): 16}),
    (MI210, "no file name, no memory banks",
     lambda: (same(MI210, "name"), same(MI210, "memory_bytes")), ({None}, {None})),
    (MI210, "two hives of four",
     lambda: sorted(Counter(n.hive_id for n in gpu_nodes(MI210)).values()), [4, 4]),
    (MI210, "8 unique ids", lambda: len(same(MI210, "unique_id")), 8),
    (CPX, "65 nodes, 63 of them GPUs", lambda: (node_count(CPX), len(gpu_nodes(CPX))), (65, 63)),
    (CPX, "152 SIMDs, 38 units",
     lambda: (same(CPX, "simd_count"), same(CPX, "unit_count")), ({152}, {38})),
    (CPX, "one XCC", lambda: same(CPX, "xcc_count"), {1}),
    (CPX, "gfx_target_version 90402", lambda: same(CPX, "arch"), {"gfx942"}),
    (CPX, "device id", lambda: same(CPX, "device_id"), {0x74A1}),
    (CPX, "local_mem_size 0 is unknown", lambda: same(CPX, "memory_bytes"), {None}),
    (CPX, "one hive", lambda: len(same(CPX, "hive_id")), 1),
    (CPX, "xGMI of weight 13 at 819200 in a package",
     lambda: cpx_links()["xgmi", 13, 819200e6, "package"], 434),
    (CPX, "xGMI of weight 41 without bandwidth between packages",
     lambda: cpx_links()["xgmi", 41, None, None], 3472),
    (CPX, "nodes 2 to 64", lambda: [n.index for n in gpu_nodes(CPX)], [*range(2, 65)]),
    (CPX, "8 packages of 63 partitions",
     lambda: sorted(len(p.nodes) for p in packages(gpu_nodes(CPX))), [7, *[8] * 7]),
    (CPX, "63 locations and render nodes",
     lambda: (len(same(CPX, "location_id")), len(same(CPX, "render_minor"))), (63, 63)),
    (VEGA, "3 nodes, 2 of them GPUs", lambda: (node_count(VEGA), len(gpu_nodes(VEGA))), (3, 2)),
    (VEGA, "256 SIMDs", lambda: same(VEGA, "simd_count"), {256}),
    (VEGA, "device id", lambda: same(VEGA, "device_id"), {26720}),
    (VEGA, "wavefront of 64", lambda: same(VEGA, "warp_size"), {64}),
    (VEGA, "one location", lambda: len(same(VEGA, "location_id")), 1),
    (VEGA, "no gfx_target_version, no num_xcc, no hive",
     lambda: (same(VEGA, "arch"), same(VEGA, "xcc_count"), same(VEGA, "hive_id")),
     ({None}, {None}, {None})),
    (VEGA, "domain is 0 where the kernel has none", lambda: same(VEGA, "domain"), {0}),
    (VEGA, "unique ids", lambda: None in same(VEGA, "unique_id"), False),
    (VEGA, "an empty name is none", lambda: same(VEGA, "name"), {None}),
    (VEGA, "memory banks", lambda: same(VEGA, "memory_bytes"), {17163091968}),
    (VEGA, "the copy's link names the other node",
     lambda: kfd_links(Tree(RECORDINGS / "kfd" / VEGA), "nodes").problems,
     ("links in another node's folder, left out: 1",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fact", "look", "expected"), KFD_FACTS, ids=[f"{r[0]}: {r[1]}" for r in KFD_FACTS]
)
def test_recorded_fact_of_a_tree(
    name: str, fact: str, look: Callable[[], Any], expected: object
) -> None:
    assert look() == expected, f"{name}: {fact}"


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("simd_count", 192),
        ("warp_size", 32),
        ("unit_count", 96),
        ("device_id", 29772),
        ("xcc_count", 1),
        ("arch", "gfx1100"),
        ("pci", "0000:86:00.0"),
        ("hive_id", None),
    ],
)
def test_recorded_fact_of_a_consumer_gpu(tmp_path: Path, field: str, expected: object) -> None:
    text = (RECORDINGS / "kfd" / "rx7900xtx-node-properties.txt").read_text(encoding="utf-8")
    (node,) = read_kfd(Tree(build(tmp_path, {"nodes/1/properties": text})), "nodes")
    assert getattr(node, field) == expected
