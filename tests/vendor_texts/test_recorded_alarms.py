"""What is as designed is not a failure, and where nobody can say who is wrong nobody is blamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.checks.recordings.replay import Recording
from portagpu.runs.results.run import Verdict
from tests.support.gpu_trees import amd_gpu, machine, nvidia_gpu
from tests.support.host_trees import build, two_socket_x86

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.results.run import Result, Run

HEAD = (
    "index, name, pci.bus_id, compute_cap, memory.total [MiB], driver_version, "
    "pcie.link.gen.current, pcie.link.gen.max, pcie.link.gen.gpumax, pcie.link.width.current, "
    "pcie.link.width.max, enforced.power.limit [W]"
)
A100 = ("NVIDIA A100-SXM4-80GB", "8.0", 81920)
RTX4090 = ("NVIDIA GeForce RTX 4090", "8.9", 24564)
RTX3090 = ("NVIDIA GeForce RTX 3090", "8.6", 24576)
LAPTOP = ("NVIDIA GeForce RTX 3060 Laptop GPU", "8.6", 6144)
DISPLAY = ("NVIDIA T400 4GB", "7.5", 4096)


def row(
    product: tuple[str, str, int],
    generations: tuple[int, int, int] = (1, 4, 4),
    width: int = 16,
    watts: int = 300,
) -> tuple[object, ...]:
    """A GPU by ``nvidia-smi --query-gpu``; (now, slot and GPU, GPU), and lanes of 16."""
    return (*product, "535.129.03", *generations, width, 16, watts)


def replay(folder: Path, *rows: tuple[object, ...], target: str | None = None) -> Run:
    lines = [HEAD]
    for index, (name, *rest) in enumerate(rows):
        values = (index, name, f"00000000:0{index + 1}:00.0", *rest)
        lines.append(", ".join(map(str, values)))
    path = folder / "gpus.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return bringup(BringupOptions(replay=Recording(path), target=target))


def failures(run: Run) -> list[tuple[str, str | None]]:
    return [(result.id, result.device) for result in run.results if result.failed]


def one(run: Run, name: str) -> Result:
    (result,) = (result for result in run.results if result.id == name)
    return result


@pytest.mark.parametrize("rows", [(row(LAPTOP, width=8),), (row(RTX4090, width=8),) * 2])
def test_lanes_of_a_slot_that_nobody_states_are_reported(
    tmp_path: Path, rows: tuple[tuple[object, ...], ...]
) -> None:
    """A laptop's GPU and two cards of a workstation: nvidia-smi states the GPU's own 16 lanes."""
    run = replay(tmp_path, *rows)
    assert failures(run) == []
    found = one(run, "links/pcie-width")
    assert found.verdict is Verdict.UNVERIFIED
    assert "runs at x8 and can do x16" in found.reason


def test_lanes_that_the_target_asked_for_has_are_missing(tmp_path: Path) -> None:
    run = replay(tmp_path, row(A100, width=8), row(A100), target="nvidia-a100-sxm-80gb")
    assert ("links/pcie-width", "0000:01:00.0") in failures(run)


def test_lanes_that_a_majority_of_peers_has_are_missing(tmp_path: Path) -> None:
    run = replay(tmp_path, row(A100), row(A100), row(A100, width=8), row(A100))
    assert {device for _, device in failures(run)} == {"0000:03:00.0"}


def test_a_machine_of_older_slots_is_as_designed(tmp_path: Path) -> None:
    run = replay(tmp_path, *[row(RTX4090, (3, 3, 4))] * 4)
    assert failures(run) == []
    assert one(run, "links/pcie-generation").verdict is Verdict.UNVERIFIED
    asked = replay(tmp_path, *[row(RTX4090, (3, 3, 4))] * 2, target="nvidia-rtx4090")
    assert {name for name, _ in failures(asked)} == {"links/pcie-generation"}


def test_idle_gpus_lower_their_generation(tmp_path: Path) -> None:
    run = replay(tmp_path, *[row(A100, (1, 4, 4))] * 4)
    assert failures(run) == []
    assert one(run, "links/pcie-generation").verdict is Verdict.PASS


def test_of_two_unlike_gpus_nobody_is_blamed(tmp_path: Path) -> None:
    run = replay(tmp_path, row(RTX4090), row(RTX3090))
    assert failures(run) == []
    found = one(run, "identity/alike")
    assert (found.verdict, found.device) == (Verdict.SKIP, None)
    assert "4090" in found.reason
    assert "3090" in found.reason
    lanes = replay(tmp_path, row(A100), row(A100, width=8))
    assert failures(lanes) == []
    assert one(lanes, "links/peers-alike").verdict is Verdict.UNVERIFIED


def test_drivers_of_two_vendors_are_two(tmp_path: Path) -> None:
    files, links = machine(amd_gpu(0), nvidia_gpu(1))
    run = bringup(
        BringupOptions(replay=Recording(build(tmp_path, two_socket_x86() | files, links)))
    )
    assert failures(run) == []
    assert one(run, "versions/driver").reason == "drivers 6.10.5 of amd and 570.86.15 of nvidia"


def test_each_gpu_is_held_against_its_own_product(tmp_path: Path) -> None:
    run = replay(tmp_path, row(RTX4090), row(RTX3090))
    archs = {r.device: r.verdict for r in run.results if r.id == "identity/arch"}
    assert archs == {"0000:01:00.0": Verdict.PASS, "0000:02:00.0": Verdict.PASS}


def test_a_card_for_a_display_next_to_gpus_is_reported(tmp_path: Path) -> None:
    """As a DGX Station has one."""
    run = replay(tmp_path, row(A100), row(A100), row(DISPLAY, (1, 3, 3)), row(A100))
    assert failures(run) == []
    found = one(run, "identity/alike")
    assert (found.verdict, found.device) == (Verdict.UNVERIFIED, None)
    assert "0000:03:00.0 is NVIDIA T400 4GB" in found.reason


def test_another_product_of_the_same_architecture_in_a_majority_is_the_odd_one(
    tmp_path: Path,
) -> None:
    small = ("NVIDIA A100-SXM4-40GB", "8.0", 40960)
    run = replay(tmp_path, row(A100), row(A100), row(small), row(A100))
    assert ("identity/alike", "0000:03:00.0") in failures(run)


def test_a_power_limit_that_all_share_is_not_a_fault_and_one_that_is_lower_is(
    tmp_path: Path,
) -> None:
    shared = replay(tmp_path, *[row(A100, watts=300)] * 4)
    assert failures(shared) == []
    lower = replay(tmp_path, row(A100), row(A100, watts=200), row(A100), row(A100))
    assert {device for _, device in failures(lower)} == {"0000:02:00.0"}


def test_a_slice_is_not_an_unlike_device(tmp_path: Path) -> None:
    """One GPU of two is cut, with the memory of its slices stated (form of nvidia-smi's table)."""
    table = (
        "| NVIDIA-SMI 535.129.03      Driver Version: 535.129.03   CUDA Version: 12.2     |\n"
        "|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |            On |\n"
        "| N/A   33C    P0              60W / 400W |      0MiB / 81920MiB |   N/A Default |\n"
        "|                                         |                      |       Enabled |\n"
        "+-----------------------------------------+----------------------+---------------+\n"
        "|   1  NVIDIA A100-SXM4-80GB          On  | 00000000:0F:00.0 Off |             0 |\n"
        "| N/A   33C    P0              60W / 400W |      0MiB / 81920MiB |    0% Default |\n"
        "|                                         |                      |      Disabled |\n"
        "+-----------------------------------------+----------------------+---------------+\n"
        "| MIG devices:                                                                   |\n"
        "|  0    1   0   0  |     19MiB / 40192MiB | 42      0 |  3   0    2    0    0 |\n"
        "|  0    2   0   1  |     19MiB / 19968MiB | 28      0 |  2   0    1    0    0 |\n"
    )
    path = tmp_path / "table.txt"
    path.write_text(table, encoding="utf-8")
    run = bringup(BringupOptions(replay=Recording(path)))
    assert len(run.info.devices) == 3
    assert failures(run) == []
    assert one(run, "identity/alike").verdict is Verdict.PASS


@pytest.mark.parametrize(
    "text",
    [
        "index, pci.bus_id, temperature.gpu\n0, 00000000:07:00.0, 33\n",
        "\tGPU0\tGPU1\nGPU0\t X \tNV12\nGPU1\tNV12\t X \n",
        "[    1.5] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu\n",
        "[   12.3] NVRM: Xid (PCI:0000:3b:00): 13, Graphics SM Warp Exception\n",
    ],
)
def test_a_text_without_a_product_does_not_contradict_a_target(tmp_path: Path, text: str) -> None:
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    run = bringup(BringupOptions(replay=Recording(path), target="nvidia-a100-sxm-80gb"))
    assert one(run, "identity/target").verdict is Verdict.INCONCLUSIVE


def test_a_product_that_is_stated_and_another_contradicts_a_target(tmp_path: Path) -> None:
    run = replay(tmp_path, row(A100), target="nvidia-h100-sxm")
    assert ("identity/target", "0000:01:00.0") in failures(run)
