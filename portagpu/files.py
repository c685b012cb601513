"""Files are written whole or not at all, and read with a bound.

Writing makes a temporary file beside the target and renames it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from portagpu.errors import OutputError


def read_bounded(path: str | os.PathLike[str], most: int) -> bytes:
    """The first ``most`` bytes of a regular file; it never waits.

    Raises OSError for what cannot be read, and for a pipe, device or folder.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a null character or a lone surrogate
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        # open() of a folder's descriptor would raise without closing it
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read(most)
    finally:
        os.close(descriptor)


def write_atomic(path: str | os.PathLike[str], text: str) -> Path:
    """Write ``text`` (UTF-8) to ``path`` and return the path.

    Missing parent folders are made, a symbolic link is followed, and permissions are those of the
    user's umask. A device, pipe or terminal (``/dev/stdout``) cannot be replaced and is written
    into. What UTF-8 cannot express, such as a lone surrogate, is written as a backslash escape.
    Raises OutputError, with nothing left behind, when the folder is read-only, the disk is full,
    or ``path`` is a folder.
    """
    target = Path(path)
    data = text.encode("utf-8", "backslashreplace")
    try:
        if _is_special(target):
            target.write_bytes(data)
        else:
            _replace(Path(os.path.realpath(target)), data)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise _cannot_write(path, error) from error
    return target


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the OutputError that ``write_atomic`` would raise for a small file at ``path``.

    Missing parent folders are made; a file that is there is left as it is. A device or pipe, which
    would take the words of a check for the output, is not touched.
    """
    target = Path(path)
    try:
        if not _is_special(target):
            real = Path(os.path.realpath(target))
            if real.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            _temporary(real, b"\n").unlink()
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a device, pipe or terminal, where writing twice is writing both."""
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


def _replace(target: Path, data: bytes) -> None:
    temporary = _temporary(target, data)
    try:
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _temporary(target: Path, data: bytes) -> Path:
    """A new file beside ``target`` that holds ``data``, or nothing at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # not named after the target, whose name may already be as long as names can be
    temporary = target.parent / f".portagpu-{secrets.token_hex(8)}.tmp"
    try:
        # created with the mode that the umask leaves, which a file of tempfile's does not have
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return temporary
