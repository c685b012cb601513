"""Memory of a CPU: a process's resident memory, and the free memory of machine and container."""

from __future__ import annotations

import ctypes
import os
import re
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

from portagpu.base.errors import Unsupported
from portagpu.facts.host.limits import memory_usage_file, read_cgroup
from portagpu.facts.host.tree import Tree

ROOT: Final = Tree()
_STATUS: Final = "/proc/self/status"
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"
"""What resets VmHWM to the current VmRSS: Linux, Documentation/filesystems/proc.rst, clear_refs."""
_peak = 0
"""The highest peak that was returned since the last reset."""

_MEMINFO: Final = re.compile(rb"^Mem(Total|Available):\s+(\d{1,18}) kB", re.MULTILINE)
_FIELDS: Final = re.compile(rb"Vm(HWM|RSS):\s+(\d+) kB")


def resident() -> tuple[int, int]:
    """(current, peak) resident memory of this process in bytes: VmRSS and VmHWM.

    Raises Unsupported where the kernel does not say.
    """
    with open(_STATUS, "rb") as stream:  # noqa: PTH123 - this is read in every training step
        found = dict(_FIELDS.findall(stream.read()))
    if b"RSS" not in found:
        raise Unsupported(f"{_STATUS} does not state resident memory on this kernel")
    global _peak
    current = int(found[b"RSS"]) * 1024
    # the kernel states a high-water mark that it has not stored yet, so that it may fall again by
    # what its per-CPU counters lag behind; a peak does not fall until it is reset
    _peak = max(_peak, current, int(found.get(b"HWM", b"0")) * 1024)
    return current, _peak


def _forget_peak() -> None:
    global _peak
    _peak = 0


# a forked child's peak is its own
os.register_at_fork(after_in_child=_forget_peak)


def can_reset_peak() -> bool:
    """Whether the kernel lets this process reset its peak; some sandboxes do not."""
    try:
        with _CLEAR_REFS.open("w"):
            return True
    except OSError:
        return False


def reset_peak() -> None:
    """Set the peak to the current resident memory; raises Unsupported where it cannot be."""
    try:
        with _CLEAR_REFS.open("w") as stream:
            stream.write(_RESET_PEAK)
    except OSError as error:
        raise Unsupported(
            f"{_CLEAR_REFS} cannot be written ({error.strerror}), so the peak of resident memory "
            "cannot be reset here; compare memory_allocated() before and after instead"
        ) from error
    _forget_peak()


def trim() -> None:
    """Give memory that was freed but is still held by the C library's heap back to the kernel.

    ``malloc_trim`` is glibc's; another C library keeps no such memory that could be asked back.
    """
    call = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if call is not None:
        call(0)


def free_and_total() -> tuple[int, int]:
    """(free, total) bytes that this process may use: the machine's, or the container's if less.

    What limits the container is read again once a second, what is used at every call.
    """
    found = dict(_MEMINFO.findall(_read_start(ROOT.root / "proc/meminfo")))
    if len(found) < 2:
        raise Unsupported("/proc/meminfo does not state total and available memory")
    total, free = (int(found[name]) * 1024 for name in (b"Total", b"Available"))
    limit, usage = _container(ROOT, int(time.monotonic()))
    if limit is not None:
        used = _read_start(usage).strip() if usage is not None else b""
        total = min(total, limit)
        free = max(0, min(free, limit - (int(used) if used.isdigit() else 0)))
    return free, total


@lru_cache(maxsize=1)
def _container(tree: Tree, second: int) -> tuple[int | None, Path | None]:
    """The container's limit in bytes and the file with its use, cached for that second."""
    del second
    usage = memory_usage_file(tree)
    return read_cgroup(tree).memory_max_bytes, None if usage is None else tree.root / usage


def _read_start(path: Path) -> bytes:
    """The first 4096 bytes of a kernel file; empty where it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, 4096)
    except OSError:
        return b""
    finally:
        os.close(handle)
