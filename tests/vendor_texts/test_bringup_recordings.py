"""Bring-up over the published outputs of real machines, where they lie next to this checkout."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from portagpu.base.errors import RecordingError
from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.checks.recordings.replay import Recording
from portagpu.reports.html import render
from portagpu.reports.junit import render as junit
from portagpu.reports.ocp.stream import render as ocp
from portagpu.runs.results.run import Run, Verdict, validate
from tests.support.ocp_rules import lines_of, problems

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"
# folders whose entries are each one machine
KINDS = (
    "amd-smi",
    "amdgpu-top",
    "hwloc-xml",
    "kernel-logs",
    "kfd",
    "lspci",
    "nccl-topo-xml",
    "nvidia-smi-capture",
    "nvidia-smi-text",
    "nvidia-smi-xml",
    "rocm-smi",
    "rocminfo",
    "sysfs-infiniband",
)
H200, H100, L40S, MIG = (
    f"nvidia-smi-capture/linux-x86_64__nvidia-{name}.txt"
    for name in (
        "h200__590.48.01",
        "h100-80gb-hbm3__590.48.01",
        "l40s__595.80",
        "h100-mig__590.48.01",
    )
)

pytestmark = pytest.mark.skipif(
    not RECORDINGS.is_dir(), reason="no recordings next to this checkout"
)


@cache
def replay(name: str, target: str | None = None) -> Run:
    return bringup(BringupOptions(replay=Recording(RECORDINGS / name), target=target))


def verdicts(run: Run, name: str) -> dict[str | None, Verdict]:
    return {result.device: result.verdict for result in run.results if result.id == name}


@pytest.mark.parametrize("path", sorted(p for kind in KINDS for p in (RECORDINGS / kind).glob("*")))
def test_every_recording_is_judged_or_refused_in_one_line(path: Path) -> None:
    try:
        run = bringup(BringupOptions(replay=Recording(path)))
    except RecordingError as error:
        assert "\n" not in str(error)
        assert path.name in str(error)
        return
    validate(json.loads(run.to_text()))
    assert run.verdict in (Verdict.INCONCLUSIVE, Verdict.FAIL)
    assert not [result for result in run.results if result.verdict is Verdict.ERROR]
    assert render(run)
    assert junit(run)
    assert problems(lines_of(ocp(run))) == []


@pytest.mark.parametrize(
    ("name", "target", "devices"),
    [
        ("kfd/mi210-8gpu-xgmi-pcie", "amd-mi210", 8),
        ("rocminfo/8xMI210-gfx90a.txt", "amd-mi210", 8),
        ("rocm-smi/json-mi100_rocm571.json", "amd-mi100", 6),
        ("rocm-smi/concise-8xmi300x-rocm61.txt", "amd-mi300x", 8),
        ("nccl-topo-xml/rccl-topo_8p_940.xml", "amd-mi300x", 8),
        ("nccl-topo-xml/oci-H100-topology.xml", "nvidia-h100-sxm", 8),
        ("lspci/lspci-nn-a100.txt", "nvidia-a100-sxm-80gb", 8),
        ("nvidia-smi-text/nvlink-status-8xA100.txt", "nvidia-a100-sxm-80gb", 8),
        ("nvidia-smi-text/default-table-gh200-535.txt", "nvidia-gh200", 4),
        (H100, "nvidia-h100-sxm", 1),
        (H200, "nvidia-h200-sxm", 1),
        (L40S, "nvidia-l40s", 1),
    ],
)
def test_known_products_are_identified_and_counted(name: str, target: str, devices: int) -> None:
    run = replay(name)
    assert run.info.target == target
    assert len(run.info.devices) == devices
    failed = [r.id for r in run.results if r.failed and r.area == "identity"]
    assert failed == []


def test_two_hives_of_mi210_are_joined_and_what_is_not_stated_is_not_judged() -> None:
    run = replay("kfd/mi210-8gpu-xgmi-pcie")
    assert run.verdict is Verdict.INCONCLUSIVE
    assert verdicts(run, "links/hive") == {None: Verdict.PASS}
    assert verdicts(run, "links/link-count") == {None: Verdict.PASS}
    assert verdicts(run, "links/link-speed") == {None: Verdict.PASS}
    assert verdicts(run, "links/links-up") == {None: Verdict.INCONCLUSIVE}
    assert set(verdicts(run, "identity/unit-count").values()) == {Verdict.PASS}


def test_the_package_that_lacks_a_partition_is_named() -> None:
    run = replay("kfd/mi300x-cpx-64part")
    assert run.first_failed == "identity/parts"
    assert run.culprit == "0000:e5:00.0"
    assert "7 of 8 parts" in run.why
    assert run.why.endswith("0000:e5:00.0 part 7 is missing")
    found = verdicts(run, "identity/parts")
    assert sorted(found.values()) == sorted([Verdict.FAIL, *[Verdict.PASS] * 7])


@pytest.mark.parametrize(
    ("name", "slices"),
    [
        (MIG, 4),
        ("nvidia-smi-xml/netdata-a100-sxm4-mig.xml", 2),
        ("nvidia-smi-xml/a100-sxm4-v12.xml", 4),
    ],
)
def test_slices_are_devices_and_nobody_says_how_many_there_should_be(
    name: str, slices: int
) -> None:
    run = replay(name)
    assert len(run.info.devices) == slices
    assert set(verdicts(run, "identity/parts").values()) == {Verdict.UNVERIFIED}
    assert set(verdicts(run, "identity/alike").values()) == {Verdict.PASS}


@pytest.mark.parametrize("name", ["dmesg-xid-119.log", "xid-lines-a.txt"])
def test_logs_with_errors_fail_in_health_and_name_the_gpu(name: str) -> None:
    run = replay(f"kernel-logs/{name}")
    assert run.verdict is Verdict.FAIL
    assert run.first_failed == "health/events"
    assert run.culprit is not None


def test_what_runs_below_what_its_target_has_is_reported_and_fails_where_that_was_asked_for() -> (
    None
):
    """It is a T4 of a cloud's machine, which runs all of them at x8."""
    t4 = "nvidia-smi-xml/tesla-t4.xml"
    assert verdicts(replay(t4), "links/pcie-width") == {None: Verdict.UNVERIFIED}
    asked = replay(t4, target="nvidia-t4")
    assert verdicts(asked, "links/pcie-width") == {"0000:00:1e.0": Verdict.FAIL}
