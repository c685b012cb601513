"""Files: written completely or not at all, read up to a size limit, temporary, and trusted.

Writing creates a temporary file in the same folder and renames it. The process that creates a
temporary file or folder locks it (flock(2)). The kernel releases the lock when the last process
that holds it ends, so that no process uses what is not locked: the next process removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType


def read_bounded(
    path: str | os.PathLike[str], most: int, *, follow: bool = True, last: bool = False
) -> bytes:
    """The first ``most`` bytes of a regular file, or its last ones; it never waits.

    Raises OSError for what cannot be read, for a pipe, device or folder, and without ``follow``
    for a symbolic link.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except ValueError as error:  # a null character or a lone surrogate
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        # open() of a folder's descriptor would raise without closing it
        with open(descriptor, "rb", closefd=False) as stream:
            if last:
                stream.seek(max(0, os.fstat(descriptor).st_size - most))
            data: bytes | None = stream.read(most)
            if data is None:  # one of the kernel's that has nothing to say yet
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return data
    finally:
        os.close(descriptor)


def write_atomic(path: str | os.PathLike[str], text: str) -> Path:
    """Write ``text`` (UTF-8) to ``path`` and return the path.

    Missing parent folders are made, a symbolic link is followed, and permissions are those of the
    user's umask. A device, pipe or terminal (``/dev/stdout``) cannot be replaced and is written
    into. What UTF-8 cannot express, such as a lone surrogate, is written as a backslash escape.
    Raises OutputError, with nothing left behind, when the folder is read-only, the disk is full,
    ``path`` is a folder, or it leads over another user's link in a folder that all may write.
    """
    target = Path(path)
    data = text.encode("utf-8", "backslashreplace")
    try:
        place = destination(target)
        if _is_special(target):
            target.write_bytes(data)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            _replace(place, data, 0o666)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise _cannot_write(path, error) from error
    return target


def write_parts(path: str | os.PathLike[str], parts: Iterable[bytes]) -> Path:
    """Write the parts one after another as :func:`write_atomic` does, and return the path.

    Only one part is in memory at a time. An error of ``parts`` leaves nothing behind.
    """
    target = Path(path)
    try:
        place = destination(target)
        if _is_special(target):
            with target.open("wb") as stream:
                stream.writelines(parts)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            with _temporary_file(place.parent, parts, 0o666) as temporary:
                temporary.replace(place)
    except OSError as error:
        raise _cannot_write(path, error) from error
    return target


class GrowingFile:
    """A file that gets whole texts one after another, and has each of them at once.

    It is emptied when it is opened. A text that cannot be written whole leaves nothing of itself in
    a regular file. Raises OutputError where :func:`write_atomic` does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            place = destination(Path(path))
            place.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(place, flags, 0o666)
        except (OSError, ValueError) as error:
            raise _cannot_write(path, error) from error

    def write(self, text: str) -> None:
        """Append ``text`` (UTF-8); raises OutputError."""
        rest = memoryview(text.encode("utf-8", "backslashreplace"))
        is_file = stat.S_ISREG(os.fstat(self._file).st_mode)
        size = os.fstat(self._file).st_size if is_file else 0
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            if is_file:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, size)
                    os.lseek(self._file, size, os.SEEK_SET)
            raise _cannot_write(self._path, error) from error

    def close(self) -> None:
        """Close it; nothing can be written any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def write_private(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) to a file that only this user may read; new folders are private too.

    What is at ``path`` is replaced, also a link or a pipe. Raises OutputError as
    :func:`write_atomic` does.
    """
    try:
        for folder in reversed(path.parents):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
        _replace(path, text.encode(), 0o600)
    except OSError as error:
        raise _cannot_write(path, error) from error


def remove_file(path: Path) -> None:
    """Remove a file if it exists; raises OutputError where that is not possible."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the OutputError that ``write_atomic`` would raise for a small file at ``path``.

    Nothing is left behind, and an existing file stays unchanged. A device or pipe is not touched,
    because it would take the check for output.
    """
    target = Path(path)
    try:
        real = destination(target)
        if not _is_special(target):
            if real.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            with _temporary_folder(real.parent), _temporary_file(real.parent, (b"\n",), 0o666):
                pass
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error


@contextlib.contextmanager
def _temporary_folder(path: Path) -> Iterator[None]:
    """Create the folder for a while; new folders are removed afterwards."""
    made = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        with contextlib.suppress(OSError):
            for each in made:
                each.rmdir()


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a device, pipe or terminal, to which a second write appends."""
    try:
        return _is_special(Path(path))
    except ValueError:
        return False


def _cannot_write(path: str | os.PathLike[str], error: OSError | ValueError) -> OutputError:
    reason = getattr(error, "strerror", None) or str(error)
    # a path that ends a line, or is nothing, would not be seen
    named = path if str(path).isprintable() and str(path) else repr(str(path))
    return OutputError(
        f"cannot write {named}: {reason}; name a folder that is writable and has space"
    )


def _is_special(target: Path) -> bool:
    try:
        mode = target.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _replace(target: Path, data: bytes, mode: int) -> None:
    with _temporary_file(target.parent, (data,), mode) as temporary:
        temporary.replace(target)


@contextlib.contextmanager
def _temporary_file(folder: Path, parts: Iterable[bytes], mode: int) -> Iterator[Path]:
    """A new file in ``folder`` of these parts. It is removed unless it is renamed."""
    # not named after its target, whose name may already be as long as names can be
    temporary, descriptor = new_file(folder, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.writelines(parts)
            stream.flush()
            os.fsync(stream.fileno())
            yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


_MAX_LINKS: Final = 40
"""The number that the kernel follows (path_resolution(7))."""
_ROOT: Final = 0
_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class _Step:
    """A folder, link or file on a path; ``folder`` is the status of the folder that it is in."""

    place: Path
    about: os.stat_result
    folder: os.stat_result


def why_not_trusted(path: Path) -> str:
    """Why other users may control what is read at ``path``, and what to do; "" where they cannot.

    Trusted: every folder, link and file on the path belongs to this user or root, and others may
    not write to it. In a folder with the sticky bit, such as /tmp, they cannot replace files of
    other users. A missing file is trusted. Raises OSError where a file's status cannot be read.
    """
    steps, _ = _path_steps(path)
    for step in steps:
        mode = step.about.st_mode
        if step.about.st_uid not in (os.geteuid(), _ROOT):
            return f"{step.place} belongs to another user (uid {step.about.st_uid})"
        sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
        if mode & _BY_OTHERS and not sticky and not stat.S_ISLNK(mode):
            return f"others may write {step.place} (chmod go-w ends that)"
    return ""


def destination(path: Path) -> Path:
    """The path that ``path`` leads to, for writing; it need not exist.

    In a world-writable folder with the sticky bit, a link, pipe or device of another user is
    refused, as Linux does with ``fs.protected_symlinks`` and ``fs.protected_fifos``
    (proc_sys_fs(5)): it may redirect this user's output. Raises OSError for it, and for links in a
    circle.
    """
    steps, end = _path_steps(path)
    for step in steps:
        plain = stat.S_ISREG(step.about.st_mode) or stat.S_ISDIR(step.about.st_mode)
        for_all = step.folder.st_mode & stat.S_ISVTX and step.folder.st_mode & stat.S_IWOTH
        if not plain and for_all and step.about.st_uid not in (os.geteuid(), step.folder.st_uid):
            raise OSError(errno.EACCES, f"{step.place} is a link, pipe or device of another user")
    return end


def _path_steps(path: Path) -> tuple[list[_Step], Path]:
    """Every step from the root to the target of ``path``, and that target."""
    place = Path("/")
    folder = place.lstat()
    steps = [_Step(place, folder, folder)]
    links = 0
    waiting = list(reversed((Path.cwd() / path).parts[1:]))
    while waiting:
        name = waiting.pop()
        if name == "..":
            place = place.parent
            folder = place.lstat()
            continue
        try:
            about = (place / name).lstat()
        except FileNotFoundError:
            return steps, place.joinpath(name, *reversed(waiting))
        steps.append(_Step(place / name, about, folder))
        if not stat.S_ISLNK(about.st_mode):
            place, folder = place / name, about
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = (place / name).readlink()
        if target.is_absolute():
            place = Path("/")
            folder = place.lstat()
        waiting.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    return steps, place


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
