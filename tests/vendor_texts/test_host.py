"""What the machine is, from trees whose answers were worked out by hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from portagpu.facts.host import Cache, NumaNode, Temperature, read_host, visibility
from portagpu.facts.host.cpu import matrix_units, vector_bits, vector_units, x86_64_level
from portagpu.facts.host.tree import cpu_list, format_cpu_list, size_bytes, to_float, to_int
from tests.support.host_trees import GIB, X86_FLAGS, aarch64, build, two_socket_x86

if TYPE_CHECKING:
    from pathlib import Path


def test_two_socket_x86_machine_is_read(tmp_path: Path) -> None:
    cpu = read_host(build(tmp_path, two_socket_x86())).cpu

    assert (cpu.arch, cpu.vendor, cpu.model_name) == (
        "x86-64",
        "GenuineIntel",
        "Test CPU @ 2.00GHz",
    )
    assert (cpu.sockets, cpu.physical_cores, cpu.logical_cpus, cpu.affinity_cpus) == (2, 4, 8, 6)
    assert cpu.x86_64_level == 4
    assert cpu.vector_bits == 512
    assert {"SSE4.2", "AVX2", "AVX-512F", "AVX-512BF16"} <= set(cpu.vector_units)
    assert set(cpu.matrix_units) == {"AMX-TILE", "AMX-INT8", "AMX-BF16"}
    assert cpu.caches == (
        Cache(1, "data", 48 * 1024, instances=4, shared_by_cpus=2),
        Cache(3, "unified", 105 << 20, instances=2, shared_by_cpus=4),
    )
    assert cpu.numa_nodes == (
        NumaNode(0, (0, 2, 4, 6), 8 * GIB),
        NumaNode(1, (1, 3, 5, 7), 8 * GIB),
    )


def test_memory_kernel_and_load_are_read(tmp_path: Path) -> None:
    host = read_host(build(tmp_path, two_socket_x86()))

    assert (host.memory.total_bytes, host.memory.available_bytes) == (16 * GIB, 8 * GIB)
    assert host.memory.swap_total_bytes == 0, "no swap is 0, not unknown"
    assert (host.memory.huge_pages_total, host.memory.huge_pages_free) == (4, 3)
    assert host.memory.huge_page_size_bytes == 2 << 20
    assert (host.kernel.release, host.kernel.machine) == ("6.8.0-45-generic", "x86_64")
    assert host.sensors.load_average == (0.5, 1.25, 2.0)


def test_aarch64_machine_is_read(tmp_path: Path) -> None:
    cpu = read_host(build(tmp_path, aarch64())).cpu

    assert (cpu.arch, cpu.vendor, cpu.model_name) == ("aarch64", "ARM", "Neoverse-V2")
    assert cpu.vector_units == (
        "NEON",
        "NEON-FP16",
        "NEON-DOTPROD",
        "BF16",
        "I8MM",
        "SVE",
        "SVE2",
        "SVE-BF16",
        "SVE-I8MM",
    )
    assert cpu.vector_bits == 128, "16 bytes of SVE are 128 bits"
    assert cpu.matrix_units == ()
    assert cpu.x86_64_level is None
    assert cpu.sockets is None, "package -1 means that the firmware does not say"
    assert (cpu.physical_cores, cpu.logical_cpus) == (2, 2)


def test_unlisted_arm_part_has_no_name(tmp_path: Path) -> None:
    files = aarch64()
    files["proc/cpuinfo"] = files["proc/cpuinfo"].replace("0xd4f", "0xfff").replace("0x41", "0x99")
    cpu = read_host(build(tmp_path, files)).cpu
    assert (cpu.arch, cpu.vendor, cpu.model_name) == ("aarch64", None, None)


def test_cores_come_from_cpuinfo_where_sysfs_is_hidden(tmp_path: Path) -> None:
    files = {k: v for k, v in two_socket_x86().items() if not k.startswith("sys/")}
    cpu = read_host(build(tmp_path, files)).cpu
    assert (cpu.sockets, cpu.physical_cores, cpu.logical_cpus) == (2, 4, 8)
    assert cpu.caches == ()


def test_unknown_is_none_and_never_zero(tmp_path: Path) -> None:
    host = read_host(tmp_path)

    assert host.cpu.arch is None
    assert host.cpu.logical_cpus is None
    assert host.cpu.affinity_cpus is None
    assert host.cpu.vector_bits is None
    assert host.memory.total_bytes is None
    assert host.kernel.release is None
    assert host.limits.container is None
    assert host.limits.shm_bytes is None
    assert host.limits.ulimits.open_files is None
    assert host.sensors.clocks.by_cpu_mhz == ()
    assert host.sensors.throttling.core_count is None
    assert host.sensors.load_average is None
    assert (host.usable_cpus, host.usable_memory_bytes) == (None, None)


@pytest.mark.parametrize(
    "damage", ["", "\x00\x00", "::::\n:\n- - -", "nan -1 99999999999999999999"]
)
def test_damaged_files_do_not_raise(tmp_path: Path, damage: str) -> None:
    host = read_host(build(tmp_path, dict.fromkeys(two_socket_x86(), damage)))
    assert host.memory.total_bytes is None, f"{damage!r} is not an amount of memory"
    assert host.sensors.load_average is None, f"{damage!r} is not a load average"


def test_a_file_that_is_a_folder_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "proc/meminfo").mkdir(parents=True)
    assert read_host(tmp_path).memory.total_bytes is None


def test_binary_noise_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_bytes(bytes(range(256)))
    assert read_host(tmp_path).cpu.model_name is None


def test_clocks_prefer_cpufreq(tmp_path: Path) -> None:
    clocks = read_host(build(tmp_path, two_socket_x86())).sensors.clocks
    assert clocks.source == "cpufreq"
    assert clocks.by_cpu_mhz == (1900, 2000, 2100, 2200, 2300, 2400, 2500, 2600)
    assert (clocks.maximum_mhz, clocks.governor) == (3800, "performance")


def test_clocks_fall_back_to_cpuinfo(tmp_path: Path) -> None:
    files = {k: v for k, v in two_socket_x86().items() if "cpufreq" not in k}
    clocks = read_host(build(tmp_path, files)).sensors.clocks
    assert clocks.source == "cpuinfo"
    assert clocks.by_cpu_mhz[:2] == (2000.5, 2001.5)
    assert clocks.maximum_mhz is None


def test_throttle_counts_add_cores_and_packages_once(tmp_path: Path) -> None:
    throttling = read_host(build(tmp_path, two_socket_x86())).sensors.throttling
    assert throttling.core_count == 0 + 1 + 2 + 3, "both threads of a core repeat its count"
    assert throttling.package_count == 10 + 11, "all CPUs of a package repeat its count"


def test_temperatures_come_from_zones_and_chips(tmp_path: Path) -> None:
    files = {
        "sys/class/thermal/thermal_zone0/temp": "45500",
        "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp",
        "sys/class/thermal/thermal_zone0/trip_point_0_type": "passive",
        "sys/class/thermal/thermal_zone0/trip_point_0_temp": "90000",
        "sys/class/thermal/thermal_zone0/trip_point_1_type": "critical",
        "sys/class/thermal/thermal_zone0/trip_point_1_temp": "105000",
        "sys/class/thermal/thermal_zone1/type": "acpitz",
        "sys/class/hwmon/hwmon2/name": "k10temp",
        "sys/class/hwmon/hwmon2/temp1_input": "51250",
        "sys/class/hwmon/hwmon2/temp1_label": "Tctl",
        "sys/class/hwmon/hwmon2/temp3_input": "broken",
    }
    assert read_host(build(tmp_path, files)).sensors.temperatures == (
        Temperature("thermal_zone0", "x86_pkg_temp", 45.5, 105.0),
        Temperature("hwmon2/temp1", "k10temp Tctl", 51.25, None),
    )


def test_live_machine_agrees_with_the_system_calls() -> None:
    host = read_host()
    # allowed: any number, but the same from /proc and from the system call
    assert host.cpu.affinity_cpus == len(os.sched_getaffinity(0))
    assert host.kernel.machine == os.uname().machine
    assert host.kernel.release == os.uname().release
    assert host.memory.total_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_visibility_keeps_empty_values_and_omits_unset_ones() -> None:
    environment = {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "0,1", "HOME": "/root"}
    assert visibility(environment) == {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("dropped", "level"),
    [("", 4), ("avx512vl", 3), ("bmi2", 2), ("sse4_2", 1), ("sse2", None)],
)
def test_x86_64_level_needs_every_feature_below_it(dropped: str, level: int | None) -> None:
    assert x86_64_level(frozenset(X86_FLAGS.split()) - {dropped}) == level


def test_scalable_vectors_are_as_wide_as_the_kernel_says() -> None:
    flags = frozenset({"asimd", "sve"})
    assert vector_bits(flags, 512) == 512
    assert vector_bits(flags, None) is None, "an SVE width is never guessed"
    assert vector_bits(frozenset({"asimd"}), None) == 128


def test_units_of_no_flags_are_none() -> None:
    assert vector_units(frozenset()) == ()
    assert matrix_units(frozenset({"sme", "smei8i32"})) == ("SME", "SME-I8I32")


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-2,8", (0, 1, 2, 8)),
        ("5", (5,)),
        ("", ()),
        ("0-", None),
        ("a", None),
        (None, None),
    ],
)
def test_cpu_list_reads_the_kernels_notation(
    text: str | None, cpus: tuple[int, ...] | None
) -> None:
    assert cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["0", "0-2,8", "1,3,5-6", ""])
def test_cpu_list_is_written_as_it_was_read(text: str) -> None:
    assert format_cpu_list(cpu_list(text) or ()) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("32K", 32768),
        ("2048 kB", 2 << 20),
        ("1G", GIB),
        ("512", 512),
        ("x", None),
        ("-1 kB", None),
        (None, None),
    ],
)
def test_sizes_are_binary(text: str | None, count: int | None) -> None:
    assert size_bytes(text) == count


def test_numbers_are_strict() -> None:
    assert (to_int("0x10de"), to_int("12"), to_int("1.5"), to_int("")) == (0x10DE, 12, None, None)
    assert (to_float("2000.5"), to_float("nan"), to_float("inf")) == (2000.5, None, None)
