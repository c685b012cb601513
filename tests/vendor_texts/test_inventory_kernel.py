"""GPUs from the kernel's files: every source, damaged trees, and the machine's own name lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from portagpu.facts.host.tree import Tree
from portagpu.facts.readings import Findings, Pcie
from portagpu.machine.inventory.kernel import kernel_findings
from portagpu.machine.inventory.sources import Live
from tests.support.gpu_trees import amd_gpu, machine, nvidia_gpu
from tests.support.host_trees import GIB, PCI, build, gfx942_node, pci_device

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings" / "kfd"


def sources(root: Path) -> dict[str, Findings]:
    return {each.kind: each for each in kernel_findings(Tree(root))}


def test_each_source_says_its_own_of_an_amd_gpu(tmp_path: Path) -> None:
    found = sources(build(tmp_path, *machine(amd_gpu(3))))
    assert list(found) == ["kfd", "drm", "sysfs pci"]
    (kfd,), (drm,), (pci,) = (each.readings for each in found.values())
    assert kfd.pci == drm.pci == pci.pci == "0000:03:00.0"
    assert (kfd.arch, kfd.unit_count, kfd.memory_bytes) == ("gfx942", 304, 192 * GIB)
    assert kfd.unique_id == drm.unique_id == 0xE3AA140F00000003
    assert kfd.uuid == drm.uuid == "GPU-e3aa140f00000003"
    assert kfd.device_file == "/dev/dri/renderD131"
    assert (drm.name, drm.memory_bytes) == ("AMD Instinct MI300X OAM", 192 * GIB)
    assert (drm.compute_partition, drm.memory_partition) == ("SPX", "NPS1")
    assert drm.firmware == {"vbios": "113-M3000100-102"}
    assert (pci.device_id, pci.revision_id, pci.numa_node, pci.driver) == (0x74A1, 0, 1, "amdgpu")
    assert pci.pcie == Pcie(
        generation=1,
        width=16,
        device_generation=5,
        device_width=16,
    ), "no bridge is shown, whose slot could be known"
    assert all(each.versions == {"driver": "6.10.5"} for each in found.values())


def test_each_source_says_its_own_of_an_nvidia_gpu(tmp_path: Path) -> None:
    found = sources(build(tmp_path, *machine(nvidia_gpu(0))))
    assert list(found) == ["proc", "sysfs pci", "dev"]
    (proc,) = found["proc"].readings
    assert (proc.name, proc.device_file) == ("NVIDIA H200", "/dev/nvidia0")
    (gpu,) = Live(tmp_path, {}).inventory().gpus
    assert (gpu.arch, gpu.driver_version) == ("sm_90", "570.86.15")
    assert gpu.disagreements == ()


def test_partitions_are_parts_of_their_gpu(tmp_path: Path) -> None:
    root = build(tmp_path, *machine(*(amd_gpu(index, parts=8) for index in range(8))))
    inventory = Live(root, {}).inventory()
    assert [len(gpu.parts) for gpu in inventory.gpus] == [8] * 8
    first = inventory.gpus[0]
    assert (first.unit_count, first.memory_bytes) == (304, 192 * GIB)
    assert (first.parts[7].profile, first.parts[7].unit_count) == ("CPX", 38)
    assert first.parts[7].device_file == "/dev/dri/renderD135"
    assert inventory.problems == first.disagreements == ()


def test_one_partition_that_a_container_was_given_is_not_a_whole_gpu(tmp_path: Path) -> None:
    files, links = machine(amd_gpu(0, parts=8))
    kept = {path: text for path, text in files.items() if "/nodes/" not in path}
    node = gfx942_node(1, 0, simd_count=152, memory=24 * GIB, unique_id=0xE3AA140F00000000)
    (gpu,) = Live(build(tmp_path, kept | node, links), {}).inventory().gpus
    assert [part.unit_count for part in gpu.parts] == [38]
    assert (gpu.unit_count, gpu.memory_bytes) == (None, 192 * GIB)


def test_two_vendors_in_one_machine_stay_apart(tmp_path: Path) -> None:
    root = build(tmp_path, *machine(nvidia_gpu(0), amd_gpu(1, first_node=1)))
    gpus = Live(root, {}).inventory().gpus
    assert [(gpu.vendor, gpu.driver_version) for gpu in gpus] == [
        ("nvidia", "570.86.15"),
        ("amd", "6.10.5"),
    ]


def test_a_card_is_placed_by_its_uevent_in_a_copied_tree(tmp_path: Path) -> None:
    folder = "sys/class/drm/card1/device"
    files = {
        f"{folder}/uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:C6:00.0",
        f"{folder}/vendor": "0x1002",
        f"{folder}/mem_info_vram_total": str(64 * GIB),
        "sys/class/drm/card1-DP-1/status": "connected",
        "sys/class/drm/renderD128/dev": "226:128",
    }
    ((reading,),) = (each.readings for each in sources(build(tmp_path, files)).values())
    assert (reading.pci, reading.memory_bytes) == ("0000:c6:00.0", 64 * GIB)


@pytest.mark.parametrize(
    "damage",
    [
        {"revision": "", "current_link_speed": "Unknown", "current_link_width": "0"},
        {"mem_info_vram_total": "0", "unique_id": "zz", "product_name": ""},
        {"max_link_width": "255", "max_link_speed": "\x00\xff", "numa_node": "-1"},
        {"unique_id": "1" * 400, "current_compute_partition": "", "vbios_version": ""},
        {"device": "many", "subsystem_device": "0x"},
    ],
)
def test_damaged_files_are_unknown_and_stop_nothing(tmp_path: Path, damage: dict[str, str]) -> None:
    files, links = machine(amd_gpu(5))
    files |= {f"{PCI}/0000:05:00.0/{name}": text for name, text in damage.items()}
    (gpu,) = Live(build(tmp_path, files, links), {}).inventory().gpus
    assert gpu.pci == "0000:05:00.0"
    assert gpu.arch == "gfx942"
    assert gpu.pcie.device_width in (None, 16)


def test_an_empty_tree_has_no_gpu(tmp_path: Path) -> None:
    assert kernel_findings(Tree(tmp_path)) == ()
    assert Live(tmp_path, {}).inventory().gpus == ()


# --- names by PCI id

DATABASE = (
    "# a comment\n10de  NVIDIA Corporation\n\t1aaa  XY100 [Example 9000]\n\t\t10de 1234  board\n"
    "\t1bbb  XY101\n1002  Advanced Micro Devices, Inc. [AMD/ATI]\n\t1aaa  Zed [Radeon Other]\n"
    "ffff  Illegal Vendor ID\nC 03  Display controller\n"
)
CHIPS = "1.0.0\n1CCC,\tC1,\tAMD Radeon Example\n1CCC,\tC2,\tAMD Radeon Graphics\n"


@pytest.mark.parametrize(
    ("vendor", "device", "revision", "name"),
    [
        ("0x10de", "0x1aaa", "0xa1", "Example 9000"),
        ("0x10de", "0x1bbb", "0xa1", "XY101"),
        ("0x10de", "0x1ddd", "0xa1", None),
        ("0x1002", "0x1aaa", "0x00", "Radeon Other"),
        ("0x1002", "0x1ccc", "0xc1", "AMD Radeon Example"),
        ("0x1002", "0x1ccc", "0xc2", None),
        ("0x10de", "0x2330", "0xa1", "NVIDIA H100 80GB HBM3"),
    ],
)
@pytest.mark.parametrize("path", ["usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids"])
def test_a_gpu_that_nobody_names_is_looked_up(
    tmp_path: Path, vendor: str, device: str, revision: str, name: str | None, path: str
) -> None:
    files = pci_device("0000:02:00.0", "0x030000", vendor, device)
    files |= {f"{PCI}/0000:02:00.0/revision": revision, path: DATABASE}
    files["usr/share/libdrm/amdgpu.ids"] = CHIPS
    (gpu,) = Live(build(tmp_path, files), {}).inventory().gpus
    assert gpu.name == name


@pytest.mark.parametrize("text", ["", "\n10de  ", "10de", "\n10de  N\n\t1aaa", "\x00" * 100])
def test_a_damaged_list_names_nothing(tmp_path: Path, text: str) -> None:
    files = pci_device("0000:02:00.0", "0x030000", "0x10de", "0x1aaa")
    (gpu,) = Live(build(tmp_path, files | {"usr/share/hwdata/pci.ids": text}), {}).inventory().gpus
    assert gpu.name is None


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings next to this checkout")
@pytest.mark.parametrize(
    ("recording", "name", "parts"),
    # one of 64 partitions is absent
    [
        ("mi210-8gpu-xgmi-pcie", "AMD Instinct MI210", [0] * 8),
        ("mi300x-cpx-64part", "AMD Instinct MI300X", [7, *[8] * 7]),
    ],
)
def test_recorded_machines_have_eight_named_gpus(
    recording: str, name: str, parts: list[int]
) -> None:
    tree = Tree(RECORDINGS / recording, "sys/class/kfd/kfd/topology")
    gpus = Live(tree, {}).inventory().gpus
    assert {gpu.name for gpu in gpus} == {name}
    assert sorted(len(gpu.parts) for gpu in gpus) == parts
    assert len({gpu.uuid for gpu in gpus}) == 8
