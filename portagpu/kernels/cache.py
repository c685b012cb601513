"""What took long to find out, kept by what it was made from."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

from portagpu.errors import OutputError
from portagpu.files import read_bounded, write_atomic

_LARGEST_BYTES: Final = 1 << 20
"""What is kept of one source is a few kilobytes."""


def cache_folder(name: str) -> Path | None:
    """``$XDG_CACHE_HOME/portagpu/NAME``, else in ``~/.cache``; None where there is no home.

    The XDG Base Directory Specification has a relative path ignored.
    """
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if stated.is_absolute():
        return stated / "portagpu" / name
    try:
        return Path.home() / ".cache" / "portagpu" / name
    except RuntimeError:
        return None


def key_of(*parts: object) -> str:
    """A name for what was made from ``parts``, which JSON can hold."""
    text = json.dumps(parts, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """JSON objects by key. A file that cannot be read is as good as none.

    ``problem`` says why nothing is kept any more, once something could not be written.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.problem = "" if folder is not None else "there is no home folder to keep results in"

    def get(self, key: str) -> dict[str, Any] | None:
        """The object of that key, or None."""
        if self.folder is None:
            return None
        try:
            text = read_bounded(self.folder / f"{key}.json", _LARGEST_BYTES).decode()
            found = json.loads(text)
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Keep an object; the first that cannot be written is the last that is tried."""
        if self.folder is None or self.problem:
            return
        try:
            write_atomic(self.folder / f"{key}.json", json.dumps(value) + "\n")
        except OutputError as error:
            self.problem = str(error)
