"""Faults planted into eight healthy GPUs: each is found on its device, with its action."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.checks.health.engine import health
from portagpu.checks.health.options import HealthOptions
from portagpu.checks.health.scheduler import answer
from portagpu.facts.host.tree import Tree
from portagpu.facts.readings.model import Findings, GpuState, Memory, Pcie, Reading
from portagpu.machine.inventory.sources import Machine
from portagpu.runs.results.advice import Action, action_of
from portagpu.runs.results.run import Run, Verdict
from tests.vendor_texts.test_rules_health import RECORDINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from portagpu.devices.contract import Status
    from portagpu.facts.torchbuild import TorchBuild

TARGET = "nvidia-h200-sxm"


def reading(index: int) -> Reading:
    """An idle H200 without any error, as NVML describes it."""
    return Reading(
        source="NVML",
        vendor="nvidia",
        pci=f"0000:{index:02x}:00.0",
        uuid=f"GPU-11111111-2222-3333-4444-{index:012x}",
        name="NVIDIA H200",
        arch="sm_90",
        memory_bytes=150_754_820_096,
        pcie=Pcie(
            generation=1,
            width=16,
            max_generation=5,
            max_width=16,
            device_generation=5,
            device_width=16,
            replays=0,
        ),
        memory=Memory(
            ecc_enabled=True,
            corrected=0,
            uncorrected=0,
            corrected_total=0,
            uncorrected_total=0,
            remapped_rows={"correctable": 0, "uncorrectable": 0},
            pending=False,
            remap_failed=False,
        ),
        state=GpuState(
            temperatures_c={"gpu": 30.0},
            limits_c={"slowdown": 95.0, "shutdown": 98.0},
            power_w=75.0,
            power_limit_w=700.0,
            clock_mhz=345.0,
            max_clock_mhz=1980.0,
            throttling=(),
        ),
    )


class Described(Machine):
    """A machine of these readings, and of nothing else."""

    environment: Mapping[str, str] = {}
    software_known = False

    def __init__(self, readings: Iterable[Reading], root: Path) -> None:
        self.tree = Tree(root, recorded=True)
        self._found = (Findings(kind="NVML", readings=tuple(readings)),)

    def findings(self) -> tuple[Findings, ...]:
        return self._found

    def torch(self) -> TorchBuild | None:
        return None

    def libraries(self) -> Mapping[str, str]:
        return {}

    def backends(self) -> Mapping[str, Status]:
        return {}


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    def run(*readings: Reading, **options: Any) -> Run:
        monkeypatch.setattr(
            "portagpu.checks.health.engine._recording", lambda _: Described(readings, tmp_path)
        )
        return health(HealthOptions(replay=["readings"], **options))

    return run


def eight(changed: int | None = None, **changes: Any) -> list[Reading]:
    """Eight readings; in one of them these parts differ, by part and key."""
    found = [reading(index) for index in range(8)]
    if changed is not None:
        parts = {
            name: replace(getattr(found[changed], name), **values)
            if isinstance(values, dict)
            else values
            for name, values in changes.items()
        }
        found[changed] = replace(found[changed], **parts)
    return found


def asking(run: Run) -> dict[tuple[str, str | None], Action]:
    """What asks for something: its id and device, with the action."""
    return {
        (each.id, each.device): action_of(each)
        for each in run.results
        if action_of(each) is not Action.NONE
    }


def test_a_healthy_node_asks_for_nothing(judge: Callable[..., Run]) -> None:
    run = judge(*eight(), target=TARGET, expect_devices=8)
    assert asking(run) == {}
    assert not [each.id for each in run.results if each.failed]


@pytest.mark.parametrize(
    ("changes", "name", "action"),
    [
        ({"memory": {"uncorrected": 1}}, "health/uncorrected-errors", "reset"),
        ({"memory": {"pending": True}}, "health/pending-repair", "reset"),
        ({"memory": {"remap_failed": True}}, "health/row-remapping", "replace"),
        (
            {"memory": {"remapped_rows": {"correctable": 0, "uncorrectable": 512}}},
            "health/row-remapping",
            "replace",
        ),
        ({"memory": {"retired_pages": {"double-bit": 64}}}, "health/retired-pages", "replace"),
        ({"memory": {"corrected": 900}}, "health/corrected-errors", "monitor"),
        ({"memory": {"uncorrected_total": 3}}, "health/lifetime-errors", "monitor"),
        ({"memory": {"ecc_enabled": False}}, "health/ecc", "reset"),
        ({"pcie": {"replays": 4000}}, "health/pcie-replays", "monitor"),
        ({"pcie": {"width": 8}}, "links/pcie-width", "isolate"),
        ({"pcie": {"max_generation": 3}}, "links/pcie-generation", "isolate"),
        ({"state": {"recovery": "Reset"}}, "health/answers", "isolate"),
        ({"state": {"error": "GPU is lost"}}, "health/answers", "isolate"),
        ({"state": {"throttling": ("hw_slowdown",)}}, "health/throttling", "monitor"),
        ({"state": {"temperatures_c": {"gpu": 96.0}}}, "health/temperature", "monitor"),
        ({"state": {"power_limit_w": 400.0}}, "health/power-limit", "monitor"),
        ({"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85_520_809_984}, "identity/alike",
         "isolate"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found_on_its_device(
    judge: Callable[..., Run], changes: dict[str, Any], name: str, action: str
) -> None:
    run = judge(*eight(5, **changes), target=TARGET, expect_devices=8)
    found = asking(run)
    assert found.get((name, "0000:05:00.0")) == action, found
    assert {device for _, device in found} <= {"0000:05:00.0", None}, "no other GPU is blamed"
    fails = Action(action) >= Action.ISOLATE
    worst = max(found.values())
    assert (answer(run).state == "faulty") == (worst >= Action.ISOLATE)
    assert not fails or answer(run).state == "faulty"


def test_a_missing_gpu_is_found_by_the_count_alone(judge: Callable[..., Run]) -> None:
    readings = [each for each in eight() if each.pci != "0000:05:00.0"]
    run = judge(*readings, target=TARGET, expect_devices=8)
    (count,) = [each for each in run.results if each.id == "identity/count"]
    assert (count.verdict, action_of(count)) == (Verdict.FAIL, Action.ISOLATE)
    assert count.reason == "7 device(s) shown by files, 8 expected"


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings next to the project")
def test_64_recorded_partitions_are_judged() -> None:
    run = health(HealthOptions(replay=[str(RECORDINGS / "kfd" / "mi300x-cpx-64part")]))
    assert asking(run) == {("identity/parts", "0000:e5:00.0"): Action.RESET}
    assert sum(each.id == "identity/device" for each in run.results) == 63
