"""Which day it is, for what expires: a clock that was set back revives nothing."""

from __future__ import annotations

import contextlib
import tempfile
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_WRITTEN_OFTEN: Final = ("/tmp", "/run", "/var/log", "/var/tmp", "/etc")  # noqa: S108
"""Folders of a running machine whose entries come and go."""


def today(folders: Iterable[Path | str] | None = None) -> date:
    """The day in UTC: the clock's, or a later one on which one of ``folders`` was changed.

    By default those are folders that a machine changes all the time, and this installation's own.
    A folder from the future makes something expire early, which is told, and never late.
    """
    if folders is None:
        folders = (*_WRITTEN_OFTEN, tempfile.gettempdir(), Path(__file__).parent)
    seconds = [datetime.now(UTC).timestamp()]
    for folder in folders:
        with contextlib.suppress(OSError):
            seconds.append(Path(folder).stat().st_mtime)
    with contextlib.suppress(ValueError, OverflowError):  # a file system's year 10000
        return datetime.fromtimestamp(max(seconds), UTC).date()
    return date.max
