"""Kernel files below a root folder: a recording is read by the code for a live machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from portagpu.files import read_bounded

LIVE: Final = Path("/")
LARGEST_FILE: Final = 16 << 20
"""Bytes: /proc/cpuinfo of a thousand CPUs has 2 MiB."""
MOST_CPUS: Final = 1 << 16
"""Linux is built for at most 8192 (NR_CPUS)."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A file system seen from ``root``; every read answers None where nothing can be read.

    ``at`` is the folder whose contents ``root`` holds, for a recording of a part of a machine:
    nothing outside it can be read.
    """

    root: Path = LIVE
    at: str = ""

    @property
    def is_live(self) -> bool:
        """Whether this is the machine itself: only then may a system call complete the files."""
        return self.root == LIVE

    def path(self, path: str) -> Path:
        """Where that file of the machine lies; raises OSError for what is outside the tree."""
        if not self.at:
            return self.root / path
        if path != self.at and not path.startswith(f"{self.at}/"):
            raise FileNotFoundError(path)
        return self.root / path[len(self.at) + 1 :]

    def _inside(self, path: str) -> Path:
        """The same; a link in somebody's recording must not lead to the reader's own files."""
        found = self.path(path)
        if not self.is_live and not found.resolve().is_relative_to(self.root.resolve()):
            raise FileNotFoundError(path)
        return found

    def text(self, path: str) -> str | None:
        """The file's text without surrounding blanks; None where it cannot be read."""
        data = self.data(path)
        return None if data is None else data.decode(errors="replace").strip(" \t\n\0")

    def integer(self, path: str) -> int | None:
        """The decimal or 0x-prefixed number that the file holds."""
        return to_int(self.text(path))

    def exists(self, path: str) -> bool:
        try:
            return self._inside(path).exists()
        except (OSError, RuntimeError, ValueError):
            return False

    def names(self, path: str, pattern: str = ".*") -> tuple[str, ...]:
        """Entries of the folder that match ``pattern`` in full, numbers in numeric order."""
        matcher = re.compile(pattern)
        try:
            found = [e.name for e in self._inside(path).iterdir() if matcher.fullmatch(e.name)]
        except (OSError, RuntimeError, ValueError):
            return ()
        return tuple(sorted(found, key=_natural))

    def data(self, path: str) -> bytes | None:
        """The file's bytes; None where it cannot be read, or is larger than any of the kernel's."""
        try:
            found = read_bounded(self._inside(path), LARGEST_FILE + 1)
        except (OSError, RuntimeError, ValueError):
            return None
        return found if len(found) <= LARGEST_FILE else None

    def link_parts(self, path: str) -> tuple[str, ...]:
        """The parts of what a symbolic link points to; empty where there is no link."""
        try:
            return self.path(path).readlink().parts
        except (OSError, ValueError):
            return ()

    def link_name(self, path: str) -> str | None:
        """The last part of what a symbolic link points to."""
        parts = self.link_parts(path)
        return parts[-1] if parts else None

    def fields(self, path: str, separator: str | None = ":") -> dict[str, str]:
        """Lines of "key<separator>value" as a mapping; the first of a repeated key counts."""
        return parse_fields(self.text(path) or "", separator)


def as_tree(root: Tree | Path | str) -> Tree:
    """``root`` as a Tree."""
    return root if isinstance(root, Tree) else Tree(Path(root))


def parse_fields(text: str, separator: str | None = ":") -> dict[str, str]:
    """Lines of "key<separator>value" as a mapping; the first of a repeated key counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, *rest = line.split(separator, 1)
        if rest:
            found.setdefault(key.strip(), rest[0].strip())
    return found


def to_int(text: str | None) -> int | None:
    """A decimal or 0x-prefixed number; None for anything else."""
    if text is None:
        return None
    try:
        return int(text, 16) if text.lower().startswith("0x") else int(text)
    except ValueError:
        return None


def to_float(text: str | None) -> float | None:
    """A finite decimal number; None for anything else."""
    if text is None or not re.fullmatch(r"[+-]?\d+(\.\d+)?", text.strip()):
        return None
    return float(text)


def size_bytes(text: str | None) -> int | None:
    """The kernel's sizes ("32K", "1536 kB", "65536k", "2G") in bytes (binary multiples)."""
    match = re.fullmatch(r"(\d{1,20})\s*([kKmMgGtT]?)(i?[bB])?", (text or "").strip())
    if match is None:
        return None
    return (
        int(match.group(1)) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match.group(2).lower()]
    )


def cpu_list(text: str | None) -> tuple[int, ...] | None:
    """The kernel's CPU lists: ``cpu_list("0-2,8") == (0, 1, 2, 8)``; None for anything else."""
    if text is None:
        return None
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        if match is None:
            return None
        first = int(match.group(1))
        last = int(match.group(2) or first)
        if last >= MOST_CPUS:
            return None
        found.update(range(first, last + 1))
    return tuple(sorted(found))


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


def _natural(name: str) -> list[tuple[int, int | str]]:
    return [(0, int(p)) if p.isdigit() else (1, p) for p in re.split(r"(\d+)", name) if p]
