"""Files below one folder, which is treated as the root of a machine.

A stranger's recording may hold any link. Paths are resolved part by part from open folders. Links
are read and not followed, so that no path leads outside, even if a part is replaced meanwhile
(like the kernel's ``openat2`` with RESOLVE_IN_ROOT, which Python does not have).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOST_LINKS: Final = 40
"""Links on one path, as in Linux (MAXSYMLINKS)."""
DEEPEST: Final = 64
"""Depth of nested folders: in sysfs a GPU behind five switches is about 20 deep."""
MOST_ENTRIES: Final = 1 << 16
"""Entries of one folder. A folder with more is not listed."""
MOST_FOLDERS: Final = 1 << 16
"""Folders of one walk: a topology of 64 partitions has 8500."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Kind(Enum):
    """The kind of a folder's entry. A link is of kind LINK, whatever it leads to."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "pipe, device or socket"


@dataclass(frozen=True, slots=True)
class Entry:
    """What a path leads to: ``name`` in the open folder ``folder``, and what it is."""

    folder: int
    name: str
    status: os.stat_result


@dataclass(frozen=True, slots=True)
class RootedFolder:
    """The files below ``root``, which is no link. ``at`` is removed from absolute links.

    Every method raises OSError for what is missing, outside, or of another kind.
    """

    root: Path
    at: str = ""

    @contextlib.contextmanager
    def entry(self, path: str, *, follow: bool = True) -> Iterator[Entry]:
        """The entry at ``path``, while its folder is held open.

        Without ``follow`` a link at the end of the path is itself the entry.
        """
        held: list[int] = []
        try:
            try:
                held.append(os.open(self.root, _FOLDER))
                found = self._walk(held, path, follow=follow)
            except ValueError as error:  # a null character or a lone surrogate
                raise _os_error(errno.EINVAL, path) from error
            yield found
        finally:
            for descriptor in held:
                os.close(descriptor)

    def _walk(self, held: list[int], path: str, *, follow: bool) -> Entry:
        links, parts = 0, _parts(path)
        while parts:
            part = parts.pop()
            if part == "..":
                if len(held) == 1:
                    raise _os_error(errno.EXDEV, path)
                os.close(held.pop())
                continue
            status = os.stat(part, dir_fd=held[-1], follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode) and (parts or follow):
                links += 1
                if links > MOST_LINKS:
                    raise _os_error(errno.ELOOP, path)
                target = os.readlink(part, dir_fd=held[-1])
                if target.startswith("/"):
                    target = self._relative(target)
                    while len(held) > 1:
                        os.close(held.pop())
                parts += _parts(target)
            elif not parts:
                return Entry(held[-1], part, status)
            else:
                if len(held) > DEEPEST:
                    raise _os_error(errno.ENAMETOOLONG, path)
                held.append(os.open(part, _FOLDER, dir_fd=held[-1]))
        return Entry(held[-1], ".", os.fstat(held[-1]))

    def _relative(self, target: str) -> str:
        """An absolute path of the machine as a path below the root."""
        path = target.strip("/")
        if self.at and path != self.at and not path.startswith(f"{self.at}/"):
            raise _os_error(errno.EXDEV, target)
        return path[len(self.at) :]

    def status(self, path: str, *, follow: bool = True) -> os.stat_result:
        """The status of the file at ``path``."""
        with self.entry(path, follow=follow) as entry:
            return entry.status

    def link(self, path: str) -> str:
        """The target of the link at ``path``, which may be any text."""
        with self.entry(path, follow=False) as entry:
            return os.readlink(entry.name, dir_fd=entry.folder)

    def data(self, path: str, most: int, *, follow: bool = True) -> bytes:
        """The first ``most`` bytes of a regular file; it never waits."""
        return b"".join(self.pieces(path, most, follow=follow))

    def pieces(self, path: str, most: int, *, follow: bool = True) -> Iterator[bytes]:
        """The same, a MiB at a time."""
        with self.entry(path, follow=follow) as entry:
            # a device is not even opened, which may already do something
            if not stat.S_ISREG(entry.status.st_mode):
                raise OSError(errno.EINVAL, "is no regular file", path)
            descriptor = os.open(entry.name, _FILE, dir_fd=entry.folder)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, "is no regular file", path)
                while most > 0 and (piece := os.read(descriptor, min(most, 1 << 20))):
                    most -= len(piece)
                    yield piece
            finally:
                os.close(descriptor)

    def entries(self, path: str, *, follow: bool = True) -> list[tuple[str, Kind]]:
        """The entries of a folder with their kinds, in any order."""
        with self.entry(path, follow=follow) as entry:
            descriptor = os.open(entry.name, _FOLDER, dir_fd=entry.folder)
            try:
                with os.scandir(descriptor) as listed:
                    found = [(each.name, _kind(each)) for each in islice(listed, MOST_ENTRIES + 1)]
            finally:
                os.close(descriptor)
        if len(found) > MOST_ENTRIES:
            raise _os_error(errno.E2BIG, path)
        return found

    def names(self, path: str) -> list[str]:
        """The names of a folder's entries, in any order."""
        return [name for name, _ in self.entries(path)]

    def walk(
        self, left_out: Callable[[str, str], bool] = lambda _folder, _name: False
    ) -> Iterator[tuple[str, Kind]]:
        """Every file and link below the root, in order. Links are not followed.

        ``left_out(folder, name)`` decides whether an entry is skipped. A folder without permission
        is skipped. Too many, too large or too deep folders raise OSError.
        """
        waiting, count = [""], 0
        while waiting:
            folder = waiting.pop()
            count += 1
            if count > MOST_FOLDERS:
                raise _os_error(errno.E2BIG, folder)
            try:
                found = sorted(self.entries(folder, follow=not folder), key=itemgetter(0))
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue
            folders = []
            for name, kind in found:
                path = f"{folder}/{name}" if folder else name
                if left_out(folder, name):
                    continue
                if kind is Kind.FOLDER:
                    folders.append(path)
                else:
                    yield path, kind
            waiting.extend(reversed(folders))


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return Kind.LINK
    if entry.is_dir(follow_symlinks=False):
        return Kind.FOLDER
    return Kind.FILE if entry.is_file(follow_symlinks=False) else Kind.OTHER


def _parts(path: str) -> list[str]:
    """The parts of ``path``, the last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
