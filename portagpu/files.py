"""Files are written whole or not at all: a temporary file beside the target, then a rename."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from portagpu.errors import OutputError


def write_atomic(path: str | os.PathLike[str], text: str) -> Path:
    """Write ``text`` (UTF-8) to ``path`` and return the path.

    Missing parent folders are made. Raises OutputError, with nothing left behind, when the folder
    is read-only, the disk is full, or ``path`` is a folder.
    """
    target = Path(path)
    temporary: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes files private; what a user asked for follows the user's umask
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write {target}: {reason}; name a folder that is writable and has space") from error
    return target
