"""A cache on disk for slow results, by a key of their inputs."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

from portagpu.base.errors import OutputError
from portagpu.base.files import read_bounded, why_not_trusted, write_private

_MAX_BYTES: Final = 1 << 20
"""An entry has a few kilobytes."""
_ADVICE: Final = "set XDG_CACHE_HOME to a folder of your own"


def cache_folder(name: str) -> Path | None:
    """``$XDG_CACHE_HOME/portagpu/NAME``, else in ``~/.cache``; None without a home folder.

    A relative path is ignored, as the XDG Base Directory Specification demands.
    """
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if stated.is_absolute():
        return stated / "portagpu" / name
    try:
        return Path.home() / ".cache" / "portagpu" / name
    except RuntimeError:
        return None


def cache_key(*parts: object) -> str:
    """The key of a result that depends on ``parts``, which are JSON."""
    text = json.dumps(parts, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """JSON objects by key, in files that only this user and root can have written.

    A file that cannot be read, was altered, is a link or may be another user's is ignored.
    ``problem`` says in one line why the cache is not used any more.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.problem: str = _why_unused(folder)
        self._trusted = not self.problem

    def get(self, key: str) -> dict[str, Any] | None:
        """The object of that key, or None."""
        if self.folder is None or not self._trusted:
            return None
        file = self.folder / f"{key}.json"
        try:
            if why_not_trusted(file):
                return None
            kept = json.loads(read_bounded(file, _MAX_BYTES, follow=False).decode())
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(kept, dict) or kept.get("digest") != _digest(key, kept.get("value")):
            return None
        value = kept["value"]
        return value if isinstance(value, dict) else None

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Store an object. After the first failure nothing more is written."""
        if self.folder is None or self.problem:
            return
        kept = {"digest": _digest(key, value), "value": value}
        try:
            write_private(self.folder / f"{key}.json", json.dumps(kept) + "\n")
        except OutputError as error:
            self.problem = f"results are not cached: {error}"


def _why_unused(folder: Path | None) -> str:
    """The reason why a cache folder is not used, with what to do; "" if it is used."""
    if folder is None:
        return "results are not cached: there is no home folder, and XDG_CACHE_HOME names none"
    try:
        why = why_not_trusted(folder)
    except OSError:
        # what cannot be looked at is not read either, and writing there says why
        return ""
    return f"the cache {folder} was not used: {why}; {_ADVICE}" if why else ""


def _digest(key: str, value: object) -> str:
    """A digest of key and value. It detects damage and an entry of another key."""
    return cache_key(key, value)
