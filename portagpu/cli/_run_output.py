"""Shared by the verbs that run an engine: output files, progress on the terminal, the end."""

from __future__ import annotations

import contextlib
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portagpu.base.errors import OutputError, ResultError
from portagpu.base.files import GrowingFile, is_special, remove_file
from portagpu.cli._common import (
    STDOUT,
    check_outputs,
    live_console,
    ocp_place,
    print_lines,
    text_stream,
    usage_errors,
)
from portagpu.cli._heartbeat import EVERY_S, Heartbeat, Pace
from portagpu.cli._process import document_written, ocp_begun, ocp_ended, run_begun
from portagpu.cli._tables import aside_lines
from portagpu.runs.engine import Progress
from portagpu.runs.results.run import Run

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from portagpu.reports.bundles.document import Document
    from portagpu.reports.ocp.stream import Stream
    from portagpu.runs.ledger import Clearance
    from portagpu.runs.results.run import Result


def read_results(
    places: Iterable[Path], *, ordered: bool = True
) -> tuple[list[Document], list[Clearance]]:
    """The results of files and folders, and the clearances among them.

    What does not count is printed to standard error; where runs are put in order, so is one whose
    clock was wrong. Raises UsageError with one line.
    """
    from portagpu.reports.bundles.document import Others, read_files

    others = Others()
    with usage_errors(ResultError):
        documents = read_files(places, datetime.now(UTC) if ordered else None, others)
    print_lines(aside_lines(others.aside), sys.stderr)
    return documents, others.clearances


class OcpOutput:
    """The value of ``--ocp``: a file or standard output, which gets each line at once.

    A full disk does not end the run: ``end`` raises what the first line that failed did.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self._file: GrowingFile | None = None
        self._stream: Stream | None = None
        self._broke: OSError | None = None

    def begin(self) -> None:
        """Open the file and write the first line; raises OutputError where it cannot be opened."""
        from portagpu.reports.ocp.stream import Stream

        if self.place != STDOUT:
            self._file = GrowingFile(self.place)
        self._stream = Stream(self._write)
        ocp_begun(self)
        self._stream.begin()

    def update(self, run: Run) -> None:
        """Write the results that are not written yet."""
        if self._stream is not None:
            self._stream.update(run)

    def judged_so_far(self, run: Run) -> None:
        """Write what is known of results that still change."""
        if self._stream is not None:
            self._stream.judged_so_far(run)

    def end(self, run: Run) -> None:
        """Write the rest of the run, which is over; raises OutputError, and OSError for a pipe."""
        if self._stream is None:
            self.begin()
        stream, self._stream = self._stream, None
        ocp_ended()
        if stream is not None:
            stream.end(run)
        if self._file is not None:
            self._file.close()
        if self._broke is not None:
            raise self._broke

    def _write(self, line: str) -> None:
        if self._broke is not None:
            return
        try:
            if self._file is not None:
                self._file.write(line)
            else:
                sys.stdout.write(line)
                sys.stdout.flush()
        except OSError as error:
            self._broke = error


class Files:
    """The output files of a run: JSON, JUnit, OCP lines, and three files in ``folder``.

    ``json_to`` is the value of ``--json``; that of ``--ocp`` is the call's. ``folder`` gets
    ``result.json``, ``junit.xml`` and ``report.html``. The JSON is written
    and valid from the start: an unwritable place is found before anything runs, and a killed run
    leaves its results so far. A pipe or a device gets one document, at the end.
    """

    def __init__(
        self,
        json_to: str | None = None,
        junit: str | None = None,
        folder: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._written_s = 0.0
        self.json_to = json_to
        self.junit = junit
        self.json_files: list[str | os.PathLike[str]] = []
        self.reports: list[Path] = []
        place = ocp_place()
        self.ocp = None if place is None else OcpOutput(place)
        self._run: Run | None = None
        if json_to is not None and json_to != STDOUT:
            self.json_files.append(json_to)
        if folder is not None:
            self.json_files.append(folder / "result.json")
            self.reports = [folder / "junit.xml", folder / "report.html"]

    def check(self) -> None:
        """Raise UsageError for a file that cannot be written or is named twice."""
        standard = STDOUT if self.json_to == STDOUT else None
        ocp = self.ocp.place if self.ocp is not None else None
        check_outputs(standard, *self.json_files, self.junit, ocp, *self.reports)

    def begin(self, run: Run) -> None:
        """Write ``run`` as interrupted before its first result; raises UsageError.

        Reports of an older run are removed: they would contradict it if this run is killed.
        """
        self.check()
        run_begun(run)
        self._write_partial(run)
        if self.junit is not None and not is_special(self.junit):
            _write_junit(_interrupted_copy(run), self.junit)
        for path in self.reports:
            remove_file(path)
        self._run = run
        if self.ocp is not None:
            self.ocp.begin()

    def update(self, run: Run) -> None:
        """Write the results so far as a run that was interrupted here.

        A full disk does not end the run: the final write reports it.

        :param run: the run that began, or another one of results that still change.
        """
        with contextlib.suppress(OutputError):
            self._write_partial(run)
        if self.ocp is None:
            return
        if run is self._run:
            self.ocp.update(run)
        else:
            self.ocp.judged_so_far(run)

    def result_added(self) -> None:
        """Write a result that was added to the run: OCP lines at once, JSON every ten seconds."""
        if self._run is None:
            return
        if self.ocp is not None:
            self.ocp.update(self._run)
        if self._clock() - self._written_s >= EVERY_S:
            with contextlib.suppress(OutputError):
                self._write_partial(self._run)

    def _write_partial(self, run: Run) -> None:
        self._written_s = self._clock()
        partial = _interrupted_copy(run)
        for path in self.json_files:
            if not is_special(path):
                partial.write_json(path)

    def write(self, run: Run) -> list[Path]:
        """Write all files and return their paths; raises OutputError."""
        if self.json_to == STDOUT:
            document_written()
            run.dump(sys.stdout)
        written = [run.write_json(path) for path in self.json_files]
        document_written()
        if self.ocp is not None:
            self.ocp.end(run)
            written += [Path(self.ocp.place)] if self.ocp.place != STDOUT else []
        if self.junit is not None:
            written.append(_write_junit(run, self.junit))
        if self.reports:
            from portagpu.reports.html import write_report

            junit, report = self.reports
            written += [_write_junit(run, junit), write_report(run, report)]
        return written


def _interrupted_copy(run: Run) -> Run:
    return Run(run.info, list(run.results)).finish(interrupted=True)


def _write_junit(run: Run, path: str | os.PathLike[str]) -> Path:
    from portagpu.reports.junit import write_junit

    return write_junit(run, path)


class View(Progress):
    """Shows the current item on the last line of a terminal, and begins the run's files.

    Where there is no terminal, a line every few seconds says how far the run is.
    """

    def __init__(self, files: Files, lasts_s: float | None = None) -> None:
        self.files = files
        self.stream = text_stream(files.json_to)
        console = live_console(self.stream)
        self._status: Any = None if console is None else console.status("starting")
        self._pace = Pace(lasts_s=lasts_s)
        self._heartbeat = Heartbeat(self._pace.words)

    def begin(self, run: Run) -> None:
        self.files.begin(run)
        self._pace.begin()
        (self._heartbeat if self._status is None else self._status).start()

    def item_begins(self, name: str, number: int, total: int) -> None:
        self._pace.item_begins(name, number, total)
        if self._status is not None:
            from rich.text import Text

            # a Text, because rich would read brackets in ids as markup
            self._status.update(Text(self._pace.words()))

    def result_added(self, result: Result) -> None:
        self._pace.result_added(result)
        self.files.result_added()

    def end(self) -> None:
        (self._heartbeat if self._status is None else self._status).stop()


def deliver(run: Run, files: Files, lines: Sequence[str]) -> list[Path]:
    """Print ``lines``, write the files and return their paths.

    The lines come first: a full disk must not hide the verdict.
    """
    print_lines(lines, text_stream(files.json_to))
    return files.write(run)
