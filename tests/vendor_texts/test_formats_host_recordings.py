"""Real outputs of hosts next to the checkout: every fact that their manifest states is read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from portagpu.facts.formats.host import hwloc_xml, kernel_log, lspci, nccl_topo
from portagpu.facts.readings.model import Findings, Node
from portagpu.machine.inventory import kernel_links

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"
FOLDERS = {
    "hwloc-xml": hwloc_xml,
    "kernel-logs": kernel_log,
    "lspci": lspci,
    "nccl-topo-xml": nccl_topo,
}
pytestmark = pytest.mark.skipif(
    not (RECORDINGS / "nccl-topo-xml").is_dir(), reason="no recordings next to this checkout"
)


def _ends(findings: Findings, node: Node) -> set[str]:
    ends = (end for link in findings.links for end in (link.a, link.b))
    return {end.pci for end in ends if end.node is node and end.pci is not None}


def _pci(findings: Findings) -> int:
    """PCI devices: each states one link to what it is plugged into."""
    return sum(link.kind == "pcie" for link in findings.links)


def _kinds(findings: Findings) -> Counter[str]:
    return Counter(link.kind for link in findings.links)


def _nets(findings: Findings) -> int:
    return sum(link.kind in ("infiniband", "ethernet") for link in findings.links)


def _numa(findings: Findings) -> list[int | None]:
    ends = (link.b for link in findings.links if link.b.node is Node.CPU)
    return list(dict.fromkeys(end.index for end in ends))


def _indexed(findings: Findings) -> int:
    return sum(reading.index is not None for reading in findings.readings)


def _archs(findings: Findings) -> dict[tuple[str | None, int | None], int]:
    """(architecture, compute units) of the GPUs that the file has as such."""
    return Counter((r.arch, r.unit_count) for r in findings.readings if r.index is not None)


def _cpus(findings: Findings) -> set[tuple[str, str]]:
    ends = [link.extra for link in findings.links if link.b.node is Node.CPU]
    return {(extra["cpu arch"], extra["cpu vendor"]) for extra in ends}


def _nccl(
    cpus: list[int],
    gpus: int,
    archs: dict[tuple[str | None, int | None], int],
    nvlink: int,
    xgmi: int,
    net: int,
    pci: int,
    cpu: str = "AuthenticAMD",
) -> dict[str, tuple[Callable[[Findings], object], object]]:
    return {
        "numa": (_numa, cpus),
        "gpu": (_indexed, gpus),
        "gcn and sm": (_archs, archs),
        "nvlink": (lambda f: _kinds(f)["nvlink"], nvlink),
        "xgmi": (lambda f: _kinds(f)["xgmi"], xgmi),
        "net": (_nets, net),
        "pci": (_pci, pci),
        "arch/vendor": (_cpus, {("x86_64", cpu)}),
    }


def _xids(findings: Findings) -> Counter[str]:
    return Counter(event.code for event in findings.events if event.code.startswith("Xid"))


FACTS: dict[str, dict[str, tuple[Callable[[Findings], object], object]]] = {
    "hwloc-xml/nvidiaDGX2.xml": {
        "16 OSDev": (lambda f: [r.extra["os devices"] for r in f.readings],
                     [f"nvml{n}" for n in range(16)]),
        "28 PCIDev": (lambda f: (len(_ends(f, Node.GPU)), len({
            end.pci for link in f.links if link.kind == "nvlink" for end in (link.a, link.b)
        } - _ends(f, Node.GPU))), (16, 12)),
        "NVLinkBandwidth": (lambda f: {link.bandwidth_bytes_s for link in f.links
                                       if link.kind == "nvlink"}, {25e9}),
        "4 PU": (lambda f: sum(int(cpus, 16).bit_count() for cpus in {
            link.extra["cpuset"] for link in f.links if "cpuset" in link.extra}), 4),
        "GPUModel 16": (lambda f: Counter(r.name for r in f.readings),
                        {"Tesla V100-SXM3-32GB-H": 16}),
    },
    "kernel-logs/dmesg-xid-119.log": {
        "Xid 119": (lambda f: (_xids(f), {e.pci for e in f.events}),
                    ({"Xid 119": 5}, {"0000:9b:00.0"})),
        "text": (lambda f: "Timeout after 6s of waiting for RPC response from GPU4 GSP!"
                 in f.events[0].line, True),
    },
    "kernel-logs/nvidia-fabricmanager.log": {
        "[ERROR] [tid N] line": (lambda f: [(e.code, e.pci, e.fatal) for e in f.events],
                                 [("SXid 12028", "0000:86:00.0", False)]),
        "[date]": (lambda f: f.events[0].time, "Feb 27 2025 15:10:02"),
    },
    "kernel-logs/xid-lines-a.txt": {
        "Xid counts": (_xids, {"Xid 79": 3, "Xid 144": 2, "Xid 145": 10, "Xid 146": 5,
                               "Xid 148": 1, "Xid 149": 12, "Xid 154": 1,
                               "Xid of unknown form": 2}),
    },
    "lspci/amd-gpuop-lspci-pass.txt": {
        "8 NICs": (lambda f: len(_ends(f, Node.NIC)), 8),
        "no GPU": (lambda f: len(f.readings), 0),
    },
    "lspci/lspci-nn-a100.txt": {
        "A100": (lambda f: Counter(r.extra["pci name"] for r in f.readings),
                 {"NVIDIA Corporation GA100 [A100 SXM4 80GB]": 8}),
        "NVSwitch bridges": (lambda f: len(_ends(f, Node.SWITCH)), 6),
    },
    "nccl-topo-xml/aws-p4d-24xl-topo.xml": _nccl([0, 1], 0, {}, 0, 0, 0, 16, "GenuineIntel"),
    "nccl-topo-xml/azure-ndv4-topo.xml": _nccl([0, 1, 2, 3], 0, {}, 0, 0, 0, 20),
    "nccl-topo-xml/azure-ndv5-topo.xml": _nccl([0, 1], 0, {}, 0, 0, 0, 24, "GenuineIntel"),
    "nccl-topo-xml/oci-H100-topology.xml": _nccl(
        [0, 1], 8, {("sm_90", None): 8}, 32, 0, 16, 40, "GenuineIntel"),
    "nccl-topo-xml/rccl-topo_16p1h.xml": _nccl(
        [0, 1, 2, 3], 16, {("gfx90a", 104): 16}, 0, 56, 8, 52),
    "nccl-topo-xml/rccl-topo_8p6l_6nic.xml": _nccl([0, 1], 8, {("gfx908", 120): 8}, 0, 48, 6, 22),
    "nccl-topo-xml/rccl-topo_8p_90a.xml": _nccl([0], 8, {("gfx90a", 104): 8}, 0, 24, 1, 10),
    "nccl-topo-xml/rccl-topo_8p_940.xml": _nccl(
        [0, 1], 8, {("gfx942", 304): 8}, 0, 56, 8, 40, "GenuineIntel"),
    "nccl-topo-xml/rccl-topo_8p_pcie.xml": _nccl(
        [0], 8, {("gfx906", 64): 8}, 0, 0, 1, 19, "GenuineIntel"),
    "nccl-topo-xml/rccl-topo_8p_rome_4nics.xml": _nccl(
        [0, 1, 2, 3], 8, {("gfx908", 120): 8}, 0, 24, 4, 32),
    "nccl-topo-xml/rccl-topo_8p_rome_n4.xml": _nccl(
        [1, 2, 3, 5, 6, 7, 4], 8, {("gfx906", 64): 8}, 0, 16, 1, 17),
}  # fmt: skip
ROWS = [(path, name) for path, facts in FACTS.items() for name in facts]


def _parse(path: str) -> Findings:
    module = FOLDERS[path.split("/")[0]]
    text = (RECORDINGS / path).read_text(encoding="utf-8", errors="replace")
    assert module.matches(text), f"{path} is not recognised"
    return module.parse(text)


@pytest.mark.parametrize(("path", "name"), ROWS)
def test_a_stated_fact_is_read(path: str, name: str):
    read, expected = FACTS[path][name]
    assert read(_parse(path)) == expected


def test_every_recording_of_these_kinds_has_its_facts_here():
    present = {
        f"{folder}/{file.name}" for folder in FOLDERS for file in (RECORDINGS / folder).iterdir()
    }
    assert present == set(FACTS)


@pytest.mark.parametrize("path", FACTS)
def test_each_recording_is_of_one_format_only(path: str):
    text = (RECORDINGS / path).read_text(encoding="utf-8", errors="replace")
    assert [m.KIND for m in FOLDERS.values() if m.matches(text)] == [
        FOLDERS[path.split("/")[0]].KIND
    ]


def test_the_recorded_adapters_are_read():
    found = kernel_links.read_infiniband(RECORDINGS / "sysfs-infiniband" / "h100", ".")
    ports = {link.a.name: link for link in found.links if link.kind == "infiniband"}
    adapters = {link.a.name: link.extra for link in found.links if link.kind == "pcie"}
    assert set(ports) == {"mlx5_0", "mlx5_1", "mlx5_4"}
    assert adapters["mlx5_0"]["hca_type"] == "MT4129"
    assert adapters["mlx5_0"]["fw_ver"] == "28.41.1000"
    assert ports["mlx5_0"].extra["rate"] == "400 Gb/sec (4X NDR)"
    assert ports["mlx5_0"].bandwidth_bytes_s == 50e9
    assert ports["mlx5_0"].extra["state"] == "4: ACTIVE"
    assert ports["mlx5_0"].up is True
    assert ports["mlx5_1"].extra["link_downed"] == "255"
