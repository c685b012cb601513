"""NVIDIA's outputs as real machines printed them: what their list of sources states of each.

The recordings are not part of the project; without them these tests are skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.readings import Findings, Node, Reading
from tests.support.fuzz_formats import RECORDINGS
from tests.support.read_parts import read_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KINDS = ("nvidia-smi-capture", "nvidia-smi-text", "nvidia-smi-xml")
MIB = 1 << 20

pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings next to the project")


@dataclass(frozen=True)
class Fact:
    """A fact that the list states of a file, and how the findings show it."""

    file: str
    stated: str
    """Words of the list, which must be in its line of facts."""
    holds: Callable[[Findings], Any]
    expected: Any

    def __str__(self) -> str:
        return f"{self.file.split('/', 1)[1][:40]}: {self.stated[:40]}"


def _gpu(log: Findings) -> Reading:
    return log.readings[0]


def _source(log: Findings, source: str) -> Reading:
    return next(one for one in log.readings if one.source == source)


def _listed(log: Findings) -> list[str]:
    """The lines of ``nvidia-smi -L``, as the list shows them, once more from the findings."""
    lines = []
    for one in log.readings:
        if one.source == "nvidia-smi -L (capabilities)":
            lines.append(f"GPU {one.index}: {one.name}")
            lines += [f"MIG {p.profile} Device {p.index}:" for p in one.parts]
    return lines


def _speeds(log: Findings) -> set[tuple[bool | None, float | None]]:
    return {
        (k.up, k.bandwidth_bytes_s) for k in log.links if k.source.startswith("nvidia-smi nvlink")
    }


def _between(log: Findings, a: Node, b: Node) -> set[str | None]:
    return {link.path for link in log.links if link.a.node is a and link.b.node is b}


def _xml_facts(
    file: str,
    driver: str | None,
    cuda: str | None,
    attached: int | None,
    name: str,
    memory_mib: int,
    mig: str | None,
    parts: int,
    uuid: str,
) -> list[Fact]:
    path = f"nvidia-smi-xml/{file}"
    attached_fact = (
        Fact(path, "attached_gpus None", lambda log: len(log.readings), 1)
        if attached is None
        else Fact(
            path,
            f"attached_gpus {attached}",
            # one GPU is described; the log says where more are attached
            lambda log: max([len(log.readings)] + [int(p.split()[0]) for p in log.problems]),
            attached,
        )
    )
    return [
        Fact(path, f"driver {driver}", lambda log: log.versions.get("driver"), driver),
        Fact(path, f"CUDA {cuda}", lambda log: log.versions.get("cuda"), cuda),
        attached_fact,
        Fact(path, f"{{'{name}': 1}}", lambda log: [one.name for one in log.readings], [name]),
        Fact(
            path, f"fb total {memory_mib} MiB", lambda log: _gpu(log).memory_bytes, memory_mib * MIB
        ),
        Fact(
            path,
            f"current_mig {mig}",
            lambda log: _gpu(log).mig_enabled,
            {"Enabled": True, "N/A": None, None: None}[mig],
        ),
        Fact(path, f"mig_device elements {parts}", lambda log: len(_gpu(log).parts), parts),
        Fact(path, f"uuid {uuid}", lambda log: _gpu(log).uuid, uuid),
    ]


def _capture_facts(file: str, driver: str, nvml: str, cuda: str, name: str) -> list[Fact]:
    path = f"nvidia-smi-capture/linux-x86_64__nvidia-{file}.txt"
    return [
        Fact(
            path,
            f"'NVIDIA-SMI version': '{driver}'",
            lambda log: sorted(v for k, v in log.versions.items() if k == "driver"),
            [driver],
        ),
        Fact(path, f"'NVML version': '{nvml}'", lambda log: log.versions["nvml"], nvml),
        Fact(path, f"'DRIVER version': '{driver}'", lambda log: log.versions["driver"], driver),
        Fact(path, f"'CUDA Version': '{cuda}'", lambda log: log.versions["cuda"], cuda),
        Fact(path, f"'GPU 0: {name}'", lambda log: _listed(log)[0], f"GPU 0: {name}"),
    ]


def _speed_fact(file: str) -> Fact:
    return Fact(
        f"nvidia-smi-capture/linux-x86_64__nvidia-{file}.txt",
        "nvlink -s: Link 0: 26.562 GB/s",
        lambda log: (_speeds(log), len([k for k in log.links if k.kind == "nvlink"])),
        ({(True, 26_562_000_000)}, 18),
    )


def _topology(file: str, path: str, cpus: str) -> list[Fact]:
    name = f"nvidia-smi-text/{file}"
    return [
        Fact(name, path, lambda log: _between(log, Node.GPU, Node.GPU), {path}),
        Fact(name, cpus, lambda log: _gpu(log).extra["cpu affinity"], cpus),
    ]


MIG = "nvidia-smi-capture/linux-x86_64__nvidia-h100-mig__590.48.01.txt"
L40S = "nvidia-smi-capture/linux-x86_64__nvidia-l40s__595.80.txt"
GKE = "nvidia-smi-text/topo-m-8xH200-8nic-gke.txt"
GH200 = "nvidia-smi-text/default-table-gh200-535.txt"
A100_LINKS = "nvidia-smi-text/nvlink-status-8xA100.txt"

FACTS = [
    *_xml_facts("a100-sxm4-v12.xml", "535.54.03", "12.2", 4, "NVIDIA A100-SXM4-80GB", 81920,
                "Enabled", 4, "GPU-513536b6-7d19-9063-b049-1e69664bb298"),
    *_xml_facts("gtx-1070-ti.xml", None, None, None, "GeForce GTX 1070 Ti", 4096, None, 0,
                "GPU-f9ba66fc-a7f5-94c5-da19-019ef2f9c665"),
    *_xml_facts("netdata-a100-sxm4-mig.xml", "510.47.03", "11.6", 1, "NVIDIA A100-SXM4-40GB", 40960,
                "Enabled", 2, "GPU-27b94a00-ed54-5c24-b1fd-1054085de32a"),
    *_xml_facts("netdata-rtx-4090-driver-535.xml", "535.86.05", "12.2", 1,
                "NVIDIA GeForce RTX 4090", 24564, "N/A", 0,
                "GPU-71d1acc2-662d-2166-bf9f-65272d2fc437"),
    *_xml_facts("netdata-tesla-p100.xml", "510.47.03", "11.6", 1, "Tesla P100-PCIE-16GB", 16384,
                "N/A", 0, "GPU-d3da8716-eaab-75db-efc1-60e88e1cd55e"),
    *_xml_facts("rtx-3060-v12.xml", "570.124.04", "12.8", 1, "NVIDIA GeForce RTX 3060", 12288,
                "N/A", 0, "GPU-d6889ff6-2523-9142-ca3c-1ca3f396a625"),
    *_xml_facts("rtx-3080-v13.xml", "595.58.03", "13.2", 1, "NVIDIA GeForce RTX 3080", 10240,
                "N/A", 0, "GPU-19d6d965-2acc-f646-00f8-4c76979aabb4"),
    *_xml_facts("rtx-4000-sff-ada-v13.xml", "595.84", "13.2", 1,
                "NVIDIA RTX 4000 SFF Ada Generation", 20475, "N/A", 0,
                "GPU-37037c3f-65c8-ec4d-24a9-420204ad8026"),
    *_xml_facts("tesla-t4.xml", "515.105.01", "11.7", 1, "Tesla T4", 15360, "N/A", 0,
                "GPU-d37e67a5-91dd-3774-a5cb-99096249601a"),
    *_capture_facts("h100-80gb-hbm3__590.48.01", "590.48.01", "590.48", "13.1",
                    "NVIDIA H100 80GB HBM3"),
    _speed_fact("h100-80gb-hbm3__590.48.01"),
    *_capture_facts("h100-mig__590.48.01", "590.48.01", "590.48", "13.1", "NVIDIA H100 80GB HBM3"),
    Fact(MIG, "'MIG 3g.40gb     Device  0:'", lambda log: _listed(log)[1], "MIG 3g.40gb Device 0:"),
    Fact(MIG, "'MIG 2g.20gb     Device  1:'", lambda log: _listed(log)[2], "MIG 2g.20gb Device 1:"),
    Fact(MIG, "'MIG 1g.10gb     Device  2:'", lambda log: _listed(log)[3], "MIG 1g.10gb Device 2:"),
    Fact(MIG, "'MIG 1g.10gb     Device  3:'", lambda log: _listed(log)[4], "MIG 1g.10gb Device 3:"),
    Fact(MIG, "Nvlink queries are not supported for Devices in MIG mode",
         lambda log: [p for p in log.problems if "Nvlink queries are not supported" in p] != []
         and _speeds(log) == set(), True),
    *_capture_facts("h200__590.48.01", "590.48.01", "590.48", "13.1", "NVIDIA H200"),
    _speed_fact("h200__590.48.01"),
    *_capture_facts("l40s__595.80", "595.80", "595.80", "13.2", "NVIDIA L40S"),
    Fact(L40S, "nvlink -s: Device does not have or support Nvlink",
         lambda log: (_source(log, "nvidia-smi nvlink (capabilities)").extra, log.links),
         ({"nvlink": "Device does not have or support Nvlink"}, ())),
    Fact(GH200, "driver 535.129.03", lambda log: log.versions["driver"], "535.129.03"),
    Fact(GH200, "CUDA shown", lambda log: log.versions["cuda"], "12.5"),
    Fact(A100_LINKS, "8 GPUs x 12 links", lambda log: (len(log.readings), len(log.links)), (8, 96)),
    Fact(A100_LINKS, 'every link "25 GB/s"', _speeds, {(True, 25_000_000_000)}),
    *_topology("topo-m-8xA100-NV12.txt", "NV12", "0-23"),
    Fact("nvidia-smi-text/topo-m-8xA100-NV12.txt", "NUMA 0,1",
         lambda log: [one.numa_node for one in log.readings], [0] * 4 + [1] * 4),
    *_topology("topo-m-8xH100-NV18.txt", "NV18", "0-51"),
    Fact(GKE, "NV18 between all GPU pairs",
         lambda log: _between(log, Node.GPU, Node.GPU), {"NV18"}),
    Fact(GKE, "GPU0 PIX NIC0,NIC1",
         lambda log: sorted(k.b.name for k in log.links if k.a.name == "GPU0" and k.path == "PIX"),
         ["mlx5_0", "mlx5_1"]),
    Fact(GKE, "GPU4-7 NUMA 1", lambda log: [one.numa_node for one in log.readings[4:]], [1] * 4),
    Fact(GKE, "(56-111,168-223)",
         lambda log: {one.extra["cpu affinity"] for one in log.readings[4:]}, {"56-111,168-223"}),
]  # fmt: skip


def _files() -> list[Path]:
    return [path for kind in KINDS for path in sorted((RECORDINGS / kind).glob("*"))]


@cache
def _found(file: str) -> Findings:
    text = decode_text((RECORDINGS / file).read_bytes())
    return read_all(text)


def _statements() -> dict[str, str]:
    """The line of facts of each file."""
    text = (RECORDINGS / "MANIFEST.md").read_text(encoding="utf-8")
    entries = re.findall(r"^- \*\*(\S+)\*\*.*\n  Facts: (.*)$", text, re.MULTILINE)
    return dict(entries)


@pytest.mark.parametrize("fact", FACTS, ids=str)
def test_a_stated_fact_is_read(fact: Fact) -> None:
    assert fact.stated in _statements()[fact.file], "the list no longer states it"
    assert fact.holds(_found(fact.file)) == fact.expected


def test_every_file_has_facts_and_every_file_is_read() -> None:
    files = {str(path.relative_to(RECORDINGS)) for path in _files()}
    assert files == {fact.file for fact in FACTS}
    for file in files:
        assert _found(file).readings, f"nothing was read of {file}"


def test_idle_and_load_of_one_machine_are_distinguished() -> None:
    log = _found("nvidia-smi-capture/linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt")
    for kind in ("nvidia-smi", "nvidia-smi -q", "nvidia-smi --query-gpu"):
        idle, load = (_source(log, f"{kind} ({state})").state for state in ("idle", "load"))
        assert (idle.utilization_percent, load.utilization_percent) == (0.0, 100.0)
        assert idle.power_w is not None
        assert load.power_w is not None
        assert idle.power_w < 100 < 600 < load.power_w
        assert idle.memory_used_bytes == 0
        assert load.memory_used_bytes == 19818 * MIB


def test_the_forms_of_one_machine_agree() -> None:
    for path in (RECORDINGS / "nvidia-smi-capture").iterdir():
        log = _found(str(path.relative_to(RECORDINGS)))
        kinds = ("nvidia-smi", "nvidia-smi -q", "nvidia-smi --query-gpu")
        idle = [_source(log, f"{kind} (idle)") for kind in kinds]
        assert len({(one.pci, one.name, one.memory_bytes, one.mig_enabled) for one in idle}) == 1
        outline, columns = idle[1:]
        assert outline.device_id == columns.device_id is not None
        assert outline.memory.corrected == columns.memory.corrected
        assert outline.state.throttling == columns.state.throttling
        assert outline.pcie.max_generation == columns.pcie.max_generation
        assert outline.parts == idle[0].parts, "the table and the outline show the same MIG devices"
