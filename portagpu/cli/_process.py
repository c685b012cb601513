"""What the command line does to its own process: signals, standard files, exit codes."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import stat
import sys
import threading
from typing import IO, TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED: Final = 1
USAGE: Final = 2
NOT_JUDGED: Final = 3
INTERRUPTED: Final = 130


@contextlib.contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C, so that results are kept and children are ended.

    A signal that is ignored, as by nohup(1), or that has a handler stays as it is.
    """
    ours = threading.current_thread() is threading.main_thread()
    ends = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_DFL]
    for number in ends if ours else ():
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ends if ours else ():
            signal.signal(number, signal.SIG_DFL)


def open_standard_files() -> None:
    """Open /dev/null in place of a closed standard input, output or error.

    Otherwise the next pipe gets that number, and a child's standard files replace it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # os.open returns the lowest free number, which is this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def prepare_output() -> None:
    """Make standard output and error take any text, also after their reader has gone."""
    sys.stdout, sys.stderr = _tolerate_closed_pipe(sys.stdout), _tolerate_closed_pipe(sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal's encoding may lack a character, and a file name may have no character
            stream.reconfigure(errors="backslashreplace")


def drop_output(stream: IO[str] | None = None) -> None:
    """Redirect ``stream``, by default standard output, to /dev/null: the final flush is quiet."""
    with contextlib.suppress(OSError, ValueError):
        _to_devnull((stream or sys.stdout).fileno())


def _to_devnull(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


class _ClosedPipeWriter(io.FileIO):
    """A pipe that accepts writes after its reader has closed it, as ``| head`` does."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _to_devnull(self.fileno())
            return len(data)


def _tolerate_closed_pipe(stream: TextIO) -> TextIO:
    """``stream``; a pipe is wrapped so that its reader's end does not end the program."""
    try:
        number = stream.fileno()
        is_pipe = stat.S_ISFIFO(mode := os.fstat(number).st_mode) or stat.S_ISSOCK(mode)
    except (OSError, ValueError):
        return stream
    if not (is_pipe and number in (1, 2) and isinstance(stream, io.TextIOWrapper)):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_ClosedPipeWriter(number, "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
