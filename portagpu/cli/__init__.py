"""The command line: ``portagpu VERB``, one module a verb, each imported when it is called."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import stat
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, TextIO

from portagpu._version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VERBS: Final[dict[str, tuple[str, str]]] = {
    "info": (
        "portagpu.cli.info:info",
        "Show hardware, torch, libraries, the matching target and each backend's reason.",
    ),
    "record": (
        "portagpu.cli.record:record",
        "Save what this machine shows, so that it can be replayed elsewhere.",
    ),
    "bringup": (
        "portagpu.cli.bringup:bringup",
        "Run the ordered bring-up gates on this machine and give one verdict.",
    ),
    "conform": (
        "portagpu.cli.conform:conform",
        "Check that this device keeps what its backend claims.",
    ),
    "bench": (
        "portagpu.cli.bench:bench",
        "Measure matrix products, memory, transfers, launches and collectives.",
    ),
    "occupancy": (
        "portagpu.cli.occupancy:occupancy",
        "Show what of a unit a kernel fills, what limits it, and what one step more needs.",
    ),
    "targets": (
        "portagpu.cli.targets:targets",
        "List the targets, or show what is known of one and by which sources.",
    ),
    "report": (
        "portagpu.cli.report:report",
        "Write the HTML report of result documents again.",
    ),
    "compile": (
        "portagpu.cli.compile:compile_kernels",
        "Build the portable kernels for any architecture and read their machine code.",
    ),
}
"""Verb -> (module:command, one-line help). The command is a click command, or a group of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; never raises and never shows a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_files()
    sys.stdout, sys.stderr = _outliving(sys.stdout), _outliving(sys.stderr)
    _escape_what_cannot_be_said()
    try:
        if words == ["--version"]:
            # answered before click is imported, which takes longer than all the rest
            print(f"portagpu {__version__}", flush=True)
            return 0
        from portagpu.cli._group import run
        from portagpu.subprocesses.start import working_folder

        # without it no path means anything, and torch's libraries end the process
        working_folder()
        with _ends_as_interrupts():
            return run(words)
    except BaseException as error:  # noqa: BLE001 - the one place where every error ends
        from portagpu.cli._errors import report

        return report(error)


@contextlib.contextmanager
def _ends_as_interrupts() -> Iterator[None]:
    """What a scheduler or a lost terminal sends is Ctrl-C: results are kept, nothing is left over.

    A signal that is ignored, as by nohup(1), or has a handler stays as it is.
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


def _open_standard_files() -> None:
    """Have /dev/null where standard input, output or error is closed.

    Else the next pipe gets that number, and a child's own standard files replace it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # the lowest number that is free: this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


class _Unread(io.FileIO):
    """A pipe into which writing goes on when nobody reads it any more: ``| head``."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)


def _outliving(stream: TextIO) -> TextIO:
    """``stream``, which no longer ends the program where it is a pipe that is closed."""
    try:
        number = stream.fileno()
        is_pipe = stat.S_ISFIFO(mode := os.fstat(number).st_mode) or stat.S_ISSOCK(mode)
    except (OSError, ValueError):
        return stream
    if not (is_pipe and number in (1, 2) and isinstance(stream, io.TextIOWrapper)):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Unread(number, "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _escape_what_cannot_be_said() -> None:
    """Write a file's name that is no text, or a sign that the terminal lacks, as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
