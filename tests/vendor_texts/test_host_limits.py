"""Control groups, resource limits and signs of a container."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.facts.host import UNLIMITED, read_host
from portagpu.facts.host.limits import CgroupLimits
from tests.support.host_trees import GIB, build, two_socket_x86

if TYPE_CHECKING:
    from pathlib import Path

V2_MOUNT = "35 24 0:30 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
    "32 23 0:29 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    "33 23 0:30 / /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset"
)
V1_UNLIMITED = "9223372036854771712"


def _cgroup(root: Path, files: dict[str, str]) -> CgroupLimits:
    return read_host(build(root, files)).limits.cgroup


def test_version_2_limits_of_a_container(tmp_path: Path) -> None:
    limits = _cgroup(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNT,
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/cpu.max": "150000 100000",
            "sys/fs/cgroup/memory.max": str(4 * GIB),
            "sys/fs/cgroup/memory.current": str(GIB),
            "sys/fs/cgroup/cpuset.cpus.effective": "0-3",
        },
    )
    assert limits == CgroupLimits(2, 1.5, 4 * GIB, GIB, (0, 1, 2, 3))


def test_the_smallest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    limits = _cgroup(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNT,
            "proc/self/cgroup": "0::/job/step",
            "sys/fs/cgroup/job/cpu.max": "200000 100000",
            "sys/fs/cgroup/job/step/cpu.max": "max 100000",
            "sys/fs/cgroup/job/memory.max": "max",
            "sys/fs/cgroup/job/step/memory.max": str(2 * GIB),
        },
    )
    assert (limits.cpu_quota_cpus, limits.memory_max_bytes) == (2.0, 2 * GIB)


def test_max_is_not_a_limit(tmp_path: Path) -> None:
    limits = _cgroup(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNT,
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/cpu.max": "max 100000",
            "sys/fs/cgroup/memory.max": "max",
        },
    )
    assert limits == CgroupLimits(2, None, None, None, None)


def test_version_1_limits_of_a_container(tmp_path: Path) -> None:
    limits = _cgroup(
        tmp_path,
        {
            "proc/self/mountinfo": V1_MOUNTS,
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/\n3:cpuset:/\n0::/x",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(8 * GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "12345",
            "sys/fs/cgroup/cpuset/cpuset.cpus": "2-3",
        },
    )
    assert limits == CgroupLimits(1, 4.0, 8 * GIB, 12345, (2, 3))


def test_version_1_unlimited_is_not_a_limit(tmp_path: Path) -> None:
    limits = _cgroup(
        tmp_path,
        {
            "proc/self/mountinfo": V1_MOUNTS,
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_UNLIMITED,
        },
    )
    assert (limits.cpu_quota_cpus, limits.memory_max_bytes) == (None, None)


def test_a_group_outside_the_namespace_is_read_at_the_mount(tmp_path: Path) -> None:
    limits = _cgroup(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNT,
            "proc/self/cgroup": "0::/../../other",
            "sys/fs/cgroup/memory.max": str(GIB),
        },
    )
    assert limits.memory_max_bytes == GIB


def test_no_control_groups_do_not_limit(tmp_path: Path) -> None:
    assert _cgroup(tmp_path, {}) == CgroupLimits(None, None, None, None, None)


@pytest.mark.parametrize(
    ("quota", "cpus"), [("150000 100000", 1), ("50000 100000", 1), ("800000 100000", 6)]
)
def test_usable_cpus_are_bounded_by_quota_and_affinity(
    tmp_path: Path, quota: str, cpus: int
) -> None:
    files = two_socket_x86() | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": "0::/",
        "sys/fs/cgroup/cpu.max": quota,
    }
    assert read_host(build(tmp_path, files)).usable_cpus == cpus


def test_usable_memory_is_bounded_by_the_control_group(tmp_path: Path) -> None:
    files = two_socket_x86() | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": "0::/",
        "sys/fs/cgroup/memory.max": str(3 * GIB),
    }
    assert read_host(build(tmp_path, files)).usable_memory_bytes == 3 * GIB


def test_soft_limits_are_read_in_their_units(tmp_path: Path) -> None:
    ulimits = read_host(build(tmp_path, two_socket_x86())).limits.ulimits
    assert (ulimits.open_files, ulimits.processes) == (1024, 63000)
    assert (ulimits.stack_bytes, ulimits.locked_memory_bytes) == (8 << 20, UNLIMITED)


def test_shared_memory_of_a_recording_comes_from_its_mount(tmp_path: Path) -> None:
    line = "30 25 0:27 / /dev/shm rw,nosuid - tmpfs shm rw,size=65536k,inode64"
    root = build(tmp_path, {"proc/self/mountinfo": line, "dev/shm/x": ""})
    assert read_host(root).limits.shm_bytes == 64 << 20


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({".dockerenv": ""}, (True, "docker")),
        ({"run/.containerenv": ""}, (True, "podman")),
        ({"run/systemd/container": "lxc"}, (True, "lxc")),
        ({"proc/1/cgroup": "0::/kubepods/pod1/abc", "proc/1/comm": "init"}, (True, "kubepods")),
        ({"proc/1/comm": "systemd", "proc/1/cgroup": "0::/init.scope"}, (False, None)),
        ({"proc/1/comm": "python3", "proc/1/cgroup": "0::/"}, (None, None)),
    ],
    ids=["docker", "podman", "systemd", "kubernetes", "host", "unknown"],
)
def test_container_is_yes_no_or_unknown(
    tmp_path: Path, files: dict[str, str], expected: tuple[bool | None, str | None]
) -> None:
    limits = read_host(build(tmp_path, files)).limits
    assert (limits.container, limits.container_kind) == expected
