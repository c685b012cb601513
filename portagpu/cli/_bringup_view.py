"""The view of a running bring-up: a live checklist, or plain lines."""

from __future__ import annotations

import time
from typing import IO, TYPE_CHECKING, Any

from portagpu.checks.bringup import GateProgress
from portagpu.cli._heartbeat import Heartbeat, Pace
from portagpu.runs.results.run import Verdict, verdict_of
from portagpu.runs.results.wording import found_in_words, headline, ids_and_devices, without_device

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from portagpu.checks.bringup import Gate
    from portagpu.cli._run_output import Files
    from portagpu.runs.results.run import Result, Run

_STYLES = {
    Verdict.PASS: ("✓", "bold green"),
    Verdict.FAIL: ("✗", "bold red"),
    Verdict.ERROR: ("✗", "bold red"),
    Verdict.UNVERIFIED: ("~", "yellow"),
    Verdict.INCONCLUSIVE: ("?", "yellow"),
    Verdict.SKIP: ("-", "dim"),
}


def progress_view(
    console: Console | None,
    stream: IO[str],
    files: Files,
    gates: Sequence[Gate],
    *,
    effort: str = "",
    absent: Collection[str] = (),
    verbose: bool = False,
) -> GateProgress:
    """A live checklist on a terminal; plain lines elsewhere and with ``verbose``.

    ``effort`` says how long the gates usually take; without it no time left is said. The gates that
    are ``absent`` do not run, and count for nothing.
    """
    running = [gate for gate in gates if gate.id not in absent]
    pace = _GatePace(running, Pace(even=False, usual_s=usual_s(running, effort)))
    if console is None or verbose:
        return PlainView(stream, files, gates, pace, verbose=verbose)
    return LiveView(console, files, gates, pace)


def usual_s(gates: Sequence[Gate], effort: str) -> list[float]:
    """How long each gate takes on the machine whose times the checklist has; empty without one."""
    stated = [gate.amounts.get(effort, {}).get("usual_s") for gate in gates]
    return [] if None in stated else [float(each) for each in stated if each is not None]


class _GatePace:
    """How far the gates are that run."""

    def __init__(self, gates: Sequence[Gate], pace: Pace) -> None:
        self._numbers = {gate.id: number for number, gate in enumerate(gates, 1)}
        self._pace = pace
        self.begin = pace.begin
        self.result_added = pace.result_added
        self.words = pace.words
        self.left_in_words = pace.left_in_words

    def counts(self, gate: Gate) -> bool:
        """Whether the gate runs, and was not left out."""
        return gate.id in self._numbers

    def step(self, gate: Gate, words: str) -> None:
        """``gate`` is doing what ``words`` say."""
        if number := self._numbers.get(gate.id):
            self._pace.item_begins(words, number, len(self._numbers))


def recording_lines(run: Run) -> list[str]:
    """A line for each recording that is judged instead of this machine."""
    return [
        f"recording {each['name']}, "
        + (f"sha256 {each['sha256']}" if each["sha256"] else "not hashed")
        for each in run.info.replay
    ]


class PlainView(GateProgress):
    """Prints one line when a gate ends, and one for all that were left out without ``verbose``."""

    def __init__(
        self,
        stream: IO[str],
        files: Files,
        gates: Sequence[Gate],
        pace: _GatePace,
        *,
        verbose: bool = False,
    ) -> None:
        self._verbose = verbose
        self._stream = stream
        self._files = files
        self._width = max(len(gate.title) for gate in gates)
        self._pace = pace
        self._left_out: list[str] = []
        self._heartbeat = Heartbeat(self._pace.words)

    def begin(self, run: Run) -> None:
        self._run = run
        self._files.begin(run)
        self._pace.begin()
        self._heartbeat.start()
        for line in recording_lines(run):
            print(line, file=self._stream, flush=True)

    def gate_begins(self, gate: Gate) -> None:
        self._pace.step(gate, gate.title)

    def step(self, gate: Gate, text: str) -> None:
        self._pace.step(gate, f"{gate.title}: {text}")

    def end(self) -> None:
        self._heartbeat.stop()
        if self._left_out:
            print(f"left out: {', '.join(self._left_out)}", file=self._stream, flush=True)

    def result_added(self, result: Result) -> None:
        self._pace.result_added(result)
        self._files.result_added()

    def gate_ends(self, gate: Gate, results: Sequence[Result], duration_s: float) -> None:
        self._files.update(self._run)
        if self._verbose or self._pace.counts(gate):
            self._print(gate, results, duration_s)
        else:
            self._left_out.append(gate.title)

    def _print(self, gate: Gate, results: Sequence[Result], duration_s: float) -> None:
        verdict = verdict_of(results)
        line = f"{verdict:<12} {gate.title:<{self._width}} {duration_s:6.1f} s  {headline(results)}"
        print(line, file=self._stream, flush=True)
        for each in results if self._verbose and len(results) > 1 else ():
            value = without_device(each) or found_in_words(each)
            print(
                f"  {each.verdict:<12} {ids_and_devices([each])}: {value}",
                file=self._stream,
                flush=True,
            )


class LiveView(GateProgress):
    """Redraws the whole checklist while it runs."""

    def __init__(
        self, console: Console, files: Files, gates: Sequence[Gate], pace: _GatePace
    ) -> None:
        from rich.live import Live

        self._console = console
        self._pace = pace
        self._files = files
        self._rows: dict[str, dict[str, Any]] = {
            gate.id: {"title": gate.title, "text": ""} for gate in gates
        }
        self._screen = Live(self, console=console, refresh_per_second=8, transient=False)

    def begin(self, run: Run) -> None:
        self._run = run
        self._files.begin(run)
        for line in recording_lines(run):
            self._console.print(line)
        self._pace.begin()
        self._screen.start()

    def gate_begins(self, gate: Gate) -> None:
        self._pace.step(gate, "")
        self._rows[gate.id].update(begun=time.monotonic(), text=gate.spec)

    def step(self, gate: Gate, text: str) -> None:
        self._rows[gate.id]["text"] = text

    def result_added(self, result: Result) -> None:
        self._pace.result_added(result)
        self._files.result_added()

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
        running = False
        for row in self._rows.values():
            verdict = row.get("verdict")
            running |= verdict is None
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
        if running and (left := self._pace.left_in_words()):
            yield Text(left, "dim")
