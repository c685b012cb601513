"""How a bring-up is shown while it runs, and the files that grow with it."""

from __future__ import annotations

import contextlib
import time
from typing import IO, TYPE_CHECKING, Any

from portagpu.bringup import Progress
from portagpu.errors import OutputError
from portagpu.files import is_special, remove_file
from portagpu.results.run import Run, Verdict, verdict_of
from portagpu.results.wording import found_in_words, headline, named, without_device

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console, ConsoleOptions, RenderResult

    from portagpu.bringup import Gate
    from portagpu.results.run import Result

_STYLES = {
    Verdict.PASS: ("✓", "bold green"),
    Verdict.FAIL: ("✗", "bold red"),
    Verdict.ERROR: ("✗", "bold red"),
    Verdict.UNVERIFIED: ("~", "yellow"),
    Verdict.INCONCLUSIVE: ("?", "yellow"),
    Verdict.SKIP: ("-", "dim"),
}


class Files:
    """``result.json``, ``junit.xml`` and ``report.html`` in a folder, and a JSON file of its own.

    Either may be missing. The JSON is valid from the start, so that a place that cannot be written
    is known before anything runs, and a run that is killed leaves what it found. A pipe or a device
    gets one document, at the end.
    """

    def __init__(self, folder: Path | None, json_file: Path | None = None) -> None:
        self.folder = folder
        self.json_files = [json_file] if json_file is not None else []
        self.reports: list[Path] = []
        if folder is not None:
            self.json_files.append(folder / "result.json")
            self.reports = [folder / "junit.xml", folder / "report.html"]

    def begin(self, run: Run) -> None:
        """Write a valid result.json that says that nothing was judged yet; raises OutputError.

        An older run's report would contradict it, should this one be killed: it goes first.
        """
        self._write_partial(run)
        for path in self.reports:
            remove_file(path)

    def update(self, run: Run) -> None:
        """Write what is known so far as a run that was interrupted here.

        A disk that fills meanwhile does not end the run: the last writing tells of it.
        """
        with contextlib.suppress(OutputError):
            self._write_partial(run)

    def _write_partial(self, run: Run) -> None:
        partial = Run(run.info, list(run.results)).finish(interrupted=True)
        for path in self.json_files:
            if not is_special(path):
                partial.write_json(path)

    def write(self, run: Run) -> list[Path]:
        """Write all of them and return their paths; raises OutputError."""
        written = [run.write_json(path) for path in self.json_files]
        if self.reports:
            from portagpu.report import write_report
            from portagpu.report.junit import write_junit

            junit, report = self.reports
            written += [write_junit(run, junit), write_report(run, report)]
        return written


def view(
    console: Console | None, stream: IO[str], files: Files, *, verbose: bool = False
) -> Progress:
    """A live checklist on a terminal, plain lines elsewhere and where every result is told."""
    if console is None or verbose:
        return Plain(stream, files, verbose=verbose)
    return Live(console, files)


def replayed(run: Run) -> list[str]:
    """A line for each recording that is judged in the place of this machine."""
    return [
        f"recording {each['name']}, "
        + (f"sha256 {each['sha256']}" if each["sha256"] else "not hashed")
        for each in run.info.replay
    ]


class Plain(Progress):
    """One line for each gate, when it ends."""

    def __init__(self, stream: IO[str], files: Files, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._stream = stream
        self._files = files

    def begin(self, run: Run, gates: Sequence[Gate]) -> None:
        self._run = run
        self._width = max(len(gate.title) for gate in gates)
        self._files.begin(run)
        for line in replayed(run):
            print(line, file=self._stream, flush=True)

    def gate_ends(self, gate: Gate, results: Sequence[Result], duration_s: float) -> None:
        verdict = verdict_of(results)
        line = f"{verdict:<12} {gate.title:<{self._width}} {duration_s:6.1f} s  {headline(results)}"
        print(line, file=self._stream, flush=True)
        for each in results if self._verbose and len(results) > 1 else ():
            value = without_device(each) or found_in_words(each)
            print(f"  {each.verdict:<12} {named([each])}: {value}", file=self._stream, flush=True)
        self._files.update(self._run)


class Live(Progress):
    """The whole checklist, redrawn as it goes."""

    def __init__(self, console: Console, files: Files) -> None:
        from rich.live import Live as Screen

        self._console = console
        self._files = files
        self._rows: dict[str, dict[str, Any]] = {}
        self._screen = Screen(self, console=console, refresh_per_second=8, transient=False)

    def begin(self, run: Run, gates: Sequence[Gate]) -> None:
        self._run = run
        self._files.begin(run)
        for line in replayed(run):
            self._console.print(line)
        self._rows = {gate.id: {"title": gate.title, "text": ""} for gate in gates}
        self._screen.start()

    def gate_begins(self, gate: Gate) -> None:
        self._rows[gate.id].update(begun=time.monotonic(), text=gate.spec)

    def step(self, gate: Gate, text: str) -> None:
        self._rows[gate.id]["text"] = text

    def gate_ends(self, gate: Gate, results: Sequence[Result], duration_s: float) -> None:
        self._rows[gate.id].update(
            verdict=verdict_of(results), duration_s=duration_s, text=headline(results)
        )
        self._files.update(self._run)

    def end(self) -> None:
        self._screen.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1))
        table.add_column(width=1)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold", ratio=1)
        for row in self._rows.values():
            verdict = row.get("verdict")
            if verdict is not None:
                mark, style = _STYLES[verdict]
                duration = f"{row['duration_s']:.1f} s"
            elif "begun" in row:
                mark, style = "▸", "cyan"
                duration = f"{time.monotonic() - row['begun']:.0f} s"
            else:
                mark, style, duration = "·", "dim", ""
            table.add_row(
                Text(mark, style),
                Text(row["title"], "" if "begun" in row else "dim"),
                Text(str(verdict or ""), style),
                Text(duration, "dim"),
                Text(row["text"], "dim" if verdict in (None, Verdict.PASS) else ""),
            )
        yield table
