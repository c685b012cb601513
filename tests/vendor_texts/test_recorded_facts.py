"""The facts that a text states are the machine's, the same in ``info`` and in the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.checks.info import collect
from portagpu.checks.recordings.replay import Recording
from portagpu.facts.formats.host import hwloc_xml, nccl_topo
from portagpu.facts.targets import (
    arch_of_generation,
    identify,
    load_target,
    named_product,
    product_with_pci_id,
)
from portagpu.machine.inventory.gpu import falls_short
from portagpu.runs.results.run import Verdict
from tests.support.host_trees import build

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.results.run import Run

GIB = 1 << 30


def files(folder: Path, *texts: str) -> list[Path]:
    paths = []
    for number, text in enumerate(texts):
        paths.append(folder / f"text{number}.txt")
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def info(folder: Path, *texts: str) -> dict[str, Any]:
    return collect(machine=Recording(*files(folder, *texts)))


def verdicts(run: Run, name: str) -> list[tuple[Verdict, str]]:
    return [(result.verdict, result.reason) for result in run.results if result.id == name]


def replay(folder: Path, *texts: str, target: str | None = None) -> Run:
    return bringup(BringupOptions(replay=Recording(*files(folder, *texts)), target=target))


# --- versions of driver 610 (github.com/sgl-project/sglang/issues/27487; docs.nvidia.com/deploy/
# nvidia-smi, release notes: "Driver Version" and "CUDA Version" are deprecated)

NEW_TABLE = """\
| NVIDIA-SMI 610.43.02              KMD Version: 610.43.02     CUDA UMD Version: 13.3     |
+-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA B200                    On  |   00000000:63:00.0 Off |                    0 |
| N/A   26C    P0            139W / 1000W |       0MiB / 183359MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
"""
LOG = """\
==============NVSMI LOG==============

{driver}
{cuda}

Attached GPUs                             : 1
GPU 00000000:07:00.0
    Product Name                          : {name}
    Product Architecture                  : {generation}
"""
GONE = "[Deprecated; will be removed in CUDA 14.0. Use the other instead]"


@pytest.mark.parametrize(
    "text",
    [
        NEW_TABLE,
        LOG.format(
            driver="KMD Version  : 610.43.02",
            cuda="CUDA UMD Version : 13.3",
            name="NVIDIA B200",
            generation="Blackwell",
        ),
        LOG.format(
            driver=f"Driver Version : {GONE}\nKMD Version  : 610.43.02",
            cuda=f"CUDA Version : {GONE}\nCUDA UMD Version : 13.3",
            name="NVIDIA B200",
            generation="Blackwell",
        ),
        (
            "<nvidia_smi_log><driver_version>Deprecated</driver_version><kmd_version>610.43.02"
            "</kmd_version><cuda_umd_version>13.3</cuda_umd_version><gpu id='00000000:07:00.0'>"
            "<product_name>NVIDIA B200</product_name></gpu></nvidia_smi_log>"
        ),
    ],
)
def test_the_versions_of_the_newest_drivers_are_read(tmp_path: Path, text: str) -> None:
    found = info(tmp_path, text)
    assert [gpu["driver_version"] for gpu in found["gpus"]] == ["610.43.02"]
    assert found["versions"]["cuda"] == "13.3"


def test_the_versions_alone_are_read_where_no_gpu_is_stated(tmp_path: Path) -> None:
    text = "NVIDIA-SMI version  : 610.43.02\nKMD version : 610.43.02\nCUDA UMD version : 13.3\n"
    assert info(tmp_path, text)["versions"] == {"driver": "610.43.02", "cuda": "13.3"}


# --- architectures and products


def log(name: str, generation: str) -> str:
    return LOG.format(
        driver="Driver Version : 535.1",
        cuda="CUDA Version : 12.2",
        name=name,
        generation=generation,
    )


@pytest.mark.parametrize(
    ("name", "generation", "arch", "target"),
    [
        ("NVIDIA A100-SXM4-80GB", "Ampere", "sm_80", "nvidia-a100-sxm-80gb"),
        ("NVIDIA GeForce RTX 3090", "Ampere", "sm_86", "nvidia-rtx3090"),
        ("NVIDIA A16", "Ampere", None, None),
        ("NVIDIA H800", "Hopper", "sm_90", "sm_90 family"),
        ("NVIDIA L40S", "Ada Lovelace", "sm_89", "nvidia-l40s"),
    ],
)
def test_an_architecture_that_is_stated_by_name_is_used(
    tmp_path: Path, name: str, generation: str, arch: str | None, target: str | None
) -> None:
    (device,) = info(tmp_path, log(name, generation))["devices"]
    assert (device["arch"], device["target"]) == (arch, target)


def test_a_generation_of_no_vendor_is_none() -> None:
    assert arch_of_generation("nvidia", "Pascal") is None
    assert arch_of_generation("amd", "Hopper") is None


@pytest.mark.parametrize(
    "text",
    [
        "index, name, memory.total [MiB]\n0, NVIDIA H100 80GB HBM3, 81559 MiB\n",
        (
            "==== ROCm System Management Interface ====\nGPU[0]\t\t: Card Series: "
            "\t\tAMD Instinct MI300X OAM\nGPU[0]\t\t: Card Model: \t\t0x74a1\n"
        ),
    ],
)
def test_info_and_the_verdict_name_one_product(tmp_path: Path, text: str) -> None:
    (device,) = info(tmp_path, text)["devices"]
    run = replay(tmp_path, text)
    assert device["target"] is not None
    assert [each["target"] for each in run.info.devices] == [device["target"]]
    assert verdicts(run, "identity/target")[0][1] == f"this machine is {device['target']}"


def test_a_product_is_known_by_its_pci_id_without_an_address(tmp_path: Path) -> None:
    amd = (
        "==== ROCm System Management Interface ====\n"
        "GPU[0]\t\t: Device ID: \t\t0x74a1\nGPU[1]\t\t: Device ID: \t\t0x74a1\n"
    )
    for text, name in (
        ("index, pci.device_id\n0, 0x233010DE\n", "NVIDIA H100 80GB HBM3"),
        (amd, "AMD Instinct MI300X"),
    ):
        found = info(tmp_path, text)
        assert {gpu["name"] for gpu in found["gpus"]} == {name}
        assert all("pci-id" in gpu["sources"] for gpu in found["gpus"])


AGENT = """\
HSA Agents
*******
Agent 1
*******
  Name:                    {gfx}
  Uuid:                    GPU-0123456789abcdef
  Marketing Name:          {name}
  Device Type:             GPU
  Chip ID:                 {chip}
  Compute Unit:            {units}
  BDFID:                   1280
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: COARSE GRAINED
      Size:                    {kib} KB
"""


def test_a_name_of_two_products_names_none_without_the_units(tmp_path: Path) -> None:
    """rocm-smi of an MI250 and of an MI250X print one name and the id 740c (amdgpu.ids)."""
    shared = "AMD Instinct MI250X / MI250"
    text = f"==== ROCm System Management Interface ====\nGPU[0]\t\t: Card Series: \t\t{shared}\n"
    assert info(tmp_path, text)["devices"][0]["target"] is None
    for units, target in ((110, "amd-mi250x"), (104, "gfx90a family")):
        agent = AGENT.format(gfx="gfx90a", name=shared, chip="29708(0x740c)", units=units,
                             kib="67092480(0x3ffc000)")  # fmt: skip
        assert info(tmp_path, agent)["devices"][0]["target"] == target
    assert product_with_pci_id("amd", 0x740C) is None
    assert named_product("amd", "gfx90a", shared) is None
    assert named_product("amd", "gfx90a", "AMD Instinct MI250X") is load_target("amd-mi250x")
    assert identify("amd", "gfx90a", shared).id == "gfx90a family"  # type: ignore[union-attr]


def test_an_early_sample_is_identified_by_its_own_architecture(tmp_path: Path) -> None:
    """gfx940 has the PCI id of what was sold as gfx942."""
    agent = AGENT.format(gfx="gfx940", name="AMD Instinct MI300A", chip="29856(0x74a0)",
                         units=228, kib="134086656(0x7fe0000)")  # fmt: skip
    found = info(tmp_path, agent)
    assert [gpu["arch"] for gpu in found["gpus"]] == ["gfx940"]
    assert "gfx942" not in str(found["remarks"])


@pytest.mark.parametrize(
    ("gcn", "arch"),
    [("940", "gfx940"), ("910", "gfx90a"), ("1030", "gfx1030"), ("gfx941", "gfx941"), ("7", None)],
)
def test_hips_number_of_an_architecture_is_read(gcn: str, arch: str | None) -> None:
    """HIP's gcnArch; RCCL writes it into its topology (rccl, src/graph/xml.cc)."""
    (reading,) = nccl_topo.parse(NCCL.format(numa=0, gcn=gcn)).readings
    assert reading.arch == arch


# --- less than the product has

SMALL = (
    "index, name, pci.bus_id, compute_cap, memory.total [MiB]\n0, {name}, {pci}, 9.0, {mib} MiB\n"
)


@pytest.mark.parametrize("target", [None, "nvidia-h100-sxm"])
def test_less_memory_than_the_product_has_is_a_failure_that_names_the_product(
    tmp_path: Path, target: str | None
) -> None:
    text = SMALL.format(name="NVIDIA H100 80GB HBM3", pci="00000000:07:00.0", mib=40960)
    run = replay(tmp_path, text, target=target)
    ((verdict, reason),) = verdicts(run, "identity/memory-size")
    assert verdict is Verdict.FAIL
    assert reason.startswith("nvidia-h100-sxm states ")
    assert "40.0 GiB" in reason
    assert verdicts(run, "identity/target") == [(Verdict.PASS, "this machine is nvidia-h100-sxm")]


def test_fewer_units_than_the_product_has_fail_and_a_partition_does_not(tmp_path: Path) -> None:
    def found(units: int, kib: int) -> list[tuple[Verdict, str]]:
        agent = AGENT.format(gfx="gfx942", name="AMD Instinct MI300X", chip="29857(0x74a1)",
                             units=units, kib=f"{kib}(0x0)")  # fmt: skip
        run = replay(tmp_path, agent)
        return [*verdicts(run, "identity/unit-count"), *verdicts(run, "identity/memory-size")]

    assert {verdict for verdict, _ in found(304, 201310208)} == {Verdict.PASS}
    assert found(290, 201310208)[0][0] is Verdict.FAIL
    assert found(304, 150000000)[1][0] is Verdict.FAIL
    assert found(38, 25163776) == [], "one of eight partitions, which no target states"


def test_a_share_is_of_the_units_and_of_the_memory() -> None:
    mi300x, h100 = load_target("amd-mi300x"), load_target("nvidia-h100-sxm")
    assert not falls_short(mi300x, 192 * GIB, 304)
    assert not falls_short(mi300x, 48 * GIB, 76)
    assert falls_short(mi300x, 48 * GIB, 304)
    assert falls_short(mi300x, None, 75)
    assert falls_short(h100, 40 * GIB, None)
    assert not falls_short(h100, None, None)


# --- slices that two outputs describe


def test_profiles_of_slices_stay_when_two_outputs_are_joined(tmp_path: Path) -> None:
    """-L names the profile of a slice, and the XML its memory and units."""
    uuid = "GPU-01111111-2222-3333-4444-555555555555"
    listed = (
        f"GPU 0: NVIDIA A100-SXM4-80GB (UUID: {uuid})\n"
        "  MIG 3g.40gb     Device  0: (UUID: MIG-01111111-2222-3333-4444-555555555551)\n"
        "  MIG 2g.20gb     Device  1: (UUID: MIG-01111111-2222-3333-4444-555555555552)\n"
    )

    def device(number: int, units: int, mib: int) -> str:
        return (
            f"<mig_device><index>{number}</index><device_attributes><shared>"
            f"<multiprocessor_count>{units}</multiprocessor_count></shared></device_attributes>"
            f"<fb_memory_usage><total>{mib} MiB</total></fb_memory_usage></mig_device>"
        )

    def xml(*devices: str) -> str:
        return (
            "<nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id='00000000:07:00.0'>"
            "<product_name>NVIDIA A100-SXM4-80GB</product_name><mig_mode><current_mig>Enabled"
            f"</current_mig></mig_mode><mig_devices>{''.join(devices)}</mig_devices>"
            f"<uuid>{uuid}</uuid></gpu></nvidia_smi_log>"
        )

    whole = xml(device(0, 42, 40192), device(1, 28, 19968))
    one = xml(device(1, 28, 19968))
    for texts, units in (
        ((listed, whole), [42, 28]),
        ((whole, listed), [42, 28]),
        ((one, listed), [None, 28]),
    ):
        (gpu,) = info(tmp_path, *texts)["gpus"]
        assert [part["profile"] for part in gpu["parts"]] == ["3g.40gb", "2g.20gb"]
        assert [part["unit_count"] for part in gpu["parts"]] == units


# --- memory nodes


def kfd(*links: tuple[int, str, int, int]) -> dict[str, str]:
    """Two nodes of CPUs and two of GPUs, with (from, list, number, to) of type 2."""
    root = "sys/class/kfd/kfd/topology/nodes"
    found = {f"{root}/{n}/properties": "cpu_cores_count 64\nsimd_count 0\n" for n in (0, 1)}
    for node, bus in ((2, 0x0C), (3, 0x8C)):
        found[f"{root}/{node}/properties"] = (
            f"cpu_cores_count 0\nsimd_count 416\nsimd_per_cu 4\nvendor_id 4098\ndevice_id 29711\n"
            f"location_id {bus << 8}\ndomain 0\ngfx_target_version 90010\nunique_id {node}\n"
        )
    for start, kind, number, stop in links:
        weight = 20 if kind == "io_links" else 52
        found[f"{root}/{start}/{kind}/{number}/properties"] = (
            f"type 2\nnode_from {start}\nnode_to {stop}\nweight {weight}\nflags 1\n"
        )
    return found


def test_the_memory_node_of_a_gpu_is_that_of_the_cpu_it_is_linked_to(tmp_path: Path) -> None:
    """CPU 0 lists the other socket's GPU among its p2p_links, as kfd_topology.c writes them."""
    machine = Recording(
        build(
            tmp_path,
            kfd(
                (0, "io_links", 0, 2), (0, "p2p_links", 0, 3), (1, "io_links", 0, 3),
                (1, "p2p_links", 0, 2), (2, "io_links", 0, 0), (2, "p2p_links", 0, 1),
                (3, "io_links", 0, 1), (3, "p2p_links", 0, 0),
            ),
        )
    )  # fmt: skip
    assert [gpu.numa_node for gpu in machine.inventory().gpus] == [0, 1]
    topology = machine.topology()
    assert [gpu.numa_node for gpu in topology.gpus] == [0, 1]
    assert topology.parents["0000:8c:00.0"] == "node 1"


NCCL = """\
<system version="1">
  <cpu numaid="{numa}" affinity="ffff" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="0000:0c:00.0" class="0x120000" vendor="0x1002" device="0x74a0" link_width="16">
      <gpu dev="0" sm="228" gcn="{gcn}" rank="0" gdr="1"/>
    </pci>
  </cpu>
</system>
"""


@pytest.mark.parametrize(("written", "node"), [(1, 1), (-1, None)])
def test_a_memory_node_that_nccl_does_not_know_is_unknown(written: int, node: int | None) -> None:
    """NCCL's topo.cc takes -1 for a node that the kernel does not state."""
    (reading,) = nccl_topo.parse(NCCL.format(numa=written, gcn="gfx942")).readings
    assert reading.numa_node == node


def test_an_nvlink_to_a_power9_cpu_is_one_to_a_cpu() -> None:
    """The class 0x068001 (NCCL, topo.cc, kvDictPciClass)."""
    text = NCCL.format(numa=0, gcn="gfx906").replace(
        'gdr="1"/>', 'gdr="1"><nvlink target="0004:00:01.0" count="3" tclass="0x068001"/></gpu>'
    )
    link = next(link for link in nccl_topo.parse(text).links if link.kind == "nvlink")
    assert str(link.b.node) == "cpu"


HWLOC = """\
<topology version="2.0"><object type="Machine" os_index="0">
  <object type="Package" os_index="1">
    {memory}
    <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-ff]">
      <object type="PCIDev" gp_index="12" pci_busid="0000:02:00.0"
              pci_type="0302 [10de:2342] [10de:16eb] a1 00" pci_link_speed="63.0"/>
    </object>
  </object></object></topology>
"""
NODE = '<object type="NUMANode" os_index="{}" subtype="{}"/>'


@pytest.mark.parametrize(
    ("memory", "node"),
    [
        (NODE.format(1, "DRAM") + NODE.format(9, "GPUMemory"), 1),
        (NODE.format(1, "DRAM") + NODE.format(3, "HBM"), 1),
        (NODE.format(3, "HBM"), 3),
        (f'<object type="MemCache">{NODE.format(1, "DRAM")}</object>', 1),
        (NODE.format(1, "DRAM") + NODE.format(2, "DRAM"), None),
    ],
)
def test_the_memory_node_of_hwlocs_device_is_the_main_memory_around_it(
    memory: str, node: int | None
) -> None:
    """hwloc's documentation, "Normal attributes" and "Object types": memory children."""
    (reading,) = hwloc_xml.parse(HWLOC.format(memory=memory)).readings
    assert reading.numa_node == node
