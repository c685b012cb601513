"""Limits of this process: control groups, ulimits, shared memory, and its container."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from portagpu.facts.host.cgroup import CgroupLimits, read_cgroup
from portagpu.facts.host.tree import Tree, size_bytes, to_int

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
