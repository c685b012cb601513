"""Limits of this process: control groups, ulimits, shared memory, and its container.

Control groups, versions 1 and 2: Linux ``Documentation/admin-guide/cgroup-v2.rst`` and
``cgroup-v1/``. A limit holds for everything below it, so the smallest one on the way to the mount
point counts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.facts.host.tree import Tree, cpu_list, size_bytes, to_int

if TYPE_CHECKING:
    from collections.abc import Iterator


UNLIMITED: Final = "unlimited"

_CONTAINER_FILES: Final = (
    (".dockerenv", "docker"),
    ("run/.containerenv", "podman"),
    (".singularity.d", "apptainer"),
    ("var/run/secrets/kubernetes.io", "kubernetes"),
)
_CGROUP_WORDS: Final = ("kubepods", "docker", "libpod", "containerd", "lxc")
_ULIMITS: Final = {
    "open_files": "Max open files",
    "locked_memory_bytes": "Max locked memory",
    "processes": "Max processes",
    "stack_bytes": "Max stack size",
}


@dataclass(frozen=True, slots=True)
class Ulimits:
    """Soft resource limits: a number, "unlimited", or None where unknown."""

    open_files: int | str | None
    locked_memory_bytes: int | str | None
    processes: int | str | None
    stack_bytes: int | str | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of this process.

    ``container`` is True, False or None (unknown). ``container_kind`` names the evidence.
    ``shm_bytes`` is the size of ``/dev/shm``.
    """

    container: bool | None
    container_kind: str | None
    cgroup: CgroupLimits
    ulimits: Ulimits
    shm_bytes: int | None


def read_limits(tree: Tree) -> Limits:
    """Read the limits of this process; unknown is None."""
    container, kind = _container(tree)
    return Limits(container, kind, read_cgroup(tree), _ulimits(tree), _shm_bytes(tree))


def _container(tree: Tree) -> tuple[bool | None, str | None]:
    named = tree.text("run/systemd/container")
    if named:
        return True, named
    for path, kind in _CONTAINER_FILES:
        if tree.exists(path):
            return True, kind
    groups = tree.text("proc/1/cgroup") or ""
    word = next((w for w in _CGROUP_WORDS if w in groups), None)
    if word is not None:
        return True, word
    first_process = tree.text("proc/1/comm")
    if first_process in {"systemd", "init"}:
        return False, None
    return None, None


def _ulimits(tree: Tree) -> Ulimits:
    lines = tree.lines("proc/self/limits")
    found: dict[str, int | str | None] = dict.fromkeys(_ULIMITS)
    for field, title in _ULIMITS.items():
        line = next((line for line in lines if line.startswith(title)), None)
        soft = line[len(title) :].split()[:1] if line else []
        found[field] = UNLIMITED if soft == [UNLIMITED] else to_int(soft[0] if soft else None)
    return Ulimits(**found)


def _shm_bytes(tree: Tree) -> int | None:
    # a recording's /dev/shm lies on the reader's disk, so only the live machine is asked
    if tree.is_live:
        try:
            status = os.statvfs("/dev/shm")  # noqa: S108
        except OSError:
            return None
        return status.f_blocks * status.f_frsize
    size = None
    for line in tree.lines("proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        if left.split()[4:5] == ["/dev/shm"]:  # noqa: S108
            options = right.split()[-1:] or [""]
            text = next((o for o in options[0].split(",") if o.startswith("size=")), None)
            size = size_bytes(text.removeprefix("size=")) if text else None
    return size


# Version 1 has no word for "no limit": it prints the largest page counter (PAGE_COUNTER_MAX, near
# 2^63 bytes). No machine comes near this bound.
_UNLIMITED_BYTES: Final = 1 << 60
_MAX_PATH: Final = 4096
"""Characters (PATH_MAX); each folder on the way is asked for its limits."""


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """``version`` of the memory or CPU controller (None: no cgroups seen); None means no limit."""

    version: int | None
    cpu_quota_cpus: float | None
    memory_max_bytes: int | None
    memory_used_bytes: int | None
    cpuset_cpus: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class _Mount:
    version: int
    point: str
    base: str
    controllers: frozenset[str]


def read_cgroup(tree: Tree) -> CgroupLimits:
    """Read the limits of this process's groups. What cannot be read counts as no limit."""
    mounts = tuple(_mounts(tree))
    groups = _memberships(tree)
    cpu = _folders(tree, mounts, groups, "cpu")
    memory = _folders(tree, mounts, groups, "memory")
    cpuset = _folders(tree, mounts, groups, "cpuset")
    version = next((v for v, folders in (memory, cpu, cpuset) if folders), None)
    return CgroupLimits(
        version=version,
        cpu_quota_cpus=min(_quotas(tree, *cpu), default=None),
        memory_max_bytes=min(_memory_limits(tree, *memory), default=None),
        memory_used_bytes=_memory_used(tree, *memory),
        cpuset_cpus=_cpuset(tree, *cpuset),
    )


def _mounts(tree: Tree) -> Iterator[_Mount]:
    for line in tree.lines("proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        words, kind = left.split(), right.split()
        if len(words) < 5 or len(kind) < 3 or kind[0] not in {"cgroup", "cgroup2"}:
            continue
        if len(line) > 2 * _MAX_PATH:
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        options = frozenset(kind[2].split(","))
        yield _Mount(
            version, words[4].strip("/"), words[3], options if version == 1 else frozenset()
        )


def _memberships(tree: Tree) -> dict[str, str]:
    """Controller -> the group's path; version 2 under the empty name."""
    found: dict[str, str] = {}
    for line in tree.lines("proc/self/cgroup"):
        parts = line.split(":", 2)
        if len(parts) == 3 and len(line) <= _MAX_PATH:
            found.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return found


def _folders(
    tree: Tree, mounts: tuple[_Mount, ...], groups: dict[str, str], controller: str
) -> tuple[int, tuple[str, ...]]:
    """The version of cgroups with ``controller``, and the folders from the group to the mount."""
    version = 1 if controller in groups else 2
    mount = next(
        (
            m
            for m in mounts
            if m.version == version and (version == 2 or controller in m.controllers)
        ),
        None,
    )
    if mount is None:
        return version, ()
    path = groups.get(controller if version == 1 else "", "/")
    # Without a cgroup namespace a container sees the host's path, of which its mount is the root.
    if mount.base != "/" and (path + "/").startswith(mount.base + "/"):
        path = path[len(mount.base) :]
    parts = [p for p in path.split("/") if p]
    if ".." in parts or not tree.exists("/".join((mount.point, *parts))):
        parts = []
    return version, tuple("/".join((mount.point, *parts[:n])) for n in range(len(parts), -1, -1))


def _quotas(tree: Tree, version: int, folders: tuple[str, ...]) -> Iterator[float]:
    for folder in folders:
        if version == 2:
            quota_text, _, period_text = (tree.text(f"{folder}/cpu.max") or "").partition(" ")
            quota, period = to_int(quota_text), to_int(period_text)
        else:
            quota = tree.integer(f"{folder}/cpu.cfs_quota_us")
            period = tree.integer(f"{folder}/cpu.cfs_period_us")
        if quota is not None and period is not None and quota > 0 and period > 0:
            yield quota / period


def _memory_limits(tree: Tree, version: int, folders: tuple[str, ...]) -> Iterator[int]:
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    for folder in folders:
        limit = tree.integer(f"{folder}/{name}")
        if limit is not None and 0 <= limit < _UNLIMITED_BYTES:
            yield limit


def _memory_used(tree: Tree, version: int, folders: tuple[str, ...]) -> int | None:
    return tree.integer(_usage_file(version, folders[0])) if folders else None


def _usage_file(version: int, folder: str) -> str:
    return f"{folder}/{'memory.current' if version == 2 else 'memory.usage_in_bytes'}"


def memory_usage_file(tree: Tree) -> str | None:
    """The file with the memory use of this process's group; None without a group."""
    version, folders = _folders(tree, tuple(_mounts(tree)), _memberships(tree), "memory")
    return _usage_file(version, folders[0]) if folders else None


def _cpuset(tree: Tree, version: int, folders: tuple[str, ...]) -> tuple[int, ...] | None:
    names = ("cpuset.cpus.effective",) if version == 2 else ("cpuset.effective_cpus", "cpuset.cpus")
    for folder in folders:
        for name in names:
            cpus = cpu_list(tree.text(f"{folder}/{name}"))
            if cpus:
                return cpus
    return None
