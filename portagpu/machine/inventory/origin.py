"""The identity of a recording: its name and a hash of its content."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from portagpu.base.text import excerpt
from portagpu.facts.host.tree import Kind, RootedFolder, resolve_link

if TYPE_CHECKING:
    from pathlib import Path

MOST_FILES: Final = 20_000
"""Files of a folder that are hashed at most: eight GPUs in 64 partitions have 4101."""
MOST_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Origin:
    """Where what is known of a machine was recorded.

    ``name`` is the last part of the path. ``sha256`` is of the file; of a folder it is the hash of
    what ``find . -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum`` prints in it, None where it
    is larger than anything that was recorded of a machine. ``source`` is the address at
    which it is published, where the recording states one.
    """

    name: str
    sha256: str | None = None
    source: str | None = None

    def to_json(self) -> dict[str, str | None]:
        """The object that ``run.replay`` of a result document has for it."""
        name, source = excerpt(self.name, 255), excerpt(self.source or "", 2000)
        return {"name": name or "recording", "sha256": self.sha256, "source": source or None}


def origin_of(path: Path, source: str | None = None) -> Origin:
    """The origin of the recording at ``path``; links in it are not followed. Raises OSError."""
    return Origin(path.name or path.resolve().name or "/", _hash(path), source)


def _hash(path: Path) -> str | None:
    if not path.is_dir():
        given = path.resolve()
        found, _ = _hash_of_file(RootedFolder(given.parent), given.name, MOST_BYTES)
        return found
    folder, lines, left = RootedFolder(resolve_link(path)), hashlib.sha256(), MOST_BYTES
    files = (os.fsencode(name) for name, kind in folder.walk() if kind is Kind.FILE)
    try:
        names = list(islice(files, MOST_FILES + 1))
    except OSError:
        return None
    if len(names) > MOST_FILES:
        return None
    for name in sorted(names):
        found, size = _hash_of_file(folder, os.fsdecode(name), left)
        if found is None:
            return None
        left -= size
        lines.update(f"{found}  ./".encode() + name + b"\n")
    return lines.hexdigest()


def _hash_of_file(folder: RootedFolder, name: str, most: int) -> tuple[str | None, int]:
    """(hash, bytes) of a file; no hash of one that has more than ``most`` bytes."""
    size = folder.status(name, follow=False).st_size
    if size > most:
        return None, size
    digest, size = hashlib.sha256(), 0
    for piece in folder.pieces(name, most + 1, follow=False):
        digest.update(piece)
        size += len(piece)
    return (digest.hexdigest() if size <= most else None), size
