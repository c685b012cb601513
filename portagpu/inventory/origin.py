"""What a recording is, exactly: its name, and a hash of every byte in it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_FILES: Final = 20_000
"""Files of a folder that are hashed at most: eight GPUs in 64 partitions have 4101."""
MOST_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Origin:
    """Where what is known of a machine was recorded.

    ``name`` is the last part of the path. ``sha256`` is of the file; of a folder it is the hash of
    what ``find . -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum`` prints in it, None where the
    folder is larger than anything that was recorded of a machine. ``source`` is the address at
    which it is published, where the recording states one.
    """

    name: str
    sha256: str | None = None
    source: str | None = None

    def to_json(self) -> dict[str, str | None]:
        """The object that ``run.replay`` of a result document has for it."""
        return {"name": self.name, "sha256": self.sha256, "source": self.source}


def origin_of(path: Path, source: str | None = None) -> Origin:
    """The origin of the recording at ``path``; links are not followed. Raises OSError."""
    return Origin(path.name or path.resolve().name or "/", _hash(path), source)


def _hash(path: Path) -> str | None:
    if path.is_file():
        return _hash_of_file(path)
    lines = hashlib.sha256()
    left = MOST_BYTES
    for number, name in enumerate(_names(path)):
        file = path / os.fsdecode(name)
        left -= file.stat().st_size
        if number == MOST_FILES or left < 0:
            return None
        lines.update(f"{_hash_of_file(file)}  ./".encode() + name + b"\n")
    return lines.hexdigest()


def _hash_of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _names(path: Path) -> Iterator[bytes]:
    """Names of the files below ``path`` in the order of their bytes, a few more than are hashed."""
    found: list[bytes] = []
    for folder, _, names in os.walk(path):
        here = Path(folder)
        for name in names:
            file = here / name
            if file.is_file() and not file.is_symlink():
                found.append(os.fsencode(file.relative_to(path)))
        if len(found) > MOST_FILES:
            break
    yield from sorted(found)
