"""One runner at a time in a folder of a fleet run."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import OutputError, PortagpuError
from portagpu.base.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE: Final = "fleet.lock"
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Of file systems without locks, such as some mounts of Lustre: there is no check then."""


class FleetBusy(PortagpuError, RuntimeError):
    """Another process works in the folder; the message says which."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made where there is none. Raises FleetBusy and OutputError.

    The kernel releases it at the end of this process, however it ends. NFS knows the lock on all
    machines (flock(2)).
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OutputError(
            f"cannot write into {folder}: {error.strerror}; name a folder that is writable and "
            "shared with the nodes"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = excerpt(os.pread(descriptor, 200, 0).decode("utf-8", "replace"))
            raise FleetBusy(
                f"another portagpu fleet works in {folder} ({holder or 'it says no name'}): "
                "wait for its end, or name another folder"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise OutputError(f"cannot lock {folder}: {error.strerror}") from error
        with contextlib.suppress(OSError):
            # for people alone: a full disk does not matter
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)
