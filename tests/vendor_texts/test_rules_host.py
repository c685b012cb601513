"""The host's memory errors, temperatures and throttling, and what they mean."""

from __future__ import annotations

from portagpu.facts.host.sensors import read_memory_controllers, read_sensors
from portagpu.facts.host.tree import Tree
from portagpu.runs.judges.health import judge_host
from portagpu.runs.results.verdicts import Verdict
from tests.support.host_trees import build

MC = "sys/devices/system/edac/mc"
HEALTHY = {
    f"{MC}/mc0/ce_count": "0",
    f"{MC}/mc0/ue_count": "0",
    f"{MC}/mc0/dimm0/dimm_label": "CPU0_DIMM_A1",
    f"{MC}/mc0/dimm0/dimm_ce_count": "0",
    f"{MC}/mc0/dimm0/dimm_ue_count": "0",
    f"{MC}/mc0/dimm1/dimm_label": "",
    f"{MC}/mc0/dimm1/dimm_location": "channel 1 slot 0",
    f"{MC}/mc0/dimm1/dimm_ce_count": "0",
    f"{MC}/mc0/dimm1/dimm_ue_count": "0",
    "sys/class/hwmon/hwmon0/name": "coretemp",
    "sys/class/hwmon/hwmon0/temp1_input": "45000",
    "sys/class/hwmon/hwmon0/temp1_crit": "100000",
    "sys/class/hwmon/hwmon0/temp1_label": "Package id 0",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "0",
    "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "0",
}


def judged(tmp_path, **files):
    build(tmp_path, HEALTHY | files)
    tree = Tree(tmp_path)
    return {e.name: e for e in judge_host(read_memory_controllers(tree), read_sensors(tree))}


def test_a_healthy_host_passes(tmp_path):
    found = judged(tmp_path)
    assert {each.verdict for each in found.values()} == {Verdict.PASS}
    assert set(found) == {"host-memory-errors", "host-temperature", "host-throttling"}


def test_a_host_that_counts_nothing_neither_passes_nor_fails(tmp_path):
    tree = Tree(tmp_path)
    found = list(judge_host(read_memory_controllers(tree), read_sensors(tree)))
    assert {each.verdict for each in found} == {Verdict.SKIP}


def test_an_uncorrected_error_names_the_module(tmp_path):
    files = {f"{MC}/mc0/ue_count": "2", f"{MC}/mc0/dimm0/dimm_ue_count": "2"}
    found = judged(tmp_path, **files)["host-memory-errors"]
    assert (found.verdict, found.device, found.value) == (Verdict.FAIL, "CPU0_DIMM_A1", 2)
    assert "replace the module" in found.reason


def test_corrected_errors_are_reported_with_the_place_of_a_module_without_label(tmp_path):
    files = {f"{MC}/mc0/ce_count": "7", f"{MC}/mc0/dimm1/dimm_ce_count": "7"}
    found = judged(tmp_path, **files)["host-memory-errors"]
    assert (found.verdict, found.device) == (Verdict.UNVERIFIED, "channel 1 slot 0")


def test_errors_that_no_module_is_blamed_for_name_their_controller(tmp_path):
    found = judged(tmp_path, **{f"{MC}/mc0/ue_count": "1"})["host-memory-errors"]
    assert (found.verdict, found.device) == (Verdict.FAIL, "mc0")


def test_a_sensor_at_its_limit_fails(tmp_path):
    found = judged(tmp_path, **{"sys/class/hwmon/hwmon0/temp1_input": "100000"})
    assert found["host-temperature"].verdict is Verdict.FAIL
    assert found["host-temperature"].device == "coretemp Package id 0"
    below = judged(tmp_path, **{"sys/class/hwmon/hwmon0/temp1_input": "99000"})
    assert below["host-temperature"].verdict is Verdict.PASS


def test_throttling_since_boot_is_reported(tmp_path):
    path = "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"
    found = judged(tmp_path, **{path: "3"})["host-throttling"]
    assert (found.verdict, found.value) == (Verdict.UNVERIFIED, 3)
