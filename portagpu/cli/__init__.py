"""The command line ``portagpu VERB``. Each verb has one module, imported when it is called."""

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
        "Show the hardware, torch, libraries, the matching target and every backend's status.",
    ),
    "record": (
        "portagpu.cli.record:record",
        "Save this machine's description to replay it elsewhere.",
    ),
    "monitor": (
        "portagpu.cli.monitor:monitor",
        "Watch all devices: on the terminal, as JSON lines, for Prometheus; finds stalled jobs.",
    ),
    "bringup": (
        "portagpu.cli.bringup:bringup",
        "Run the ordered bring-up checks on this machine and print one verdict.",
    ),
    "health": (
        "portagpu.cli.health:health",
        "Judge this node once, with an action for each finding; for people and schedulers.",
    ),
    "conform": (
        "portagpu.cli.conform:conform",
        "Run the conformance suite: does the device do what its backend claims?",
    ),
    "bench": (
        "portagpu.cli.bench:bench",
        "Measure how fast a device is, from matrix products to a training step and collectives.",
    ),
    "profile": (
        "portagpu.cli.profile:profile",
        "Run a command under the vendor's profiler or torch's, and check what was captured.",
    ),
    "collectives": (
        "portagpu.cli.collectives:collectives",
        "Verify, choose, tune and diagnose collectives, and place ranks.",
    ),
    "trace": (
        "portagpu.cli.trace:trace",
        "Summarise, show, compare and diagnose what a profiler captured.",
    ),
    "port": (
        "portagpu.cli.port:port",
        "Find and rewrite what ties training programs to one vendor.",
    ),
    "occupancy": (
        "portagpu.cli.occupancy:occupancy",
        "Compute a kernel's occupancy, its limits, and how to raise it.",
    ),
    "plan": (
        "portagpu.cli.plan:plan",
        "Plan a training: memory of a GPU, and parallel layouts that fit, ranked by time.",
    ),
    "targets": (
        "portagpu.cli.targets:targets",
        "List the known targets, or show one with its facts and sources.",
    ),
    "matrix": (
        "portagpu.cli.matrix:matrix",
        "Show and run the matrix of all targets, compare runs, and keep their history.",
    ),
    "fleet": (
        "portagpu.cli.fleet:fleet",
        "Check many nodes through Slurm, and say what they show together.",
    ),
    "report": (
        "portagpu.cli.report:report",
        "Write HTML reports from result files.",
    ),
    "compile": (
        "portagpu.cli.compile:compile_kernels",
        "Build the portable kernels for any architecture and check their machine code.",
    ),
}
"""Verb -> (module:command, one-line help). The command is a click command or group."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Never raises, never prints a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_files()
    sys.stdout, sys.stderr = _tolerate_closed_pipe(sys.stdout), _tolerate_closed_pipe(sys.stderr)
    _escape_unprintable()
    try:
        if words == ["--version"]:
            # before click is imported, which takes longer than everything else here
            print(f"portagpu {__version__}", flush=True)
            return 0
        from portagpu.base.paths import working_folder
        from portagpu.cli._document import begin_call
        from portagpu.cli._group import run

        begin_call(words)
        # raises if the working folder is gone: paths mean nothing, and torch's libraries abort
        working_folder()
        with _signals_as_interrupts():
            return run(words)
    except BaseException as error:  # noqa: BLE001 - the one place where every error ends
        from portagpu.cli._errors import report

        return report(error)


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[None]:
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


def _open_standard_files() -> None:
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


class _ClosedPipeWriter(io.FileIO):
    """A pipe that accepts writes after its reader has closed it, as ``| head`` does."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
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


def _escape_unprintable() -> None:
    """Escape characters that the terminal's encoding or a file name cannot represent."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
