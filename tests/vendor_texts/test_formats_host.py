"""Outputs of hosts, written by hand from their documentation, and damaged in every way."""

from __future__ import annotations

import random
import tomllib
import zipfile
from pathlib import Path

import pytest

import portagpu
import portagpu.facts.formats
from portagpu.facts.formats.host import hwloc_xml, kernel_log, lspci, nccl_topo
from portagpu.facts.formats.json_xml import MAX_DEPTH, read_xml, root_tag
from portagpu.facts.formats.reader import read_text
from portagpu.facts.readings.model import Findings, FormatError, Node
from portagpu.facts.vendors import vendors
from portagpu.machine.inventory import kernel_links
from tests.support.format_texts import fixture
from tests.support.host_trees import build

NCCL = fixture("nccl_topo/nvidia-and-amd.xml")

HWLOC = fixture("hwloc_xml/two-gpus.xml")

LSPCI = fixture("lspci/vvv.txt")

FM = "[Feb 27 2025 15:10:02] [ERROR] [tid 7] "
AMD = "amdgpu 0000:c1:00.0: amdgpu: "
LOG_LINES = [
    # (line, code, address, fatal)
    ("[   12.345678] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
     "Xid 79", "0000:3b:00.0", True),
    ("NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST]",
     "fallen off the bus", None, True),
    ("NVRM: API mismatch: the client has the version 535.161.07, but", "version mismatch", None,
     None),
    (AMD + "RAS records:300 exceed threshold:256", "RAS threshold reached", "0000:c1:00.0", True),
    (AMD + "Saved bad pages 257 reaches threshold value 256", "RAS threshold reached",
     "0000:c1:00.0", True),
    ("[  9.100000] pcieport 0000:c0:01.0: DPC: containment event, status:0x1f01 source:0x0000",
     "PCIe link contained", "0000:c0:01.0", None),
    ("kernel: NVRM: Xid (0000:3b:00): 13, Graphics SM Warp Exception", "Xid 13",
     "0000:3b:00.0", False),
    ("NVRM: Xid (PCI:0000:3b:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x4)", "Xid 145",
     "0000:3b:00.0", False),
    ("NVRM: Xid (PCI:0000:3b:00): 154, Recovery action changed from 0x0 (None) to 0x2 (Reboot)",
     "Xid 154", "0000:3b:00.0", True),
    ("NVRM: Xid (PCI:0000:3b:00): 4242, what is not in the catalogue", "Xid 4242",
     "0000:3b:00.0", None),
    ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
     "SXid 20034", "0000:05:00.0", True),
    (AMD + "2 uncorrectable hardware errors detected in umc block", "RAS uncorrectable (umc)",
     "0000:c1:00.0", True),
    (AMD + "{7}socket: 0, die: 1, 3 new correctable hardware errors detected in gfx block",
     "RAS correctable (gfx)", "0000:c1:00.0", False),
    (AMD + "socket: 0, die: 1, 9 uncorrectable hardware errors detected in total in umc block",
     "RAS uncorrectable total (umc)", "0000:c1:00.0", None),
    (AMD + "ring gfx_0.0.0 timeout, but soft recovered", "ring recovered", "0000:c1:00.0", False),
    (AMD + "ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3", "ring timeout",
     "0000:c1:00.0", None),
    ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring comp_1.0.1 timeout, signaled seq=1",
     "ring timeout", None, None),
    (AMD + "GPU reset begin!", "GPU reset begin", "0000:c1:00.0", None),
    (AMD + "GPU reset(2) succeeded!", "GPU reset succeeded", "0000:c1:00.0", False),
    (AMD + "GPU reset(3) failed", "GPU reset failed", "0000:c1:00.0", True),
    (AMD + "[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32769)", "page fault",
     "0000:c1:00.0", False),
    (AMD + "RAS records:300 exceed threshold:256, GPU will not be initialized. Replace this GPU",
     "RAS threshold", "0000:c1:00.0", True),
    (FM + "detected NVSwitch fatal error 23001 on fid 0 on NVSwitch pci bus id 00000000:86:00.0",
     "SXid 23001", "0000:86:00.0", True),
    (FM + "failed to find the GPU handle 5 in the request",
     "fabric manager error", None, None),
]  # fmt: skip
QUIET_LINES = [
    AMD + "0 uncorrectable hardware errors detected in umc block",
    AMD + "no uncorrectable hardware errors detected in umc block",
    "[   1.000000] nvidia: module license 'NVIDIA' taints kernel.",
    "[Feb 27 2025 15:10:02] [INFO] [tid 7] multicast group 0 is freed.",
]

TEXTS = {
    "nccl": (nccl_topo, NCCL),
    "hwloc": (hwloc_xml, HWLOC),
    "lspci": (lspci, LSPCI),
    "log": (kernel_log, "\n".join(line for line, *_ in LOG_LINES)),
}


@pytest.mark.parametrize(
    ("mask", "cpus"),
    [
        ("0000ff00,000000ff", "0-7,40-47"),
        ("1", "0"),
        ("00000000,80000000", "31"),
        ("0" * 2048 + "f", None),
        ("00000000", None),
        ("0xff", None),
        ("ffff ffff", None),
        ("", None),
    ],
)
def test_the_cpus_of_a_node_are_a_list(mask, cpus):
    text = (
        f'<system version="1"><cpu numaid="0" affinity="{mask}">'
        '<pci busid="0000:03:00.0" class="0x030200" vendor="0x10de"/></cpu></system>'
    )
    (link,) = nccl_topo.parse(text).links
    assert link.extra.get("cpu affinity") == cpus


def test_a_topology_of_nccl_is_read():
    found = nccl_topo.parse(NCCL)
    nvidia, amd = found.readings
    assert (nvidia.arch, nvidia.index, nvidia.pci, nvidia.numa_node) == (
        "sm_90",
        0,
        "0000:03:00.0",
        0,
    )
    assert nvidia.pcie.max_generation == 5
    assert nvidia.pcie.generation is None  # the file says what can be, not what is
    assert (amd.arch, amd.unit_count, amd.vendor, amd.numa_node) == ("gfx90a", 228, "amd", 1)
    fabric = [link for link in found.links if link.kind in ("nvlink", "xgmi", "c2c")]
    assert [(link.kind, link.b.node, link.b.pci, link.count) for link in fabric] == [
        ("nvlink", Node.GPU, "0000:05:00.0", 4),
        ("nvlink", Node.SWITCH, None, 14),
        ("c2c", Node.CPU, None, 1),
        ("xgmi", Node.GPU, "0000:03:00.0", 2),
    ]
    assert fabric[2].bandwidth_bytes_s == 200e9
    port = next(link for link in found.links if link.kind == "infiniband")
    assert (port.a.name, port.bandwidth_bytes_s) == ("mlx5_2", 50e9)
    nic = next(link for link in found.links if link.kind == "pcie" and link.a.node is Node.NIC)
    assert (nic.width, nic.speed_gbit_s) == (None, None)
    assert "nonsense" in found.problems[0]


def test_the_xml_of_lstopo_is_read():
    found = hwloc_xml.parse(HWLOC)
    first, second = found.readings
    assert (first.name, first.unique_id, first.hive) == (
        "AMD Instinct MI210",
        0x10A7C38D4C5C9B2E,
        "0xabc",
    )
    assert (first.index, first.numa_node, first.pci) == (0, 1, "0000:01:00.0")
    assert (second.index, second.name, second.hive) == (1, None, None)
    xgmi = [link for link in found.links if link.kind == "xgmi"]
    assert [(link.a.pci, link.b.pci, link.bandwidth_bytes_s) for link in xgmi] == [
        ("0000:01:00.0", "0000:02:00.0", 100e9),
        ("0000:02:00.0", "0000:01:00.0", 100e9),
    ]
    nic = next(link for link in found.links if link.a.node is Node.NIC)
    assert (nic.a.name, nic.bandwidth_bytes_s) == ("mlx5_0", 31.507692e9)
    idle = next(link for link in found.links if link.a.pci == "0000:02:00.0")
    assert idle.bandwidth_bytes_s is None


def test_a_matrix_that_does_not_fit_its_objects_is_a_problem():
    found = hwloc_xml.parse(HWLOC.replace("100000 1000000", "100000", 1))
    assert not [link for link in found.links if link.kind == "xgmi"]
    assert "values for 2 objects" in found.problems[0]


def test_lspci_states_slot_and_device():
    found = lspci.parse(LSPCI)
    (gpu,) = found.readings
    assert (gpu.pci, gpu.device_id, gpu.subsystem_id) == ("0000:03:00.0", 0x20B5, 0x1533)
    assert (gpu.numa_node, gpu.driver) == (1, "nvidia")
    assert (gpu.pcie.generation, gpu.pcie.width) == (1, 8)
    assert (gpu.pcie.device_generation, gpu.pcie.device_width) == (5, 16)
    assert (gpu.pcie.max_generation, gpu.pcie.max_width) == (4, 16)
    links = {link.a.pci: link.b for link in found.links}
    assert links["0000:03:00.0"].pci == "0000:00:01.0"
    assert links["0001:05:00.0"].index == 0
    assert "0000:04:00.0" not in links


def test_lspci_with_blanks_in_the_place_of_tabs_is_read_the_same():
    assert lspci.parse(LSPCI.replace("\t", " " * 8)) == lspci.parse(LSPCI)


def test_lspci_links_each_device_to_the_bridge_above_it():
    """A GPU below a switch, from a root port on: a bridge states the bus that it leads to."""
    bridge = (
        "{} PCI bridge [0604]: Made up [1000:c010]\n\tBus: primary={}, secondary={}, subordinate=03"
    )
    text = "\n".join(
        [
            bridge.format("0000:00:01.0", "00", "01"),
            bridge.format("0000:01:00.0", "01", "02"),
            bridge.format("0000:02:08.0", "02", "03"),
            "0000:03:00.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2330] (rev a1)",
        ]
    )
    assert [(link.a.name, link.b.name) for link in lspci.parse(text).links] == [
        ("0000:01:00.0", "0000:00:01.0"),
        ("0000:02:08.0", "0000:01:00.0"),
        ("0000:03:00.0", "0000:02:08.0"),
    ]


def test_lspci_without_ids_names_gpus_by_the_words_for_class_and_maker():
    text = (
        "01:00.0 3D controller: NVIDIA Corporation GA100 [A100 PCIe 80GB] (rev a1)\n"
        "02:00.0 VGA compatible controller: ASPEED Technology, Inc. ASPEED Graphics (rev 41)\n"
        "0000:03:00.0 Display controller: Advanced Micro Devices, Inc. [AMD/ATI] Device 740f\n"
        "04:00.0 Audio device: NVIDIA Corporation Device 228b\n"
        "05:00.0 Infiniband controller: Mellanox Technologies MT28908 Family [ConnectX-6]\n"
    )
    assert lspci.matches(text)
    found = lspci.parse(text)
    assert [(each.pci, each.vendor, each.device_id) for each in found.readings] == [
        ("0000:01:00.0", "nvidia", None),
        ("0000:03:00.0", "amd", 0x740F),
    ]
    assert [link.a.pci for link in found.links] == ["0000:01:00.0", "0000:03:00.0", "0000:05:00.0"]
    with pytest.raises(FormatError, match="no GPU, NIC or switch"):
        lspci.parse("00:02.0 VGA compatible controller: Intel Corporation Device 4680 (rev 0c)\n")


@pytest.mark.parametrize(("line", "code", "pci", "fatal"), LOG_LINES)
def test_a_line_of_a_driver_is_an_event(line: str, code: str, pci: str | None, fatal: bool | None):
    (event,) = kernel_log.parse(f"{line}\nkernel: something else").events
    assert (event.code, event.pci, event.fatal) == (code, pci, fatal)
    assert event.line == line
    assert (event.meaning is None) == (code == "Xid 4242")


@pytest.mark.parametrize("line", QUIET_LINES)
def test_a_line_without_an_error_is_none(line: str):
    assert kernel_log.parse(f"kernel: first\n{line}").events == ()


@pytest.mark.parametrize(
    ("prefix", "time"),
    [
        ("[171167.620236] ", "171167.620236"),
        ("<3>[  12.000001] ", "12.000001"),
        ("[Sun Feb 23 16:24:18 2025] ", "Sun Feb 23 16:24:18 2025"),
        ("Oct 03 14:17:32 node7 kernel: ", "Oct 03 14:17:32"),
        ("2025-02-23T16:24:18,123456+00:00 node7 kernel: ", "2025-02-23T16:24:18,123456+00:00"),
        ("3,2212,4053155111,-;", "4053.155111"),
        ("", None),
    ],
)
def test_the_time_is_as_the_log_states_it(prefix: str, time: str | None):
    (event,) = kernel_log.parse(f"{prefix}NVRM: Xid (PCI:0000:3b:00): 79, gone").events
    assert event.time == time


def test_the_log_names_gpus_and_the_driver():
    uuid = "GPU-12345678-1234-1234-1234-123456789abc"
    found = kernel_log.parse(
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
        f"NVRM: GPU at PCI:0000:3b:00: {uuid}\n"
    )
    assert found.versions == {"driver": "550.54.15"}
    assert [(r.pci, r.uuid) for r in found.readings] == [("0000:3b:00.0", uuid)]


TABLES = (
    Path(portagpu.facts.formats.__file__).parent,
    *(vendors()[name].tables for name in ("nvidia", "amd")),
)


def test_the_tables_of_events_state_their_sources_and_actions():
    files = [each / f"{name}.toml" for each in TABLES for name in ("kernel_log", "answers")]
    tables = [tomllib.loads(file.read_text("utf-8")) for file in files if file.is_file()]
    assert len(tables) == 6, "the log and the answers of the host and of two vendors"
    for table in tables:
        assert all(url.startswith("https://") for url in table["sources"].values())
        assert all(rule["source"] in table["sources"] for rule in table["event"])
        assert all("codes" in rule or {"meaning", "action"} <= set(rule) for rule in table["event"])
        for codes in table.get("codes", {}).values():
            for meaning, action in codes.values():
                assert meaning
                assert action == "" or action in table["actions"]


def test_the_table_of_codes_is_complete():
    table = tomllib.loads((TABLES[1] / "kernel_log.toml").read_text("utf-8"))
    xids = {int(code) for code in table["codes"]["xid"]}
    assert xids.isdisjoint(table["unused"]["xid"])
    assert xids | set(table["unused"]["xid"]) == set(range(1, 173))


def test_adapters_are_read_from_the_kernel(tmp_path: Path):
    ib = "sys/class/infiniband/mlx5_0"
    files = {
        f"{ib}/fw_ver": "28.41.1000",
        f"{ib}/ports/1/rate": "200 Gb/sec (4X HDR)",
        f"{ib}/ports/1/state": "1: DOWN",
        f"{ib}/ports/1/link_layer": "Ethernet",
        f"{ib}/ports/1/counters/link_downed": "3",
        f"{ib}/ports/2/rate": "unreadable",
        "sys/devices/pci0000:00/0000:17:00.0/numa_node": "1",
    }
    links = {f"{ib}/device": "../../../devices/pci0000:00/0000:17:00.0"}
    found = kernel_links.read_infiniband(build(tmp_path, files, links))
    first, second, pcie = found.links
    assert (first.kind, first.up, first.a.pci) == ("roce", False, "0000:17:00.0")
    assert (first.width, first.speed_gbit_s, first.bandwidth_bytes_s) == (4, 50.0, 25e9)
    assert first.extra["link_downed"] == "3"
    assert (second.kind, second.up, second.bandwidth_bytes_s) == ("network", None, None)
    assert (pcie.b.index, pcie.extra) == (1, {"fw_ver": "28.41.1000"})


def test_a_machine_without_adapters_has_none(tmp_path: Path):
    assert kernel_links.read_infiniband(tmp_path) == Findings(kind=kernel_links.INFINIBAND_KIND)


ENTITIES = """<?xml version="1.0"?>
<!DOCTYPE system [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>
<system version="1"><cpu numaid="0" arch="&b;"/></system>
"""


def test_declared_entities_are_refused():
    with pytest.raises(FormatError, match="declares the entity 'a'"):
        read_xml(ENTITIES, "XML")


def test_an_external_document_type_is_not_read(tmp_path: Path):
    (tmp_path / "secret").write_text("<!ENTITY leak 'secret'>", encoding="utf-8")
    text = f'<!DOCTYPE r SYSTEM "file://{tmp_path}/secret"><r a="1">&leak;</r>'
    root, problems = read_xml(text, "XML")
    assert (root.get("a"), "secret" in root.text) == ("1", False)
    assert len(problems) <= 1


def test_deep_xml_is_refused_in_one_line():
    deep = '<system version="1">' + "<cpu>" * (MAX_DEPTH + 1)
    with pytest.raises(FormatError, match="nested deeper than 128"):
        nccl_topo.parse(deep)


def test_the_root_is_found_after_comments():
    assert (
        root_tag("\ufeff<?xml version='1.0'?>\n<!-- a -- b --><!DOCTYPE t SYSTEM 'x'><t/>") == "t"
    )
    assert root_tag("<!-- " * 5000) is None
    assert root_tag("no XML") is None


@pytest.mark.parametrize("name", TEXTS)
def test_each_text_is_of_one_format(name: str):
    text = TEXTS[name][1]
    assert [key for key, (module, _) in TEXTS.items() if module.matches(text)] == [name]


def _survives(name: str, text: str) -> None:
    """``text`` is read, or refused in one line."""
    module = TEXTS[name][0]
    module.matches(text)
    try:
        found = module.parse(text)
    except FormatError as error:
        assert str(error)
        assert "\n" not in str(error)
    else:
        assert isinstance(found, Findings)


@pytest.mark.parametrize("name", TEXTS)
def test_damaged_texts_are_read_or_refused(name: str):
    text = TEXTS[name][1]
    source = random.Random(20250227)  # noqa: S311 - not for secrets
    odd = [
        "\0",
        "\ud800",
        "\x85",
        "é",
        "<",
        ">",
        '"',
        "9" * 400,
        "-1",
        "0x",
        "inf",
        "\n",
        "}",
        "{0}",
    ]
    for _ in range(400):
        damaged = list(text)
        for _ in range(source.randint(1, 6)):
            at = source.randrange(len(damaged))
            match source.randrange(4):
                case 0:
                    damaged[at] = source.choice(odd)
                case 1:
                    del damaged[at : at + source.randint(1, 40)]
                case 2:
                    damaged[at:at] = damaged[at : at + source.randint(1, 200)]
                case _:
                    damaged[at:at] = list(source.choice(odd))
        _survives(name, "".join(damaged))


@pytest.mark.parametrize("name", TEXTS)
def test_bytes_of_another_encoding_are_read_or_refused(name: str):
    for encoding in ("utf-16", "utf-32", "cp037"):
        data = TEXTS[name][1].encode(encoding)
        _survives(name, data.decode("utf-8", errors="replace"))
        _survives(name, data.decode("latin-1"))


def test_lines_made_to_confuse_are_read_or_refused():
    for line in (
        "amdgpu 0000:c1:00.0: " + "9 " * 900,
        "NVRM: Xid (PCI:0000:3b:00): 145, pid=" + "," * 1900,
        "NVRM: Xid (PCI:0000:3b:00): 154, " + " to 0x" * 300,
        "[" * 2000,
    ):
        _survives("log", "kernel: x\n" + f"{line}\n" * 200)
    _survives("lspci", "03:00.0 " + "[" * 200_000)
    _survives("lspci", "03:00.0 x [0302]: " + "[10de:" * 50_000)


def test_the_wheel_carries_the_table_of_codes(portagpu_wheel: Path):
    with zipfile.ZipFile(portagpu_wheel) as archive:
        names = archive.namelist()
    assert "portagpu/facts/formats/kernel_log.toml" in names
    for package in ("portagpu_cuda", "portagpu_rocm"):
        for table in ("kernel_log", "answers", "health"):
            assert f"{package}/tables/{table}.toml" in names


def test_a_tree_of_lspci_says_what_to_give_instead() -> None:
    # github.com/noonghunna/club-3090/issues/1105
    tree = "-+-[0000:00]-+-00.0\n |           +-01.1-[01]----00.0\n \\-[0000:20]-+-00.0\n"
    with pytest.raises(FormatError, match=r"give what `lspci -nn -D -vvv` prints"):
        read_text(tree)
    gpu = "01:00.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2330]\n"
    found = read_text(gpu + "$ lspci -t\n" + tree)
    assert [one.pci for each in found for one in each.readings] == ["0000:01:00.0"]
