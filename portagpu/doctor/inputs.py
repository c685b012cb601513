"""What the doctor is given: files and folders, each file with what kind of evidence it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.errors import RecordingError
from portagpu.files import read_bounded
from portagpu.host.rooted import Kind, RootedFolder
from portagpu.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LONGEST_FILE: Final = 64 << 20
"""Bytes of one file: a dump of 20 000 entries is 20 MiB."""
MOST_BYTES: Final = 512 << 20
"""Bytes of all files together."""
MOST_FILES: Final = 4096


def read_inputs(paths: Sequence[Path | str]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each file at ``paths``; of a folder, of all files below it.

    Raises RecordingError for a path without a file, and for more files or bytes than a job's
    evidence has.
    """
    count, left = 0, MOST_BYTES
    for path in map(Path, paths):
        for name, data in _folder(path) if path.is_dir() else [(path.name, _file(path))]:
            count, left = count + 1, left - len(data)
            if count > MOST_FILES:
                raise RecordingError(f"there are more than {MOST_FILES} files: give fewer")
            if left < 0:
                raise RecordingError(
                    f"the files have more than {MOST_BYTES >> 20} MiB together: give fewer"
                )
            yield name, data


def _file(path: Path) -> bytes:
    try:
        return _whole(path.name, read_bounded(path, LONGEST_FILE + 1))
    except (OSError, ValueError) as error:
        if isinstance(error, RecordingError):
            raise
        reason = getattr(error, "strerror", None) or "it cannot be read"
        raise RecordingError(f"{excerpt(str(path))}: {reason}") from None


def _folder(path: Path) -> Iterator[tuple[str, bytes]]:
    folder = RootedFolder(path.resolve())
    try:
        for name, kind in folder.walk():
            if kind is Kind.FILE:
                yield name, _whole(name, folder.data(name, LONGEST_FILE + 1, follow=False))
    except OSError as error:
        raise RecordingError(f"{excerpt(str(path))}: {error.strerror}") from None


def _whole(name: str, data: bytes) -> bytes:
    if len(data) > LONGEST_FILE:
        raise RecordingError(f"{excerpt(name)}: it has more than {LONGEST_FILE >> 20} MiB")
    return data
