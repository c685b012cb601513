"""Kernel files below a root folder. The same code reads a live machine and a recording."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from portagpu.base.errors import RecordingError
from portagpu.base.files import read_bounded
from portagpu.facts.host.rooted import RootedFolder

if TYPE_CHECKING:
    from collections.abc import Callable

LIVE: Final = Path("/")
LARGEST_FILE: Final = 16 << 20
"""Bytes: /proc/cpuinfo of a thousand CPUs has 2 MiB."""
LARGEST_ATTRIBUTE: Final = 64 << 10
"""Bytes of a file of sysfs: one page of memory at most, of which 64 KiB is the largest."""
MOST_READS: Final = 500_000
"""Of one recorded tree: each file, folder and link that is asked for, each 4 KiB and 16 entries of
it. A machine of 2048 CPUs takes 80,000 for ``portagpu info``."""
MOST_LINES: Final = 20_000
"""Lines of one file that are looked at: a machine with many containers has thousands of mounts."""
MOST_CPUS: Final = 1 << 13
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
        if self.count > MOST_READS:
            raise RecordingError(
                f"{root}: the kernel's files in it are more than any machine has "
                f"({MOST_READS} reads); give a recording of one machine"
            )


@dataclass(frozen=True, slots=True)
class Tree:
    """A file system below ``root``; every read returns None where nothing can be read.

    ``at`` is the machine's folder that ``root`` holds, for a recording of a part of a machine.
    ``root`` is no link. No link in it leads outside: an absolute one is relative to the recorded
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
        most = LARGEST_ATTRIBUTE if path.startswith("sys/") else LARGEST_FILE
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
    return text.split("\n", MOST_LINES)[:MOST_LINES]


def to_int(text: str | None) -> int | None:
    """A decimal number of up to 20 digits, or a 0x-prefixed one of 64 bits; None for anything else.

    Larger ones are no number of the kernel's, and Python's own conversion raises for some.
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
    if text is None or len(text) > LARGEST_ATTRIBUTE:
        return None
    ranges: list[tuple[int, int]] = []
    for part in filter(None, text.split(",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            return None
        first = int(match.group(1))
        ranges.append((first, int(match.group(2) or first)))
        if ranges[-1][1] >= MOST_CPUS:
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
