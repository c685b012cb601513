"""This process and its call of the command line: signals, standard files, what the call has written
so far, and the exit code and line of every error.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import stat
import sys
import threading
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, TextIO

from portagpu.base.errors import (
    BackendNotFound,
    MissingDependency,
    PortagpuError,
    RecordingError,
    StoreNotFound,
    TargetNotFound,
    UnknownBackend,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import click

    from portagpu.runs.results.run import Run


FAILED: Final = 1
USAGE: Final = 2
NOT_JUDGED: Final = 3
INTERRUPTED: Final = 130
STDOUT: Final = "-"
"""The file name that stands for standard output."""


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


COMPLETION_VARIABLE: Final = "_PORTAGPU_COMPLETE"
DEBUG_VARIABLE: Final = "PORTAGPU_DEBUG"

_NEEDED: Final = ("click", "rich")
"""Packages that pip installs with portagpu; missing where it was only put on the path."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_TEMPORARY_FOLDER: Final = "No usable temporary directory"
"""The start of the message of :mod:`tempfile`, whose error has no errno of its own."""
_LIMITED: Final = {
    errno.EMFILE: "ulimit -n",
    errno.ENFILE: "fs.file-max",
    errno.EAGAIN: "ulimit -u",
}
"""errno -> the limit that the failed call ran into."""

# Nothing is judged without a tool or device; an unknown name is a usage error. The first match
# counts.
_EXIT_CODES: Final[tuple[tuple[type[PortagpuError], int], ...]] = (
    (MissingDependency, NOT_JUDGED),
    (UnknownBackend, USAGE),
    (BackendNotFound, NOT_JUDGED),
    (TargetNotFound, USAGE),
    (RecordingError, USAGE),
    (StoreNotFound, USAGE),
)


def judge(error: BaseException) -> tuple[int, str]:
    """The exit code of an error that ends a call, and its line."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    if isinstance(error, SystemExit):
        # no verb exits this way: an imported module did, and 0 would read as a PASS
        return FAILED, (
            f"a module that was imported ended the program ({error}): "
            "look for one in PYTHONPATH that has the name of another"
        )
    if isinstance(error, PortagpuError):
        code = next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), FAILED)
        return code, str(error)
    if _is_format_error(error):
        return USAGE, str(error)
    clicks = _judge_click(error)
    if clicks is not None:
        return clicks
    if isinstance(error, MemoryError):
        return FAILED, "the host's memory is exhausted: free some, raise ulimit -v, or give it less"
    if isinstance(error, ModuleNotFoundError) and error.name in _NEEDED:
        return NOT_JUDGED, f"{error.name} is not installed: install portagpu itself with pip"
    if isinstance(error, OSError) and error.errno in _FULL:
        return FAILED, f"cannot write the output: {error.strerror}; free space, or write elsewhere"
    if isinstance(error, OSError) and str(error.strerror).startswith(_NO_TEMPORARY_FOLDER):
        return FAILED, "no folder for temporary files is writable: set TMPDIR to one that is"
    if isinstance(error, OSError) and error.errno in _LIMITED:
        limit = _LIMITED[error.errno]
        return FAILED, f"a limit of this machine is too low: {error.strerror}; raise {limit}"
    return FAILED, (
        f"unexpected {type(error).__name__}: {error} (run with {DEBUG_VARIABLE}=1 for the "
        "traceback, and report it)"
    )


def _is_format_error(error: BaseException) -> bool:
    # such an error exists only if its module was imported
    model = sys.modules.get("portagpu.facts.readings.model")
    return model is not None and isinstance(error, model.FormatError)


def _judge_click(error: BaseException) -> tuple[int, str] | None:
    # click's errors exist only if click was imported
    if "click" not in sys.modules:
        return None
    import click

    if isinstance(error, click.Abort):
        return INTERRUPTED, "interrupted"
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx is not None else "portagpu"
        verb = command.removeprefix("portagpu").strip()
        prefix = f"{verb}: " if verb else ""
        return USAGE, f"{prefix}{error.format_message()} (see '{command} --help')"
    if isinstance(error, click.ClickException):
        return error.exit_code, error.format_message()
    return None


class Lines(Protocol):
    """Lines of a run that are being written, as those of ``--ocp``."""

    def end(self, run: Run) -> None:
        """Write the last lines."""


@dataclass(slots=True)
class Call:
    """A call of the command line, and what it has written so far."""

    words: Sequence[str] = ()
    command: click.Command | None = None
    """What reads the words."""
    whole: bool = False
    """Whether the verb's document is there."""
    run: Run | None = None
    ocp: Lines | None = None
    """The lines of ``--ocp`` that have no end yet."""
    ocp_begun: bool = False


call = Call()


def begin_call(words: Sequence[str], command: click.Command) -> None:
    """Take ``words`` for the command line, and forget what another call in this process wrote."""
    call.words, call.command = words, command
    call.whole, call.run, call.ocp, call.ocp_begun = False, None, None, False


def document_written() -> None:
    """The verb's document is there, whatever comes after it."""
    call.whole = True


def run_begun(run: Run) -> None:
    """The run so far, whose results an error's document keeps."""
    call.run = run


def ocp_begun(output: Lines) -> None:
    """Lines of the run are being written, which an error has to end."""
    call.ocp, call.ocp_begun = output, True


def ocp_ended() -> None:
    """The lines of the run are whole."""
    call.ocp = None
