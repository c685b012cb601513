"""JSON lines: one object for each sample and event, in a file that may fill its disk."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.files import destination
from portagpu.checks.monitor.sample import to_documents

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.checks.monitor.sample import Round

STDOUT: Final = "-"


class ReaderGone(Exception):
    """The reader of standard output has closed it."""


class JsonLines:
    """Appends the samples of each round to ``path``; "-" is standard output.

    Lines are whole: what a full disk cut off is taken back. A round that cannot be written is
    counted in ``dropped`` (in samples and events); ``say`` is called when that begins and ends, and
    each round tries again. A pipe without a reader, or a full one, loses samples instead of
    stopping the monitor; standard output waits for its reader. With ``max_bytes`` the file is
    renamed to ``path.1`` before it would grow larger, and replaces the earlier ``path.1``.
    """

    def __init__(self, path: str, say: Callable[[str], None], max_bytes: int | None = None) -> None:
        self.dropped = 0
        self._path = path
        self._name = "standard output" if path == STDOUT else path
        self._say = say
        self._max_bytes = max_bytes
        self._file: int | None = None
        self._is_cut = False
        """Whether a part of a line went out that cannot be taken back: a new line ends it."""
        self._failing_since = 0
        """How many were dropped when writing began to fail, plus one; 0 while it works."""

    def write(self, each: Round) -> None:
        """Append the lines of one round. Raises ReaderGone, and nothing else."""
        lines = [
            json.dumps(document, separators=(",", ":"), allow_nan=False)
            for document in to_documents(each)
        ]
        if not lines:
            return
        try:
            self._append(("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))
        except OSError as error:
            self._drop(len(lines), error)
            return
        if self._failing_since:
            lost = self.dropped - self._failing_since + 1
            self._say(f"{self._name} is written again; {lost} samples were dropped")
            self._failing_since = 0

    def close(self) -> None:
        """Close the file."""
        if self._file is not None and self._path != STDOUT:
            with contextlib.suppress(OSError):
                os.close(self._file)
        self._file = None

    def _drop(self, count: int, error: OSError) -> None:
        if self._path == STDOUT and error.errno == errno.EPIPE:
            raise ReaderGone from error
        if not self._failing_since:
            self._failing_since = self.dropped + 1
            why = error.strerror or error
            self._say(f"cannot write {self._name}: {why}; samples are dropped until it works again")
        self.dropped += count
        self.close()

    def _append(self, data: bytes) -> None:
        if self._file is not None and self._is_moved():
            self.close()
        if self._file is None:
            self._file = self._open()
        is_file = self._path != STDOUT and stat.S_ISREG(os.fstat(self._file).st_mode)
        size = os.fstat(self._file).st_size if is_file else 0
        if self._max_bytes is not None and size > 0 and size + len(data) > self._max_bytes:
            self._rotate()
            size = 0
        rest = memoryview(b"\n" + data if self._is_cut else data)
        whole = len(rest)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            if is_file:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, size)
            else:
                self._is_cut = self._is_cut or len(rest) < whole
            raise
        self._is_cut = False

    def _is_moved(self) -> bool:
        """Whether another file is at the path than the open one, as after logrotate(8)."""
        if self._file is None or self._path == STDOUT:
            return False
        try:
            return not os.path.samestat(Path(self._path).stat(), os.fstat(self._file))
        except OSError:
            return True

    def _open(self) -> int:
        if self._path == STDOUT:
            return 1
        place = destination(Path(self._path))
        place.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        file = os.open(place, flags, 0o666)
        try:
            if not _ends_a_line(place, os.fstat(file)):
                os.write(file, b"\n")
        except OSError:
            os.close(file)
            raise
        return file

    def _rotate(self) -> None:
        place = destination(Path(self._path))
        place.replace(place.with_name(f"{place.name}.1"))
        self.close()
        self._file = self._open()


def _ends_a_line(place: Path, about: os.stat_result) -> bool:
    """Whether the file is empty or ends with a whole line; a killed monitor may have cut one."""
    if not stat.S_ISREG(about.st_mode) or about.st_size == 0:
        return True
    with place.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"
