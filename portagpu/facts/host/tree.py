"""Kernel files below a root folder. The same code reads a live machine and a recording.

An untrusted recording may hold any link. Paths are resolved part by part from open folders. Links
are read and not followed, so that no path leads outside, even if a part is replaced meanwhile
(like the kernel's ``openat2`` with RESOLVE_IN_ROOT, which Python does not have).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from portagpu.base.errors import RecordingError
from portagpu.base.files import read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


LIVE: Final = Path("/")
MAX_FILE: Final = 16 << 20
"""Bytes: /proc/cpuinfo of a thousand CPUs has 2 MiB."""
MAX_ATTRIBUTE: Final = 64 << 10
"""Bytes of a file of sysfs: one page of memory at most, of which 64 KiB is the largest."""
MAX_READS: Final = 500_000
"""Of one recorded tree: each file, folder and link that is asked for, each 4 KiB and 16 entries of
it. A machine of 2048 CPUs takes 80,000 for ``portagpu info``."""
MAX_LINES: Final = 20_000
"""Lines of one file that are looked at: a machine with many containers has thousands of mounts."""
MAX_CPUS: Final = 1 << 13
"""Linux is built for at most 8192 (NR_CPUS)."""

_T = TypeVar("_T")
_INTEGER: Final = re.compile(r"[+-]?\d{1,20}|0[xX][0-9a-fA-F]{1,16}", re.ASCII)
_FLOAT: Final = re.compile(r"[+-]?\d{1,20}(\.\d{1,20})?", re.ASCII)
_SIZE: Final = re.compile(r"(\d{1,20})\s*([kKmMgGtT]?)(i?[bB])?", re.ASCII)
_RANGE: Final = re.compile(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", re.ASCII)


@dataclass(slots=True)
class _ReadCount:
    """Counts the reads of a recorded tree."""

    count: int = 0

    def add(self, root: Path, count: int) -> None:
        self.count += count
        if self.count > MAX_READS:
            raise RecordingError(
                f"{root}: the kernel's files in it are more than any machine has "
                f"({MAX_READS} reads); give a recording of one machine"
            )


@dataclass(frozen=True, slots=True)
class Tree:
    """A file system below ``root``; every read returns None where nothing can be read.

    ``at`` is the machine's folder that ``root`` holds, for a recording of a part of a machine.
    ``root`` is not a link. No link in it leads outside: an absolute one is relative to the recorded
    machine. With ``recorded`` even "/" is a recording. Raises RecordingError for a recording that
    never ends.
    """

    root: Path = LIVE
    at: str = ""
    recorded: bool = False
    _reads: _ReadCount = field(default_factory=_ReadCount, repr=False, compare=False)

    @property
    def is_live(self) -> bool:
        """Whether this is the machine itself. Only then may system calls complete the files."""
        return self.root == LIVE and not self.recorded

    def _query(
        self, path: str, live: Callable[[Path], _T], recorded: Callable[[RootedFolder, str], _T]
    ) -> _T | None:
        """A value of the live machine, or of the recorded one; None if it is not there."""
        self._count(1)
        if self.at and path != self.at and not path.startswith(f"{self.at}/"):
            return None
        try:
            if self.is_live:
                return live(self.root / path)
            return recorded(RootedFolder(self.root, self.at), path[len(self.at) :])
        except (OSError, ValueError):
            return None

    def _count(self, reads: int) -> None:
        if not self.is_live:
            self._reads.add(self.root, reads)

    def text(self, path: str) -> str | None:
        """The file's text without surrounding blanks; None where it cannot be read."""
        data = self.data(path)
        return None if data is None else data.decode(errors="replace").strip(" \t\n\0")

    def lines(self, path: str) -> list[str]:
        """The first lines of the file; empty where it cannot be read."""
        return _lines(self.text(path) or "")

    def integer(self, path: str) -> int | None:
        """The decimal or 0x-prefixed number that the file holds."""
        return to_int(self.text(path))

    def exists(self, path: str) -> bool:
        return self._query(path, Path.exists, lambda all_, name: bool(all_.status(name))) or False

    def names(self, path: str, pattern: str = ".*") -> tuple[str, ...]:
        """Entries of the folder that match ``pattern`` in full, numbers in numeric order."""
        matcher = re.compile(pattern, re.ASCII)
        found = self._query(path, os.listdir, RootedFolder.names) or ()
        self._count(len(found) >> 4)
        return tuple(sorted(filter(matcher.fullmatch, found), key=_natural_order))

    def data(self, path: str) -> bytes | None:
        """The file's bytes; None where it cannot be read, or is larger than any of the kernel's."""
        most = MAX_ATTRIBUTE if path.startswith("sys/") else MAX_FILE
        found = self._query(
            path,
            lambda file: read_bounded(file, most + 1),
            lambda all_, name: all_.data(name, most + 1),
        )
        self._count(len(found or b"") >> 12)
        return found if found is not None and len(found) <= most else None

    def link(self, path: str) -> str | None:
        """The target of the symbolic link; None without a link."""
        return self._query(path, lambda file: str(file.readlink()), RootedFolder.link)

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder, or a link to one."""
        return (
            self._query(
                path, Path.is_dir, lambda all_, name: stat.S_ISDIR(all_.status(name).st_mode)
            )
            or False
        )

    def link_parts(self, path: str) -> tuple[str, ...]:
        """The parts of a symbolic link's target; empty without a link."""
        return Path(self.link(path) or "").parts

    def link_name(self, path: str) -> str | None:
        """The last part of a symbolic link's target."""
        parts = self.link_parts(path)
        return parts[-1] if parts else None

    def fields(self, path: str, separator: str | None = ":") -> dict[str, str]:
        """Lines of "key<separator>value" as a mapping; the first of a repeated key counts."""
        return parse_fields(self.text(path) or "", separator)


def as_tree(root: Tree | Path | str) -> Tree:
    """``root`` as a Tree."""
    return root if isinstance(root, Tree) else Tree(resolve_link(Path(root)))


def resolve_link(path: Path) -> Path:
    """``path``, or its target if it is a link."""
    return path.resolve() if path.is_symlink() else path


def parse_fields(text: str, separator: str | None = ":") -> dict[str, str]:
    """Lines of "key<separator>value" as a mapping; the first of a repeated key counts."""
    found: dict[str, str] = {}
    for line in _lines(text):
        parts = line.split(separator, 1)
        if len(parts) == 2:
            found.setdefault(parts[0].strip(), parts[1].strip())
    return found


def _lines(text: str) -> list[str]:
    return text.split("\n", MAX_LINES)[:MAX_LINES]


def to_int(text: str | None) -> int | None:
    """A decimal number of up to 20 digits, or a 0x-prefixed one of 64 bits; None for anything else.

    Larger ones are not numbers of the kernel's, and Python's own conversion raises for some.
    """
    bare = (text or "").strip()
    if _INTEGER.fullmatch(bare) is None:
        return None
    return int(bare, 16) if bare[:2] in ("0x", "0X") else int(bare)


def to_float(text: str | None) -> float | None:
    """A finite decimal number; None for anything else."""
    bare = (text or "").strip()
    return float(bare) if _FLOAT.fullmatch(bare) is not None else None


def size_bytes(text: str | None) -> int | None:
    """The kernel's sizes ("32K", "1536 kB", "65536k", "2G") in bytes (binary multiples)."""
    match = _SIZE.fullmatch((text or "").strip())
    if match is None:
        return None
    return (
        int(match.group(1)) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match.group(2).lower()]
    )


def cpu_list(text: str | None) -> tuple[int, ...] | None:
    """The kernel's CPU lists: ``cpu_list("0-2,8") == (0, 1, 2, 8)``; None for anything else."""
    if text is None or len(text) > MAX_ATTRIBUTE:
        return None
    ranges: list[tuple[int, int]] = []
    for part in filter(None, text.split(",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            return None
        first = int(match.group(1))
        ranges.append((first, int(match.group(2) or first)))
        if ranges[-1][1] >= MAX_CPUS:
            return None
    found: list[int] = []
    # each CPU once, however often ranges repeat it
    for first, last in sorted(ranges):
        found.extend(range(max(first, found[-1] + 1 if found else 0), last + 1))
    return tuple(found)


def format_cpu_list(cpus: tuple[int, ...]) -> str:
    """``cpus`` in the kernel's notation: ``format_cpu_list((0, 1, 2, 8)) == "0-2,8"``."""
    parts: list[str] = []
    start = previous = None
    for cpu in (*cpus, None):
        if previous is not None and start is not None and cpu != previous + 1:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = cpu
        elif start is None:
            start = cpu
        previous = cpu
    return ",".join(parts)


def _natural_order(name: str) -> list[tuple[int, int | str]]:
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(p)) if n % 2 else (1, p) for n, p in enumerate(parts) if p]


MAX_LINKS: Final = 40
"""Links on one path, as in Linux (MAXSYMLINKS)."""
DEEPEST: Final = 64
"""Depth of nested folders: in sysfs a GPU below five switches is about 20 deep."""
MAX_ENTRIES: Final = 1 << 16
"""Entries of one folder. A folder with more is not listed."""
MAX_FOLDERS: Final = 1 << 16
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
    """The files below ``root``, which is not a link. ``at`` is removed from absolute links.

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
                if links > MAX_LINKS:
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
                raise OSError(errno.EINVAL, "not a regular file", path)
            descriptor = os.open(entry.name, _FILE, dir_fd=entry.folder)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, "not a regular file", path)
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
                    found = [(each.name, _kind(each)) for each in islice(listed, MAX_ENTRIES + 1)]
            finally:
                os.close(descriptor)
        if len(found) > MAX_ENTRIES:
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
            if count > MAX_FOLDERS:
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
