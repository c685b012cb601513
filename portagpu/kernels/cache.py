"""What took long to find out, kept by what it was made from."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

from portagpu.errors import OutputError
from portagpu.files import read_bounded, write_private
from portagpu.trust import why_not_trusted

_LARGEST_BYTES: Final = 1 << 20
"""What is kept of one source is a few kilobytes."""
_INSTEAD: Final = "XDG_CACHE_HOME names a folder of your own in its place"


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


def cache_key(*parts: object) -> str:
    """A name for what was made from ``parts``, which JSON can hold."""
    text = json.dumps(parts, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """JSON objects by key, read where nobody but this user and root can have written them.

    A file that cannot be read, was altered, is a link or may be another user's is as good as none.
    ``problem`` says in one line why nothing is kept, or read, any more.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.problem = _why_unused(folder)
        self._trusted = not self.problem

    def get(self, key: str) -> dict[str, Any] | None:
        """The object of that key, or None."""
        if self.folder is None or not self._trusted:
            return None
        file = self.folder / f"{key}.json"
        try:
            if why_not_trusted(file):
                return None
            kept = json.loads(read_bounded(file, _LARGEST_BYTES, follow=False).decode())
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(kept, dict) or kept.get("digest") != _digest(key, kept.get("value")):
            return None
        value = kept["value"]
        return value if isinstance(value, dict) else None

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Keep an object; the first that cannot be written is the last that is tried."""
        if self.folder is None or self.problem:
            return
        kept = {"digest": _digest(key, value), "value": value}
        try:
            write_private(self.folder / f"{key}.json", json.dumps(kept) + "\n")
        except OutputError as error:
            self.problem = f"nothing was kept for the next time: {error}"


def _why_unused(folder: Path | None) -> str:
    """Why what is kept in a folder is not used, and what to do; "" where it is."""
    if folder is None:
        return "nothing was kept for the next time: there is no home folder to keep results in"
    try:
        why = why_not_trusted(folder)
    except OSError:
        # what cannot be looked at is not read either, and writing there says why
        return ""
    return f"the cache {folder} was not used: {why}; {_INSTEAD}" if why else ""


def _digest(key: str, value: object) -> str:
    """Of an object and its key: one that was damaged, or is another key's, has another."""
    return cache_key(key, value)
