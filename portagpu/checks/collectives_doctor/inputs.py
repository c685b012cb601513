"""What the doctor is given: files and folders, listed at once and read one by one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import RecordingError
from portagpu.base.files import read_bounded
from portagpu.base.text import excerpt
from portagpu.facts.host.tree import Kind, RootedFolder
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LONGEST_FILE: Final = 256 << 20
"""Bytes of one file: the log of a hundred ranks has about 100 MiB."""
MOST_FILES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file: its name, below a folder that was given, and what reads so many bytes of it."""

    name: str
    data: Callable[[int], bytes]

    def read(self) -> bytes:
        """The whole file. Raises FormatError where it cannot be read, or is too large."""
        try:
            data = self.data(LONGEST_FILE + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it cannot be read"
            raise FormatError(reason) from None
        if len(data) > LONGEST_FILE:
            raise FormatError(f"it has more than {LONGEST_FILE >> 20} MiB")
        return data


def list_inputs(paths: Sequence[Path | str]) -> list[InputFile]:
    """Each file at ``paths``; of a folder, all files below it, without links.

    Raises RecordingError for a path that is not there, and for too many files.
    """
    found: list[InputFile] = []
    if not all(map(str, paths)):
        raise RecordingError("a path is empty: name a file or a folder")
    for path in map(Path, paths):
        try:
            path.stat()
            for each in _below(path) if path.is_dir() else [_single(path)]:
                found.append(each)
                if len(found) > MOST_FILES:
                    raise RecordingError(f"there are more than {MOST_FILES} files: give fewer")
        except (OSError, ValueError) as error:
            if isinstance(error, RecordingError):
                raise
            reason = getattr(error, "strerror", None) or "it cannot be read"
            raise RecordingError(f"{excerpt(str(path))}: {reason}") from None
    return found


def _single(path: Path) -> InputFile:
    return InputFile(path.name, partial(read_bounded, path))


def _below(path: Path) -> Iterator[InputFile]:
    folder = RootedFolder(path.resolve())
    for name, kind in folder.walk():
        if kind is Kind.FILE:
            yield InputFile(name, partial(folder.data, name, follow=False))
