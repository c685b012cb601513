"""The document of ``portagpu info`` and its text."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.paths import matrix_dir
from portagpu.base.plugins import install
from portagpu.base.units import size
from portagpu.checks.diagnostics import machine_diagnostics, software_diagnostics
from portagpu.checks.info import collect, devices
from portagpu.cli._info_view import sections
from portagpu.devices.contract import Status
from portagpu.facts.host import read_host
from portagpu.facts.host.machine import Settings
from portagpu.facts.host.tree import Tree
from portagpu.facts.readings import Findings, GpuPart, GpuState, Process, Reading
from portagpu.facts.targets import load
from portagpu.facts.targets.read import open_folder
from portagpu.facts.torchbuild import TorchBuild
from portagpu.machine.inventory import Gpu
from portagpu.machine.inventory.sources import Live, Machine
from tests.support.gpu_trees import amd_gpu, machine, nvidia_gpu
from tests.support.host_trees import (
    GIB,
    aarch64,
    build,
    gfx942_node,
    pci_device,
    two_socket_x86,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.checks.info import SchedulableDevice

ROOT = Path(__file__).resolve().parents[2]
CPU_BUILD = TorchBuild("/lib/torch", version="2.9.1+cpu", kind="cpu")


def _devices(root: Path) -> tuple[SchedulableDevice, ...]:
    return devices(read_host(root), Live(root, {}).inventory().gpus)


def _remarks(root: Path, **changes: Any) -> list[str]:
    arguments: dict[str, Any] = {
        "gpus": Live(root, {}).inventory().gpus,
        "build": CPU_BUILD,
        "visible": {},
        "settings": Settings(),
    }
    arguments |= changes
    backends = ["cpu"][: arguments.pop("backends", 1)]
    software = software_diagnostics(arguments["build"], arguments["gpus"], backends, None)
    return [*software, *machine_diagnostics(read_host(root), **arguments)]


def test_document_has_the_keys_of_its_schema(tmp_path: Path) -> None:
    document = collect(build(tmp_path, two_socket_x86()), {"CUDA_VISIBLE_DEVICES": "1"})

    assert document["schema"] == "portagpu.info/1"
    assert list(document)[:6] == ["schema", "devices", "backends", "host", "visible", "libraries"]
    assert list(document["devices"][0])[:9] == [
        "kind",
        "vendor",
        "name",
        "arch",
        "uuid",
        "pci",
        "memory_bytes",
        "target",
        "parent",
    ]
    assert all(set(each) == {"name", "usable", "reason"} for each in document["backends"])
    assert document["visible"] == {"CUDA_VISIBLE_DEVICES": "1"}
    assert document["host"]["cpu"]["sockets"] == 2
    assert document["libraries"]["pytest"] == pytest.__version__


def test_document_survives_json(tmp_path: Path) -> None:
    document = collect(build(tmp_path, two_socket_x86()), {})
    text = json.dumps(document, allow_nan=False)
    assert json.loads(text)["host"]["memory"]["total_bytes"] == 16 * GIB


@pytest.mark.parametrize(
    ("machine", "name", "arch", "target"),
    [
        (two_socket_x86, "Test CPU @ 2.00GHz", "x86-64", "cpu-x86-64"),
        (aarch64, "Neoverse-V2", "aarch64", "cpu-aarch64"),
    ],
    ids=["x86-64", "aarch64"],
)
def test_the_cpu_is_the_device_where_there_is_no_gpu(
    tmp_path: Path, machine: Callable[[], dict[str, str]], name: str, arch: str, target: str
) -> None:
    files = machine() | pci_device("0000:02:00.0", "0x030000", "0x1a03")
    (device,) = _devices(build(tmp_path, files))
    assert (device.kind, device.vendor, device.name) == ("cpu", "cpu", name)
    assert (device.arch, device.target) == (arch, target)


def test_gpus_are_the_devices_where_there_are_any(tmp_path: Path) -> None:
    files = two_socket_x86() | gfx942_node(1, 0x8300, memory=192 * GIB)
    files |= pci_device("0000:c1:00.0", "0x030200", "0x10de")
    amd, nvidia = _devices(build(tmp_path, files))
    assert (amd.kind, amd.vendor, amd.pci, amd.arch) == ("gpu", "amd", "0000:83:00.0", "gfx942")
    assert (amd.memory_bytes, amd.parent) == (192 * GIB, None)
    assert (nvidia.vendor, nvidia.name, nvidia.arch) == ("nvidia", None, None)
    assert nvidia.target is None, "a GPU that PCI alone shows has no known target"


def test_each_partition_is_a_device_that_names_its_parent(tmp_path: Path) -> None:
    half = {"simd_count": 608, "unique_id": 0xABC, "memory": 96 * GIB}
    files = gfx942_node(1, 0x8300, **half) | gfx942_node(2, 0x8301, **half)
    found = _devices(build(tmp_path, files))
    assert [(d.pci, d.parent, d.memory_bytes) for d in found] == [
        ("0000:83:00.0", "0000:83:00.0", 96 * GIB)
    ] * 2


def test_masks_are_diagnosed_for_the_vendors_that_are_there(tmp_path: Path) -> None:
    masks = {"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}
    nvidia = pci_device("0000:c1:00.0", "0x030200", "0x10de")
    without = _remarks(build(tmp_path / "nvidia", two_socket_x86() | nvidia), visible=masks)
    assert not any("VISIBLE_DEVICES" in line for line in without), "CUDA reads its own mask alone"
    amd = two_socket_x86() | gfx942_node(1, 0x8300, memory=192 * GIB)
    found = _remarks(build(tmp_path / "amd", amd), visible=masks)
    assert any("set HIP_VISIBLE_DEVICES alone" in line for line in found), found
    assert all("\n" not in line for line in found)


def test_masks_are_diagnosed_for_the_torch_build(tmp_path: Path) -> None:
    rocm = TorchBuild("/lib/torch", version="2.9.1+rocm7", kind="rocm", hip="7.0")
    found = _remarks(
        build(tmp_path, two_socket_x86()), build=rocm, visible={"HIP_VISIBLE_DEVICES": "0, 1"}
    )
    assert any("has blanks" in line for line in found), found


def test_a_machine_that_shows_nothing_still_has_a_document(tmp_path: Path) -> None:
    document = collect(tmp_path, {})
    assert document["devices"][0]["kind"] == "cpu"
    assert document["devices"][0]["target"] is None
    assert any(section.title == "Host" for section in sections(document))


def test_a_wrong_target_file_is_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "targets"
    shutil.copytree(matrix_dir() / "targets", folder)
    family = folder / "families" / "x86-64.toml"
    text = family.read_text(encoding="utf-8")
    family.write_text(text.replace("value = 64,", "value = 0,"), encoding="utf-8")
    matrix = open_folder(folder)
    everything = load._with_packages(matrix, [])
    monkeypatch.setattr(load, "_matrix", lambda: matrix)
    monkeypatch.setattr(load, "_all_targets", lambda: everything)
    document = collect(build(tmp_path / "machine", two_socket_x86()), {})
    assert document["devices"][0]["target"] is None
    (remark,) = [each for each in document["remarks"] if "target" in each]
    assert remark.startswith("no target is matched: x86-64.toml: facts.cpu.cache_line.value: ")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"build": None}, install("torch")),
        ({"build": TorchBuild("/x", problem="cannot read /x/version.py")}, "cannot read"),
        ({"backends": 0}, "install portagpu with pip"),
        ({"visible": {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}}, "HSA_OVERRIDE_GFX_VERSION=11.0.0"),
    ],
    ids=["no torch", "broken torch", "no backend", "disguised"],
)
def test_remarks_say_what_to_do(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    found = _remarks(build(tmp_path, two_socket_x86()), **changes)
    assert len(found) == 1, f"expected one remark, got {found}"
    assert words in found[0]


def test_a_healthy_machine_has_no_remark(tmp_path: Path) -> None:
    assert _remarks(build(tmp_path, two_socket_x86())) == []


def test_a_cpu_torch_next_to_a_gpu_is_remarked(tmp_path: Path) -> None:
    (found,) = _remarks(build(tmp_path, gfx942_node(1, 0x8300)))
    assert "1 GPU(s) of amd" in found
    assert "has no GPU build" in found


def test_a_gpu_without_a_driver_is_remarked(tmp_path: Path) -> None:
    root = build(tmp_path, pci_device("0000:c1:00.0", "0x030200", "0x10de"))
    gpu_build = TorchBuild("/lib/torch", version="2.9.1+cu128", kind="cuda", cuda="12.8")
    (found,) = _remarks(root, build=gpu_build)
    assert "the GPU at 0000:c1:00.0 has no kernel driver" in found


def test_small_shared_memory_is_remarked(tmp_path: Path) -> None:
    line = "30 25 0:27 / /dev/shm rw,nosuid - tmpfs shm rw,size=65536k"
    (found,) = _remarks(build(tmp_path, {"proc/self/mountinfo": line}))
    assert "64 MiB" in found
    assert "--shm-size" in found


def test_text_shows_every_section(tmp_path: Path) -> None:
    document = collect(build(tmp_path, two_socket_x86()), {"HIP_VISIBLE_DEVICES": ""})
    document["remarks"] = ["do this"]
    text = {section.title: dict(section.rows) for section in sections(document)}
    assert list(text) == [
        "Devices",
        "Backends",
        "Host",
        "Torch",
        "Libraries",
        "Visible devices",
        "Remarks",
    ]
    assert text["Host"]["Cores"] == "2 sockets, 4 cores, 8 logical CPUs, 6 usable"
    assert text["Host"]["Caches"] == "L1d 4 x 48 KiB, L3 2 x 105 MiB"
    assert text["Host"]["NUMA"] == "node 0: CPUs 0,2,4,6, 8 GiB; node 1: CPUs 1,3,5,7, 8 GiB"
    assert text["Host"]["Clocks"] == "median 2250 MHz, 1900 to 2600 (cpufreq)"
    assert text["Visible devices"] == {"HIP_VISIBLE_DEVICES": "set and empty"}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1536, "1.5 KiB"),
        (25274793984, "23.5 GiB"),
        (192 * GIB, "192 GiB"),
        (3 << 50, "3 PiB"),
        (None, "unknown"),
    ],
)
def test_sizes_are_written_in_binary_units(count: int | None, text: str) -> None:
    assert size(count) == text


def test_collecting_imports_neither_torch_nor_click() -> None:
    program = (
        "import sys\nfrom portagpu.checks.info import collect\n"
        "document = collect()\n"
        "found = {'torch', 'click', 'rich', 'numpy', 'pynvml', 'amdsmi'} & set(sys.modules)\n"
        "assert not found, found\nprint(document['schema'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'backends'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "portagpu.info/1"


def test_a_name_cannot_command_the_terminal(tmp_path: Path) -> None:
    document = collect(root=tmp_path, environment={})
    document["backends"] = [{"name": "a\x1b[2J", "usable": False, "reason": "b\nc"}]
    rows = {section.title: section.rows for section in sections(document)}["Backends"]
    assert rows == (("a [2J", "not usable: b c"),)


# --- torch and the GPUs

CUDA_BUILD = TorchBuild("/lib/torch", version="2.9.1+cu128", kind="cuda", cuda="12.8")
ROCM_BUILD = TorchBuild("/lib/torch", version="2.9.1+rocm7.0", kind="rocm", hip="7.0")
AMD = Gpu(vendor="amd", pci="0000:05:00.0", driver="amdgpu", sources=("kfd", "sysfs pci"))
NVIDIA = Gpu(vendor="nvidia", pci="0000:83:00.0", driver="nvidia", sources=("nvml", "sysfs pci"))


@pytest.mark.parametrize(
    ("build_here", "gpus", "words"),
    [
        (
            CPU_BUILD,
            [AMD, AMD],
            "has no GPU build, and this machine has 2 GPU(s) of amd: install a",
        ),
        (CUDA_BUILD, [AMD], "is a cuda build and cannot use the 1 GPU(s) of amd"),
        (ROCM_BUILD, [NVIDIA], "is a rocm build and cannot use the 1 GPU(s) of nvidia"),
        (ROCM_BUILD, [AMD, NVIDIA], "those of nvidia need a cuda build in an environment of their"),
        (CUDA_BUILD, [AMD, NVIDIA], "those of amd need a rocm build"),
        (CPU_BUILD, [AMD, NVIDIA], "install a rocm or cuda build"),
    ],
)
def test_a_torch_that_does_not_fit_the_gpus_is_one_line(
    tmp_path: Path, build_here: TorchBuild, gpus: list[Gpu], words: str
) -> None:
    (found,) = _remarks(tmp_path, build=build_here, gpus=gpus)
    assert words in found, found
    assert "\n" not in found


@pytest.mark.parametrize(("build_here", "gpu"), [(CUDA_BUILD, NVIDIA), (ROCM_BUILD, AMD)])
def test_a_torch_that_fits_has_no_remark(tmp_path: Path, build_here: TorchBuild, gpu: Gpu) -> None:
    assert _remarks(tmp_path, build=build_here, gpus=[gpu]) == []


# --- GPUs and settings


@pytest.mark.parametrize(
    ("driver", "words"),
    [(None, "no kernel driver"), ("vfio-pci", "virtual machines"), ("nouveau", "nouveau")],
)
def test_a_gpu_that_only_the_bus_shows_says_what_its_driver_is(
    tmp_path: Path, driver: str | None, words: str
) -> None:
    gpu = Gpu(vendor="nvidia", pci="0000:83:00.0", driver=driver, sources=("sysfs pci", "pci-id"))
    (found,) = _remarks(tmp_path, build=CUDA_BUILD, gpus=[gpu])
    assert words in found


def test_a_gpu_whose_library_answers_needs_no_shown_driver(tmp_path: Path) -> None:
    gpu = Gpu(vendor="nvidia", pci="0000:83:00.0", sources=("nvml", "sysfs pci"))
    assert _remarks(tmp_path, build=CUDA_BUILD, gpus=[gpu]) == []


def test_mig_without_a_slice_is_remarked(tmp_path: Path) -> None:
    gpu = Gpu(vendor="nvidia", pci="0000:83:00.0", mig_enabled=True, sources=("nvml",))
    (found,) = _remarks(tmp_path, build=CUDA_BUILD, gpus=[gpu])
    assert "MIG enabled and no slice" in found
    sliced = dataclasses.replace(gpu, parts=(GpuPart(uuid="MIG-1"),))
    assert _remarks(tmp_path, build=CUDA_BUILD, gpus=[sliced]) == []


def test_the_same_disagreement_of_many_gpus_is_one_line(tmp_path: Path) -> None:
    said = ("its memory is 80.0 GiB by nvml and 94.0 GiB by drm",)
    gpus = [
        dataclasses.replace(NVIDIA, pci=f"0000:8{n}:00.0", disagreements=said) for n in range(8)
    ]
    (found,) = _remarks(tmp_path, build=CUDA_BUILD, gpus=gpus)
    assert found.startswith(
        "sources contradict each other on the GPU at 0000:80:00.0 and 7 more: its memory is 80.0"
    )


INSTINCT = dataclasses.replace(AMD, name="AMD Instinct MI300X OAM")


@pytest.mark.parametrize(
    ("settings", "gpus", "words"),
    [
        (Settings(iommu="translated"), [INSTINCT], "iommu=pt"),
        (Settings(numa_balancing=True), [INSTINCT], "echo 0 > /proc/sys/kernel/numa_balancing"),
        (Settings(parameters=("pci=realloc",)), [INSTINCT], "pci=realloc=off"),
        (Settings(acs_redirects=("0000:00:01.0",)), [AMD, AMD], "ACS on 1 PCI bridge(s)"),
    ],
)
def test_a_setting_that_slows_gpus_says_how_to_change_it(
    tmp_path: Path, settings: Settings, gpus: list[Gpu], words: str
) -> None:
    root = build(tmp_path, two_socket_x86())
    (found,) = _remarks(root, build=ROCM_BUILD, settings=settings, gpus=gpus)
    assert words in found
    assert "(" in found, "the remark names no source"


@pytest.mark.parametrize(
    ("settings", "gpus"),
    [
        (Settings(), [INSTINCT]),
        (Settings(iommu="passthrough", numa_balancing=False, acs_redirects=()), [INSTINCT] * 8),
        (Settings(iommu="translated", numa_balancing=True), [AMD]),
        (Settings(acs_redirects=("0000:00:01.0",)), [INSTINCT]),
    ],
    ids=["unknown", "as asked", "other product", "one GPU"],
)
def test_a_setting_that_nobody_asks_for_has_no_remark(
    tmp_path: Path, settings: Settings, gpus: list[Gpu]
) -> None:
    root = build(tmp_path, two_socket_x86())
    assert _remarks(root, build=ROCM_BUILD, settings=settings, gpus=gpus) == []


# --- the text


def _text(root: Path, *gpus: tuple[dict[str, str], dict[str, str]]) -> list[tuple[str, str]]:
    files, links = machine(*gpus)
    document = collect(build(root, two_socket_x86() | files, links), {})
    return list(sections(document)[0].rows)


def test_gpus_of_one_kind_are_said_once_and_each_has_a_line(tmp_path: Path) -> None:
    rows = _text(tmp_path, *(amd_gpu(index) for index in range(8)))
    assert rows[0] == (
        "8 GPUs",
        "AMD Instinct MI300X OAM (gfx942), 192 GiB each, target amd-mi300x",
    )
    assert rows[1][1].startswith("driver amdgpu 6.10.5, SPX/NPS1, PCIe 5 x16, known from kfd, drm")
    assert rows[2] == ("gpu 0", "0000:00:00.0  GPU-e3aa140f00000000  NUMA node 0")
    assert len(rows) == 2 + 8


def test_a_partitioned_gpu_has_one_line_for_all_of_its_parts(tmp_path: Path) -> None:
    rows = _text(tmp_path, amd_gpu(0, parts=8), amd_gpu(1, parts=8))
    assert [label for label, _ in rows] == ["2 GPUs", "", "gpu 0-7", "gpu 8-15"]
    assert rows[3][1].endswith("8 x CPX of 24 GiB, 38 units")


def test_slices_that_have_names_of_their_own_have_lines(tmp_path: Path) -> None:
    slices = tuple(
        GpuPart(index=n, uuid=f"MIG-{n}", profile="3g.20gb", memory_bytes=20 * GIB, unit_count=42)
        for n in range(2)
    )
    reading = Reading(
        source="nvml",
        vendor="nvidia",
        pci="0000:04:00.0",
        uuid="GPU-b",
        name="NVIDIA A100-SXM4-40GB",
        arch="sm_80",
        memory_bytes=40 * GIB,
        mig_enabled=True,
        parts=slices,
    )
    document = collect(machine=Recorded(tmp_path, Findings(kind="nvml", readings=(reading,))))
    assert [(d["uuid"], d["profile"], d["parent"]) for d in document["devices"]] == [
        ("MIG-0", "3g.20gb", "0000:04:00.0"),
        ("MIG-1", "3g.20gb", "0000:04:00.0"),
    ]
    rows = sections(document)[0].rows
    assert rows[0] == (
        "1 GPU",
        "NVIDIA A100-SXM4-40GB (sm_80), 40 GiB, target nvidia-a100-sxm-40gb",
    )
    assert rows[1] == ("", "no driver shown, MIG on, known from nvml")
    assert rows[2:] == (
        ("", "0000:04:00.0  GPU-b"),
        ("gpu 0", "3g.20gb  MIG-0  20 GiB, 42 units"),
        ("gpu 1", "3g.20gb  MIG-1  20 GiB, 42 units"),
    )


def test_two_vendors_and_what_is_unknown_are_said(tmp_path: Path) -> None:
    rows = _text(tmp_path, nvidia_gpu(0), amd_gpu(1, device="0xffff", name=""))
    assert rows[0] == ("1 GPU", "NVIDIA H200 (sm_90), target nvidia-h200-sxm")
    assert rows[3] == ("1 GPU", "unnamed amd (gfx942), 192 GiB, target amd-mi300x")


def test_settings_have_a_line(tmp_path: Path) -> None:
    files = {
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 iommu=pt pci=realloc=off quiet",
        "proc/sys/kernel/numa_balancing": "0",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "sys/class/iommu/dmar0/name": "x",
    }
    document = collect(build(tmp_path, files), {})
    text = dict({section.title: section for section in sections(document)}["Host"].rows)["Settings"]
    assert text == (
        "IOMMU passthrough, NUMA balancing off, huge pages madvise, "
        "booted with iommu=pt pci=realloc=off"
    )


# --- other machines than this one


class Recorded(Machine):
    """A machine that is known from given findings alone."""

    def __init__(self, root: Path, *findings: Findings) -> None:
        self.tree = Tree(root)
        self.environment = {"CUDA_VISIBLE_DEVICES": "1"}
        self._findings = findings

    def findings(self) -> tuple[Findings, ...]:
        return self._findings

    def torch(self) -> TorchBuild | None:
        return CUDA_BUILD

    def libraries(self) -> dict[str, str]:
        return {"python": "3.12.1"}

    def backends(self) -> dict[str, Status]:
        return {"cuda": Status(True, "recorded")}


def test_no_process_is_in_the_document(tmp_path: Path) -> None:
    state = GpuState(processes=1, process_list=(Process(pid=47110815, memory_bytes=47110815),))
    reading = Reading(source="a", vendor="nvidia", pci="0000:04:00.0", state=state)
    document = collect(machine=Recorded(tmp_path, Findings(kind="a", readings=(reading,))))
    assert len(document["devices"]) == 1
    assert "47110815" not in json.dumps(document)


def test_any_machine_gives_the_document_of_its_own_words(tmp_path: Path) -> None:
    reading = Reading(source="a", vendor="nvidia", pci="0000:04:00.0", device_id=0x2335)
    findings = Findings(
        kind="a", readings=(reading,), versions={"cuda": "13.0"}, problems=("half is missing",)
    )
    document = collect(machine=Recorded(tmp_path, findings))
    (device,) = document["devices"]
    assert (device["name"], device["arch"]) == ("NVIDIA H200", "sm_90"), "named by its PCI id"
    assert document["visible"] == {"CUDA_VISIBLE_DEVICES": "1"}
    assert document["libraries"] == {"python": "3.12.1"}
    assert document["versions"] == {"cuda": "13.0"}
    assert document["sources"] == ["a", "pci-id"]
    assert document["torch"]["version"] == CUDA_BUILD.version
    assert [each["name"] for each in document["backends"]] == ["cuda"]
    assert "half is missing" in document["remarks"]
    assert json.loads(json.dumps(document, allow_nan=False))["gpus"][0]["device_id"] == 0x2335


def test_libraries_are_not_asked_of_a_tree_that_is_not_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portagpu.devices.discovery.probes", lambda: pytest.fail("they were asked"))
    files, links = machine(nvidia_gpu(0))
    assert collect(build(tmp_path, files, links), {})["sources"] == [
        "proc",
        "sysfs pci",
        "dev",
        "pci-id",
    ]
