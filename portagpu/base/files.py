"""Writes files completely or not at all, and reads files up to a size limit.

Writing creates a temporary file in the same folder and renames it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from portagpu.base.errors import OutputError
from portagpu.base.scratch import new_file
from portagpu.base.trust import destination

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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
            raise OSError(errno.EINVAL, "is no regular file")
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
