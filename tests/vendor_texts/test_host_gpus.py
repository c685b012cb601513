"""GPUs found without any vendor library."""

from __future__ import annotations

from pathlib import Path

import pytest

from portagpu.facts.host import Partition, PciGpu, gpus_on_machine
from portagpu.facts.host.gpus import gfx_name
from portagpu.facts.host.tree import Tree
from tests.support.host_trees import GIB, PCI, build, gfx942_node, kfd_node, pci_device

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings" / "kfd"
NVIDIA = "proc/driver/nvidia/gpus"


def _information(minor: int, uuid: str = "GPU-11111111-2222-3333-4444-555555555555") -> str:
    return (
        f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 99\nGPU UUID: \t {uuid}\n"
        f"Bus Location: \t 0000:19:00.0\nDevice Minor: \t {minor}"
    )


@pytest.mark.parametrize(
    ("code", "vendor"),
    [
        ("0x030000", "0x1a03"),
        ("0x030000", "0x1af4"),
        ("0x038000", "0x1234"),
        ("0x030000", "0x102b"),
        ("0x040300", "0x10de"),
        ("0x068000", "0x10de"),
        ("0x060000", "0x1002"),
        ("broken", "0x10de"),
        ("0x030200", "broken"),
    ],
    ids=[
        "aspeed",
        "virtio",
        "bochs",
        "matrox",
        "nvidia-audio",
        "nvswitch",
        "bridge",
        "no-class",
        "no-vendor",
    ],
)
def test_what_is_not_a_gpu_is_not_counted(tmp_path: Path, code: str, vendor: str) -> None:
    assert gpus_on_machine(build(tmp_path, pci_device("0000:02:00.0", code, vendor))) == ()


@pytest.mark.parametrize("code", ["0x030000", "0x030200", "0x038000", "0x120000"])
def test_display_and_accelerator_classes_are_gpus(tmp_path: Path, code: str) -> None:
    files = pci_device("0000:C1:00.0", code, "0x10de", "0x2335")
    root = build(tmp_path, files, {f"{PCI}/0000:C1:00.0/driver": "../../../bus/pci/drivers/nvidia"})
    assert gpus_on_machine(root) == (
        PciGpu("nvidia", "0000:c1:00.0", 0x2335, numa_node=1, driver="nvidia"),
    )


def test_virtual_function_on_its_own_host_is_not_another_gpu(tmp_path: Path) -> None:
    files = pci_device("0000:05:00.0", "0x120000", "0x1002")
    files |= pci_device("0000:05:02.0", "0x120000", "0x1002")
    root = build(tmp_path, files, {f"{PCI}/0000:05:02.0/physfn": "../0000:05:00.0"})
    assert [gpu.pci for gpu in gpus_on_machine(root)] == ["0000:05:00.0"]


def test_pci_and_kfd_are_one_gpu(tmp_path: Path) -> None:
    files = pci_device("0000:83:00.0", "0x120000", "0x1002", "0x74a1")
    files |= kfd_node(0, cpu_cores_count=64, simd_count=0, vendor_id=0, location_id=0)
    files |= gfx942_node(1, 0x8300, memory=192 * GIB)
    files |= {"dev/dri/renderD128": ""}
    (gpu,) = gpus_on_machine(build(tmp_path, files))
    assert gpu == PciGpu(
        "amd",
        "0000:83:00.0",
        0x74A1,
        uuid="GPU-000000000000abc1",
        arch="gfx942",
        unit_count=304,
        memory_bytes=192 * GIB,
        numa_node=1,
        device_file="/dev/dri/renderD128",
    )


@pytest.mark.parametrize("second", [0x8301, 0x8300 | 1 << 28], ids=["function", "high bits"])
@pytest.mark.parametrize("with_pci", [True, False], ids=["pci", "no pci"])
def test_partitions_of_one_gpu_are_one_gpu(tmp_path: Path, second: int, with_pci: bool) -> None:
    half = {"simd_count": 608, "unique_id": 0xABC, "memory": 96 * GIB}
    files = gfx942_node(1, 0x8300, **half) | gfx942_node(2, second, **half)
    if with_pci:
        files |= pci_device("0000:83:00.0", "0x120000", "0x1002", "0x74a1")
    (gpu,) = gpus_on_machine(build(tmp_path, files))
    assert (gpu.pci, gpu.unit_count, gpu.memory_bytes) == ("0000:83:00.0", 304, 192 * GIB)
    assert gpu.partitions == (Partition(96 * GIB, 152, None),) * 2


def test_gpus_of_one_hive_stay_apart(tmp_path: Path) -> None:
    root = build(tmp_path, gfx942_node(1, 0x8300) | gfx942_node(2, 0x0500))
    assert [gpu.pci for gpu in gpus_on_machine(root)] == ["0000:05:00.0", "0000:83:00.0"]


def test_kfd_without_memory_banks_has_unknown_memory(tmp_path: Path) -> None:
    (gpu,) = gpus_on_machine(build(tmp_path, gfx942_node(1, 0x8300, local_mem_size=0)))
    assert gpu.memory_bytes is None


def test_cpu_nodes_and_damaged_nodes_are_not_gpus(tmp_path: Path) -> None:
    files = kfd_node(0, cpu_cores_count=64, simd_count=0, vendor_id=0x1002, location_id=0)
    files |= {"sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count many\nvendor_id"}
    files |= kfd_node(2, simd_count=8)
    assert gpus_on_machine(build(tmp_path, files)) == ()


def test_the_nvidia_driver_names_its_gpu(tmp_path: Path) -> None:
    files = pci_device("0000:19:00.0", "0x030200", "0x10de", "0x2335")
    files |= {f"{NVIDIA}/0000:19:00.0/information": _information(3), "dev/nvidia3": ""}
    (gpu,) = gpus_on_machine(build(tmp_path, files))
    assert (gpu.name, gpu.uuid) == ("NVIDIA H200", "GPU-11111111-2222-3333-4444-555555555555")
    assert gpu.device_file == "/dev/nvidia3"


def test_an_uninitialised_uuid_is_unknown(tmp_path: Path) -> None:
    text = _information(0, "GPU-????????-????-????-????-????????????")
    (gpu,) = gpus_on_machine(build(tmp_path, {f"{NVIDIA}/0000:19:00.0/information": text}))
    assert gpu.uuid is None
    assert gpu.device_file is None, "the container has no device file for it"


def test_device_files_alone_count_in_a_container(tmp_path: Path) -> None:
    root = build(tmp_path, dict.fromkeys(("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl"), ""))
    assert [gpu.device_file for gpu in gpus_on_machine(root)] == ["/dev/nvidia0", "/dev/nvidia1"]


def test_device_files_of_gpus_on_pci_do_not_count_again(tmp_path: Path) -> None:
    files = pci_device("0000:19:00.0", "0x030200", "0x10de")
    files |= pci_device("0000:3b:00.0", "0x030200", "0x10de")
    files |= {"dev/nvidia1": ""}
    assert len(gpus_on_machine(build(tmp_path, files))) == 2


def test_an_empty_machine_has_no_gpu(tmp_path: Path) -> None:
    assert gpus_on_machine(tmp_path) == ()


@pytest.mark.parametrize(
    ("version", "name"),
    # vendor's names of MI300X, MI210, Vega 20, RX 7900 XTX
    [
        (90402, "gfx942"),
        (90010, "gfx90a"),
        (90006, "gfx906"),
        (110000, "gfx1100"),
        (0, None),
        (None, None),
    ],
)
def test_gfx_name(version: int | None, name: str | None) -> None:
    assert gfx_name(version) == name


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings next to this checkout")
@pytest.mark.parametrize(
    ("recording", "gpus", "arch", "units", "partitions"),
    # from the files: 416 and 8 x 152 SIMDs, 4 a unit; one of 64 partitions is absent
    [
        ("mi210-8gpu-xgmi-pcie", 8, "gfx90a", {104}, [0] * 8),
        ("mi300x-cpx-64part", 8, "gfx942", {304, 266}, [7, *[8] * 7]),
    ],
)
def test_recorded_machines_are_read(
    recording: str, gpus: int, arch: str, units: set[int], partitions: list[int]
) -> None:
    found = gpus_on_machine(Tree(RECORDINGS / recording, "sys/class/kfd/kfd/topology"))
    assert len(found) == gpus
    assert {gpu.arch for gpu in found} == {arch}
    assert {gpu.unit_count for gpu in found} == units
    assert sorted(len(gpu.partitions) for gpu in found) == partitions
