"""The document of ``portagpu info`` and its text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import portagpu.info
from portagpu.cli._infotext import sections
from portagpu.cli._sizes import size
from portagpu.errors import TargetError
from portagpu.host import gpus_on_machine, read_host
from portagpu.info import collect, devices, remarks
from portagpu.torchbuild import TorchBuild
from tests.host_trees import (
    GIB,
    aarch64,
    build,
    gfx942_node,
    pci_device,
    two_socket_x86,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.info import Device

ROOT = Path(__file__).resolve().parents[1]
CPU_BUILD = TorchBuild("/lib/torch", version="2.9.1+cpu", kind="cpu")


def _devices(root: Path) -> tuple[Device, ...]:
    return devices(read_host(root), gpus_on_machine(root))


def _remarks(root: Path, **changes: Any) -> list[str]:
    arguments: dict[str, Any] = {"build": CPU_BUILD, "visible": {}, "backends": 1} | changes
    return remarks(read_host(root), gpus_on_machine(root), **arguments)


def test_document_has_the_keys_of_its_schema(tmp_path: Path) -> None:
    document = collect(build(tmp_path, two_socket_x86()), {"CUDA_VISIBLE_DEVICES": "1"})

    assert document["schema"] == "portagpu.info/1"
    assert list(document)[:6] == ["schema", "devices", "backends", "host", "visible", "libraries"]
    assert list(document["devices"][0]) == [
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
    def broken(*_: object) -> None:
        raise TargetError("cpu.toml: peak: not a number")

    monkeypatch.setattr(portagpu.info, "identify", broken)
    monkeypatch.setattr(portagpu.info, "load_targets", broken)
    document = collect(build(tmp_path, two_socket_x86()), {})
    assert document["devices"][0]["target"] is None
    assert "no target is matched: cpu.toml: peak: not a number" in document["remarks"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"build": None}, "pip install 'portagpu[torch]'"),
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


def test_a_cpu_torch_beside_a_gpu_is_remarked(tmp_path: Path) -> None:
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
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (25274793984, "23.5 GiB"),
        (192 * GIB, "192 GiB"),
        (3 << 50, "3072 TiB"),
        (None, "unknown"),
    ],
)
def test_sizes_are_written_in_binary_units(count: int | None, text: str) -> None:
    assert size(count) == text


def test_collecting_imports_neither_torch_nor_click() -> None:
    program = (
        "import sys\nfrom portagpu.info import collect\n"
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
