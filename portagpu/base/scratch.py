"""Temporary folders and files. The next process removes what a killed process left.

The process that creates one locks it (flock(2)). The kernel releases the lock when the last process
that holds it ends. So no process uses what is not locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import OutputError

if TYPE_CHECKING:
    from types import TracebackType

_NAME: Final = re.compile(r"\.?portagpu-[a-z]+-([0-9a-f]{8})-[0-9a-f]{32}")
_OTHER_MACHINE_S: Final = 86_400.0
"""How long files of other machines on a shared disk are kept: their locks may be invisible."""
_swept: set[Path] = set()


class Scratch:
    """A temporary folder of this process; the context manager returns its path and removes it.

    ``kind`` is a word in its name. It is in ``parent``, with a hidden name, or by default in the
    folder for temporary files. Leftovers of killed processes are removed first. Raises OSError
    where ``parent`` cannot be written, and OutputError where no temporary folder can.
    """

    def __init__(self, kind: str, parent: Path | None = None) -> None:
        self.path: Path
        if parent is not None:
            self.path, self._lock = _new_folder(parent, f".portagpu-{kind}")
            return
        try:
            place = Path(tempfile.gettempdir())
            self.path, self._lock = _new_folder(place, f"portagpu-{kind}")
        except OSError as error:
            raise OutputError(
                f"there is no folder for temporary files ({error.strerror}); "
                "set TMPDIR to one that is writable"
            ) from error

    def remove(self) -> None:
        """Remove the folder with all that is in it; a second time does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def new_file(folder: Path, mode: int) -> tuple[Path, int]:
    """A new hidden file, open for writing, with ``mode`` reduced by the umask.

    It belongs to this process until the descriptor is closed. Raises OSError.
    """
    sweep(folder)
    while True:
        path = folder / _name(".portagpu-file")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        if _lock_new(path, descriptor):
            return path, descriptor


def _new_folder(parent: Path, stem: str) -> tuple[Path, int]:
    sweep(parent)
    while True:
        path = parent / _name(stem)
        path.mkdir(mode=0o700)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            # swept by another process, before it was locked
            continue
        if _lock_new(path, descriptor):
            return path, descriptor


def _name(stem: str) -> str:
    return f"{stem}-{_boot()}-{os.urandom(16).hex()}"


def _boot() -> str:
    """An id of this machine since its start; equal in its containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii")[:8]
    except OSError:
        return "00000000"


def _lock_new(path: Path, descriptor: int) -> bool:
    """Lock a new file or folder; False, and closed, where another process is removing it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    except OSError:
        # a file system without locks, where nothing is swept either
        return True
    if _is_there(path, descriptor):
        return True
    os.close(descriptor)
    return False


def _is_there(path: Path, descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False


def sweep(folder: Path) -> None:
    """Remove leftovers of this user's killed processes in ``folder``; once in each process."""
    if folder in _swept:
        return
    _swept.add(folder)
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if match := _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_left(Path(entry.path), match[1])


def _remove_left(path: Path, boot: str) -> None:
    """Remove this user's leftover; raises OSError if a process still holds it.

    Never a link, and nothing that another user made.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(descriptor)
        if about.st_uid != os.geteuid():
            return
        if boot != _boot() and time.time() - about.st_mtime < _OTHER_MACHINE_S:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_there(path, descriptor):
            return
        if stat.S_ISDIR(about.st_mode):
            shutil.rmtree(path)
        elif stat.S_ISREG(about.st_mode):
            path.unlink()
    finally:
        os.close(descriptor)
