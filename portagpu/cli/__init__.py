"""The command line ``portagpu VERB``: ``_verbs.py`` has the table of verbs."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import TYPE_CHECKING

from portagpu._version import __version__
from portagpu.base.text import one_line
from portagpu.cli._process import (
    COMPLETION_VARIABLE,
    DEBUG_VARIABLE,
    FAILED,
    begin_call,
    drop_output,
    judge,
    open_standard_files,
    prepare_output,
    signals_as_interrupts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Never raises, never prints a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    open_standard_files()
    prepare_output()
    try:
        if words == ["--version"]:
            # before click is imported, which takes longer than everything else here
            print(f"portagpu {__version__}", flush=True)
            return 0
        from portagpu.base.paths import check_unpacked, working_folder
        from portagpu.cli._verbs import app, run

        begin_call(words, app)
        check_unpacked()
        # raises if the working folder is gone: paths mean nothing, and torch's libraries abort
        working_folder()
        with signals_as_interrupts():
            return run(words)
    except BaseException as error:  # noqa: BLE001 - the one place where every error ends
        return end_with(error)


def end_with(error: BaseException) -> int:
    """Print one line about ``error`` on standard error and return the exit code.

    ``PORTAGPU_DEBUG=1`` adds the traceback. Where the command line asks for JSON, its document
    states the error.
    """
    # click exits with 0 after a shell completion, which has no verdict
    code = error.code if isinstance(error, SystemExit) else None
    if isinstance(code, int) and (code or COMPLETION_VARIABLE in os.environ):
        return code
    if isinstance(error, BrokenPipeError):
        drop_output()
        return FAILED
    judged, line = judge(error)
    if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
        traceback.print_exception(error)
    with contextlib.suppress(OSError):
        # without control characters: some text comes from a device or another package
        print(f"portagpu: {one_line(line)}", file=sys.stderr, flush=True)
    _write_document(error, judged, line)
    if isinstance(error, OSError):
        drop_output()
    return judged


def _write_document(error: BaseException, code: int, line: str) -> None:
    # an installation that is broken, or a module that ends the program, still ends with its line
    with contextlib.suppress(Exception, SystemExit):
        from portagpu.cli._common import RefusedOutput
        from portagpu.cli._error_document import write_error

        problem = write_error(code, line, files=not isinstance(error, RefusedOutput))
        if problem is not None:
            print(f"portagpu: {one_line(problem)}", file=sys.stderr, flush=True)
