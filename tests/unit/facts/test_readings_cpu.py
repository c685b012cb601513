"""The CPU as a device: energy counters, sensors, and what psutil adds."""

from __future__ import annotations

import sys

import pytest

from portagpu.facts.host import Energy, Tree, read_cpu_temperatures, read_energy
from portagpu.facts.readings import cpu as module
from portagpu.facts.readings.cpu import CpuReader
from tests.support.host_trees import build, two_socket_x86

CAP = "sys/class/powercap"


def powercap(*zones: tuple[str, str, str]) -> dict[str, str]:
    """(zone, name, microjoules); each counter begins again after 999,999,999."""
    files = {}
    for zone, name, energy in zones:
        files[f"{CAP}/{zone}/name"] = name
        files[f"{CAP}/{zone}/max_energy_range_uj"] = "999999999"
        if energy:
            files[f"{CAP}/{zone}/energy_uj"] = energy
    return files


PACKAGES = powercap(
    ("intel-rapl:0", "package-0", "5000000"),
    ("intel-rapl:0:0", "core", "4000000"),
    ("intel-rapl:0:1", "dram", "1000000"),
    ("intel-rapl:1", "package-1", "7000000"),
    ("intel-rapl:2", "psys", "90000000"),
    # the same packages by another interface
    ("intel-rapl-mmio:0", "package-0", "5000000"),
)


def live_like(root, files):
    """A tree that files can be changed in."""
    return Tree(build(root, {**two_socket_x86(), **files}))


def test_energy_is_that_of_each_package_and_of_no_part_of_it(tmp_path):
    tree = live_like(tmp_path, PACKAGES)
    assert read_energy(tree) == (
        (
            Energy("intel-rapl:0", 5_000_000, 999_999_999),
            Energy("intel-rapl:1", 7_000_000, 999_999_999),
        ),
        "",
    )


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no energy counter"),
        (powercap(("intel-rapl:0", "psys", "5")), "has no energy counter"),
        (powercap(("intel-rapl:0", "package-0", "")), "only root may"),
        (powercap(("intel-rapl:0", "package-0", "many")), "only root may"),
    ],
    ids=["none", "another", "not readable", "no number"],
)
def test_power_that_cannot_be_read_is_missing_with_its_reason(tmp_path, files, words):
    reading = CpuReader(live_like(tmp_path, files)).read()
    assert (reading.state.power_w, reading.state.energy_j) == (None, None)
    assert words in reading.missing["power_w"]
    assert words in reading.missing["energy_j"]


def test_power_is_the_energy_of_all_packages_between_two_readings(tmp_path):
    tree = live_like(tmp_path, PACKAGES)
    reader = CpuReader(tree)
    first = reader.read(10.0)
    assert (first.state.power_w, first.state.energy_j) == (None, 0.0)
    assert first.missing["power_w"] == "is known from the second reading on"
    # 30.25 J and 60 J in two seconds
    (tmp_path / CAP / "intel-rapl:0/energy_uj").write_text("35250000")
    (tmp_path / CAP / "intel-rapl:1/energy_uj").write_text("67000000")
    second = reader.read(12.0)
    assert (second.state.power_w, second.state.energy_j) == (45.125, 90.25)
    assert "power_w" not in second.missing
    # the first counter goes from 35.25 J through 999.999999 J to 5.5 J: 970.25 J
    (tmp_path / CAP / "intel-rapl:0/energy_uj").write_text("5500000")
    third = reader.read(13.0)
    assert (third.state.power_w, third.state.energy_j) == (970.25, 1060.5)
    again = reader.read(13.0)
    assert again.state.power_w is None, "no time went by"
    assert again.state.energy_j == 1060.5


def test_a_counter_that_goes_away_is_not_a_power_of_zero(tmp_path):
    tree = live_like(tmp_path, powercap(("intel-rapl:0", "package-0", "5000000")))
    reader = CpuReader(tree)
    reader.read(1.0)
    (tmp_path / CAP / "intel-rapl:0/energy_uj").unlink()
    assert reader.read(2.0).state.power_w is None
    (tmp_path / CAP / "intel-rapl:0/energy_uj").write_text("905000000")
    assert reader.read(3.0).state.power_w is None, "the time in between is not known"


HWMON = "sys/class/hwmon"


def test_without_counters_a_chip_of_the_cpu_measures_its_power(tmp_path):
    files = {
        f"{HWMON}/hwmon0/name": "fam15h_power",
        f"{HWMON}/hwmon0/power1_input": "45500000",
        # a power supply, and a GPU
        f"{HWMON}/hwmon1/name": "acpi_power_meter",
        f"{HWMON}/hwmon1/power1_input": "400000000",
        f"{HWMON}/hwmon2/name": "amdgpu",
        f"{HWMON}/hwmon2/power1_input": "300000000",
    }
    reading = CpuReader(live_like(tmp_path, files)).read()
    assert (reading.state.power_w, reading.state.energy_j) == (45.5, None)
    assert list(reading.missing) == ["utilization_percent", "energy_j"]


SENSORS = {
    f"{HWMON}/hwmon0/name": "nvme",
    f"{HWMON}/hwmon0/temp1_input": "99000",
    f"{HWMON}/hwmon1/name": "coretemp",
    f"{HWMON}/hwmon1/temp1_input": "61000",
    f"{HWMON}/hwmon1/temp1_label": "Package id 0",
    f"{HWMON}/hwmon1/temp1_crit": "100000",
    f"{HWMON}/hwmon1/temp2_input": "62000",
    f"{HWMON}/hwmon1/temp2_label": "Core 0",
    f"{HWMON}/hwmon2/name": "k10temp",
    f"{HWMON}/hwmon2/temp1_input": "45000",
    f"{HWMON}/hwmon2/temp1_label": "Tctl",
    f"{HWMON}/hwmon3/name": "k10temp",
    f"{HWMON}/hwmon3/temp1_input": "47000",
    f"{HWMON}/hwmon3/temp1_label": "Tctl",
}


def test_temperatures_are_the_cpus_and_of_several_packages_the_hottest(tmp_path):
    reading = CpuReader(live_like(tmp_path, SENSORS)).read()
    assert reading.state.temperatures_c == {"coretemp package id 0": 61.0, "k10temp tctl": 47.0}
    assert reading.state.limits_c == {"critical": 100.0}


def test_without_a_chip_a_zone_of_the_cpu_counts(tmp_path):
    zone = "sys/class/thermal/thermal_zone"
    tree = live_like(
        tmp_path,
        {
            f"{zone}0/type": "acpitz",
            f"{zone}0/temp": "27800",
            f"{zone}1/type": "x86_pkg_temp",
            f"{zone}1/temp": "51000",
        },
    )
    assert [sensor.celsius for sensor in read_cpu_temperatures(tree)] == [51.0]


def test_memory_name_and_clock_are_the_machines(tmp_path):
    reading = CpuReader(live_like(tmp_path, {})).read()
    assert (reading.key, reading.vendor, reading.name) == ("cpu", "", "Test CPU @ 2.00GHz")
    assert reading.unit_count == 4
    assert (reading.memory_bytes, reading.state.memory_used_bytes) == (16 << 30, 8 << 30)
    # eight of them, from 1,900,000 kHz in steps of 100,000
    assert (reading.state.clock_mhz, reading.state.max_clock_mhz) == (2250.0, 3800.0)


def test_a_recording_has_no_utilisation(tmp_path):
    reading = CpuReader(live_like(tmp_path, {})).read()
    assert reading.state.utilization_percent is None
    assert reading.missing["utilization_percent"] == "is not in a recording"


def test_without_psutil_the_utilisation_is_missing_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    reading = CpuReader(Tree()).read()
    assert reading.state.utilization_percent is None
    assert "psutil is not installed: " in reading.missing["utilization_percent"]
    assert "monitor" in reading.missing["utilization_percent"]


def test_with_psutil_the_second_reading_has_a_utilisation(monkeypatch):
    pytest.importorskip("psutil", reason="psutil is not installed")
    reader = CpuReader(Tree())
    monkeypatch.setattr(module.time, "monotonic", lambda: 1e9)
    utilization = reader.read().state.utilization_percent
    assert utilization is not None
    assert 0 <= utilization <= 100


def test_a_damaged_tree_raises_nothing(tmp_path):
    files = dict.fromkeys((*PACKAGES, *SENSORS, "proc/meminfo", "proc/cpuinfo"), "\x00�no")
    reading = CpuReader(Tree(build(tmp_path, files))).read()
    assert reading.state.memory_used_bytes is None
    assert reading.state.power_w is None
