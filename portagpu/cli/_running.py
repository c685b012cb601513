"""What the verbs that run an engine share: their files, what is at hand, and how they end."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from portagpu.cli._common import STDOUT, check_outputs, human_stream, say, screen
from portagpu.errors import OutputError
from portagpu.files import is_special, remove_file
from portagpu.results.run import Run
from portagpu.running import Progress
from portagpu.text import printable

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from portagpu.errors import PortagpuError


@contextlib.contextmanager
def usage_errors(*kinds: type[PortagpuError]) -> Iterator[None]:
    """Raise UsageError for an error of these ``kinds``: an option names what there is not."""
    try:
        yield
    except kinds as error:
        raise click.UsageError(str(error)) from error


class Files:
    """Where a run is written: a JSON file, a JUnit file, and what ``folder`` gets.

    ``json_to`` is what ``--json`` names; ``folder`` gets ``result.json``, ``junit.xml`` and
    ``report.html``. The JSON is valid from the start, so that a place that cannot be written is
    known before anything runs, and a run that is killed leaves what it found. A pipe or a device
    gets one document, at the end.
    """

    def __init__(
        self, json_to: str | None = None, junit: str | None = None, folder: Path | None = None
    ) -> None:
        self.json_to = json_to
        self.junit = junit
        self.json_files: list[str | os.PathLike[str]] = []
        self.reports: list[Path] = []
        if json_to is not None and json_to != STDOUT:
            self.json_files.append(json_to)
        if folder is not None:
            self.json_files.append(folder / "result.json")
            self.reports = [folder / "junit.xml", folder / "report.html"]

    def check(self) -> None:
        """Raise UsageError for a file that cannot be written, or that is named twice."""
        standard = STDOUT if self.json_to == STDOUT else None
        check_outputs(standard, *self.json_files, self.junit, *self.reports)

    def begin(self, run: Run) -> None:
        """Write that ``run`` was interrupted before its first result; raises UsageError.

        An older run's report would contradict it, should this one be killed: it goes first.
        """
        self.check()
        self._write_partial(run)
        if self.junit is not None and not is_special(self.junit):
            _write_junit(_interrupted(run), self.junit)
        for path in self.reports:
            remove_file(path)

    def update(self, run: Run) -> None:
        """Write what is known so far as a run that was interrupted here.

        A disk that fills meanwhile does not end the run: the last writing tells of it.
        """
        with contextlib.suppress(OutputError):
            self._write_partial(run)

    def _write_partial(self, run: Run) -> None:
        partial = _interrupted(run)
        for path in self.json_files:
            if not is_special(path):
                partial.write_json(path)

    def write(self, run: Run) -> list[Path]:
        """Write all of them and return their paths; raises OutputError."""
        if self.json_to == STDOUT:
            run.dump(sys.stdout)
        written = [run.write_json(path) for path in self.json_files]
        if self.junit is not None:
            written.append(_write_junit(run, self.junit))
        if self.reports:
            from portagpu.report import write_report

            junit, report = self.reports
            written += [_write_junit(run, junit), write_report(run, report)]
        return written


def _interrupted(run: Run) -> Run:
    return Run(run.info, list(run.results)).finish(interrupted=True)


def _write_junit(run: Run, path: str | os.PathLike[str]) -> Path:
    from portagpu.report.junit import write_junit

    return write_junit(run, path)


class View(Progress):
    """What is at hand, on the last line of a terminal; nothing anywhere else.

    The run's files are begun with it.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        self.stream = human_stream(files.json_to)
        console = screen(self.stream)
        self._status: Any = None if console is None else console.status("starting")

    def begin(self, run: Run) -> None:
        self.files.begin(run)
        if self._status is not None:
            self._status.start()

    def item_begins(self, name: str, number: int, total: int) -> None:
        if self._status is not None:
            from rich.text import Text

            # not as rich's markup, which ids with brackets look like
            self._status.update(Text(f"{number}/{total} {printable(name)}"))

    def end(self) -> None:
        if self._status is not None:
            self._status.stop()


def deliver(run: Run, files: Files, lines: Sequence[str]) -> list[Path]:
    """Print ``lines`` and write the files, whose paths it returns.

    The verdict comes first: a disk that is full must not hide what was found.
    """
    say(lines, human_stream(files.json_to))
    return files.write(run)
