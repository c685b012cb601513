"""Kernel and PCI settings, read from files."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

import pytest

from portagpu.facts.host.machine import Settings, read_settings
from portagpu.facts.host.tree import Tree
from tests.support.host_trees import PCI, build

if TYPE_CHECKING:
    from pathlib import Path

GPU = "0000:03:00.0"
BRIDGES = ("0000:00:01.0", "0000:01:00.0")
GROUP = f"{PCI}/{GPU}/iommu_group/type"


def config(*capabilities: tuple[int, bytes], size: int = 4096) -> bytes:
    """Configuration space with these extended capabilities (id, what follows its header)."""
    space = bytearray(size)
    offset = 0x100
    for index, (identity, body) in enumerate(capabilities):
        following = offset + 0x40 if index + 1 < len(capabilities) else 0
        space[offset : offset + 4] = struct.pack("<I", identity | 1 << 16 | following << 20)
        space[offset + 4 : offset + 4 + len(body)] = body
        offset = following
    return bytes(space)


def acs(control: int) -> tuple[int, bytes]:
    return 0x000D, struct.pack("<HH", 0x005F, control)


AER = (0x0001, bytes(0x2C))


def bridges(root: Path, first: bytes | None, second: bytes | None) -> Tree:
    """A GPU below two bridges that have these configuration spaces."""
    build(root, {f"devices/{GPU}/class": "0x030200"})
    folder = root / PCI
    folder.mkdir(parents=True)
    (folder / GPU).symlink_to(f"../../../devices/pci0000:00/{'/'.join(BRIDGES)}/{GPU}")
    for address, space in zip(BRIDGES, (first, second), strict=True):
        (folder / address).mkdir()
        if space is not None:
            (folder / address / "config").write_bytes(space)
    return Tree(root)


@pytest.mark.parametrize(
    ("control", "redirects"),
    [
        (0, False),
        (1, False),
        (16, False),
        (64, False),
        (4, True),
        (8, True),
        (32, True),
        (29, True),
    ],
)
def test_acs_redirects_where_its_control_says_so(
    tmp_path: Path, control: int, redirects: bool
) -> None:
    tree = bridges(tmp_path, config(AER, acs(control)), config(AER))
    expected = (BRIDGES[0],) if redirects else ()
    assert read_settings(tree, [GPU]).acs_redirects == expected


@pytest.mark.parametrize(
    "space",
    [None, b"", config()[:64], config()[:256], config(AER)[:0x102]],
    ids=["absent", "empty", "another user's", "no extended space", "cut"],
)
def test_acs_that_cannot_be_read_is_unknown(tmp_path: Path, space: bytes | None) -> None:
    tree = bridges(tmp_path, config(acs(0x04)), space)
    assert read_settings(tree, [GPU]).acs_redirects is None


def test_capabilities_that_go_round_in_a_circle_end(tmp_path: Path) -> None:
    space = bytearray(config(AER))
    space[0x100:0x104] = struct.pack("<I", 1 | 1 << 16 | 0x100 << 20)
    tree = bridges(tmp_path, bytes(space), config())
    assert read_settings(tree, [GPU]).acs_redirects is None


def test_random_configuration_spaces_raise_nothing(tmp_path: Path) -> None:
    random.seed(3)
    for number in range(50):
        spaces = [random.randbytes(random.choice((64, 256, 300, 4096))) for _ in range(2)]  # noqa: S311
        found = read_settings(bridges(tmp_path / str(number), *spaces), [GPU]).acs_redirects
        assert found is None or set(found) <= set(BRIDGES)


def test_a_gpu_that_no_bridge_is_above_has_no_acs(tmp_path: Path) -> None:
    assert read_settings(Tree(tmp_path), [GPU]).acs_redirects is None


@pytest.mark.parametrize(
    ("files", "iommu"),
    [
        ({GROUP: "identity"}, "passthrough"),
        ({GROUP: "DMA-FQ"}, "translated"),
        ({GROUP: "DMA", "proc/cmdline": "iommu=pt"}, "translated"),
        (
            {"sys/class/iommu/dmar0/x": "", "proc/cmdline": "a intel_iommu=on iommu=pt"},
            "passthrough",
        ),
        ({"sys/class/iommu/dmar0/x": "", "proc/cmdline": "iommu.passthrough=1"}, "passthrough"),
        ({"sys/class/iommu/dmar0/x": ""}, None),
        ({f"{PCI}/{GPU}/iommu_group/devices/x": "", "sys/class/iommu/a/x": ""}, None),
        ({}, None),
    ],
)
def test_the_iommu_is_what_the_gpus_groups_are(
    tmp_path: Path, files: dict[str, str], iommu: str | None
) -> None:
    assert read_settings(Tree(build(tmp_path, files)), [GPU]).iommu == iommu


def test_a_kernel_without_an_iommu_has_it_off(tmp_path: Path) -> None:
    (tmp_path / "sys/class/iommu").mkdir(parents=True)
    assert read_settings(Tree(tmp_path), [GPU]).iommu == "off"


@pytest.mark.parametrize(
    ("text", "expected"), [("0", False), ("1", True), ("2", True), ("", None), ("on", None)]
)
def test_numa_balancing_is_on_in_any_mode(tmp_path: Path, text: str, expected: bool | None) -> None:
    root = build(tmp_path, {"proc/sys/kernel/numa_balancing": text})
    assert read_settings(Tree(root)).numa_balancing is expected


def test_parameters_are_those_that_concern_gpus(tmp_path: Path) -> None:
    line = (
        "BOOT_IMAGE=/v ro quiet amd_iommu=on iommu=pt pci=realloc=off,noaer numa_balancing=disable"
    )
    line += " transparent_hugepage=always pcie_acs_override=downstream pciehp=x iommufd=y"
    found = read_settings(Tree(build(tmp_path, {"proc/cmdline": line}))).parameters
    assert found == (
        "amd_iommu=on",
        "iommu=pt",
        "pci=realloc=off,noaer",
        "numa_balancing=disable",
        "transparent_hugepage=always",
        "pcie_acs_override=downstream",
    )


@pytest.mark.parametrize(
    ("text", "mode"), [("always madvise [never]", "never"), ("[always]", "always"), ("x", None)]
)
def test_the_mode_of_huge_pages_is_the_one_in_brackets(
    tmp_path: Path, text: str, mode: str | None
) -> None:
    root = build(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": text})
    assert read_settings(Tree(root)).huge_pages == mode


def test_nothing_is_known_of_an_empty_tree(tmp_path: Path) -> None:
    assert read_settings(Tree(tmp_path), [GPU]) == Settings()
