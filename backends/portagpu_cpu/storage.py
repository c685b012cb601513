"""Files that are read and written past the kernel's cache of pages, with O_DIRECT (open(2)).

The reference for direct storage: the memory is the host's, whole pages of it. The kernel counts
what a process fetched from storage and sent to it (proc_pid_io(5), ``read_bytes`` and
``write_bytes``). A file system in memory takes O_DIRECT too (tmpfs since Linux 6.6), and nothing is
counted there: such a folder is refused.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from portagpu.base.errors import Unsupported
from portagpu.devices.plugin_parts import DirectStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_IO: Final = Path("/proc/self/io")


def counters() -> Mapping[str, int]:
    """``read_bytes`` and ``write_bytes`` of this process; empty where the kernel has none."""
    try:
        lines = _IO.read_text("ascii").splitlines()
    except OSError:
        return {}
    found = dict(line.split(": ", 1) for line in lines if ": " in line)
    return {name: int(found[name]) for name in ("read_bytes", "write_bytes") if name in found}


class CpuFile:
    """A file opened with O_DIRECT, and whole pages of memory of its size."""

    def __init__(self, path: Path, size: int) -> None:
        self._pages = mmap.mmap(-1, size)
        self.memory = torch.frombuffer(self._pages, dtype=torch.uint8)
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            raise Unsupported(
                f"the file system takes no O_DIRECT: {error.strerror}; set TMPDIR to a folder on "
                "a disk"
            ) from error
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def read(self) -> None:
        """Fill ``memory`` from the file."""
        self._whole(os.preadv)

    def write(self) -> None:
        """Fill the file from ``memory``, and have the disk keep it."""
        self._whole(os.pwritev)
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _whole(self, move: Callable[[int, list[memoryview], int], int]) -> None:
        at, view = 0, memoryview(self._pages)
        while at < len(view):
            moved = move(self._descriptor, [view[at:]], at)
            if not moved:
                raise OSError(f"the file ends after {at} of {len(view)} bytes")
            at += moved

    def _check(self) -> None:
        """Raise Unsupported where a read does not come from storage."""
        before = counters()
        try:
            self.read()
        except OSError as error:
            raise Unsupported(f"a read with O_DIRECT failed: {error}") from error
        after = counters()
        if not after:
            raise Unsupported(f"the kernel has no {_IO}, which would show that storage was read")
        fetched = after["read_bytes"] - before["read_bytes"]
        if fetched < len(self._pages):
            raise Unsupported(
                f"the kernel counted {fetched} of {len(self._pages)} bytes from storage: this "
                "folder is in memory; set TMPDIR to one on a disk"
            )


def _open(device: torch.device, path: Path, size: int) -> CpuFile:
    del device
    return CpuFile(path, size)


STORAGE: Final = DirectStorage(
    library="O_DIRECT",
    open=_open,
    proof="the kernel counted every byte of a first read as read from storage",
    counters=counters,
)
