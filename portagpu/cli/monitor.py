"""``portagpu monitor``: readings of all devices to the terminal, JSON lines and Prometheus."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from portagpu.base.errors import RecordingError
from portagpu.checks.monitor.sample import AFTER_S, MAX_INTERVAL_S, MIN_INTERVAL_S, MonitorOptions
from portagpu.cli._common import (
    STDOUT,
    SizeType,
    check_finite,
    check_outputs,
    live_console,
    text_stream,
    usage_errors,
)
from portagpu.cli._process import document_written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from portagpu.checks.monitor import Endpoint, JsonLines
    from portagpu.checks.monitor.sample import Round


class _Address(click.ParamType):  # type: ignore[type-arg]
    """[HOST:]PORT."""

    name = "address"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """(host, port); raises BadParameter for any other text."""
        from portagpu.checks.monitor.endpoint import parse_address

        try:
            return parse_address(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.option(
    "--interval",
    "interval_s",
    metavar="SECONDS",
    type=click.FloatRange(min=MIN_INTERVAL_S, max=MAX_INTERVAL_S),
    default=1.0,
    show_default=True,
    callback=check_finite,
    help=f"Time between two samples, at least {MIN_INTERVAL_S:g}.",
)
@click.option(
    "--duration",
    "duration_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    callback=check_finite,
    help="End after this time.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after this many samples.")
@click.option(
    "--json",
    "json_to",
    metavar="FILE|-",
    help="Append each sample and event to FILE as a line of JSON; '-' is standard output.",
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    type=SizeType(),
    help="Rename the --json file to FILE.1 before it grows larger; 64M is 64 MiB.",
)
@click.option(
    "--serve",
    metavar="[HOST:]PORT",
    type=_Address(),
    help="Serve Prometheus metrics at http://HOST:PORT/metrics. HOST is by default 127.0.0.1.",
)
@click.option(
    "--stall-after",
    "stall_after_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=AFTER_S,
    show_default=True,
    callback=check_finite,
    help="Report a busy device that stays at nearly idle power for this time.",
)
@click.option(
    "--replay",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="Show the samples that --json wrote to a file, on a terminal at their pace, or the "
    "devices of a recording or of a vendor's output, once.",
)
@click.option(
    "--dashboard",
    metavar="FILE",
    help="Write the Grafana dashboard of these metrics to FILE, and do nothing else.",
)
def monitor(
    json_to: str | None,
    max_bytes: int | None,
    serve: tuple[str, int] | None,
    dashboard: str | None,
    replay: Path | None,
    **asked: Any,
) -> int:
    """Watch utilisation, memory, power, heat, clocks and errors of all devices, GPUs and the CPU.

    A terminal shows a table; there s sorts, f shows what is not ok alone, and q ends. If the output
    is not a terminal, and neither --json nor --serve is given, each sample is a line. Events are
    lines too: a stalled job, new errors, a device that is gone or back. Ends with --count or
    --duration, else with Ctrl-C. Exit codes: 0 at its end, 2 for wrong usage, 3 if the package that
    --serve needs is missing, 130 if interrupted.
    """
    if dashboard is not None:
        return _write_dashboard(dashboard)
    from portagpu.checks.monitor import JsonLines
    from portagpu.checks.monitor import monitor as engine

    if max_bytes is not None and json_to in (None, STDOUT):
        raise click.UsageError("--max-bytes is the size of a file: add --json FILE")
    if max_bytes == 0:
        raise click.UsageError("--max-bytes is 0: no sample would fit")
    _check_appendable(json_to)
    if json_to is not None:
        # what comes after is a line of its own
        document_written()
    options = MonitorOptions(**asked)
    with contextlib.ExitStack() as stack:
        title = f"every {options.interval_s:g} s" if replay is None else f"of {replay.name}"
        outputs, say, sleep = _terminal_outputs(
            stack, title, options.stale_s, json_to, serves=serve is not None
        )
        lines = JsonLines(json_to, say, max_bytes) if json_to is not None else None
        if lines is not None:
            stack.callback(lines.close)
            outputs.append(lines.write)
        if serve is not None:
            endpoint = stack.enter_context(_endpoint(serve, options, lines))
            outputs.append(endpoint.write)
            say(f"metrics: {endpoint.url}")
        if replay is not None:
            pause = sleep if sleep is not time.sleep else lambda _: None
            keeps = json_to is not None or serve is not None
            _show_again(replay, outputs, pause, say, keeps=keeps)
        elif sleep is time.sleep:
            engine(options, outputs)
        else:
            engine(options, outputs, sleep=sleep)
    return 0


monitor.callback.writes_series = True  # type: ignore[union-attr]


def _endpoint(
    address: tuple[str, int], options: MonitorOptions, lines: JsonLines | None
) -> Endpoint:
    from portagpu.checks.monitor.endpoint import Endpoint, EndpointError

    host, port = address
    try:
        return Endpoint(
            port,
            host,
            stale_s=options.stale_s,
            dropped=lambda: lines.dropped if lines is not None else 0,
        )
    except EndpointError as error:
        raise click.UsageError(str(error)) from error


def _check_appendable(path: str | None) -> None:
    """Raise UsageError for a file that lines cannot be added to, before the monitor starts."""
    if path is None or path == STDOUT:
        return
    if not Path(path).exists() or Path(path).is_dir():
        check_outputs(path)
    elif not os.access(path, os.W_OK):
        raise click.UsageError(f"cannot write {path}: Permission denied")


def _terminal_outputs(
    stack: contextlib.ExitStack, title: str, stale_s: float, json_to: str | None, *, serves: bool
) -> tuple[list[Callable[[Round], None]], Callable[[str], None], Callable[[float], None]]:
    """The outputs for people, what says one line to them, and what waits for the next look."""
    from portagpu.cli._monitor_view import Keys, Lines, LiveTable, say_events

    stream = text_stream(json_to)
    console = live_console(stream)
    if console is not None:
        table = stack.enter_context(LiveTable(console, title, stale_s))
        keys = stack.enter_context(Keys(table.press))
        table.keys = "s sort, f filter, q quit" if keys.are_read else ""
        return [table.write, lambda each: say_events(each, table.say)], table.say, keys.sleep

    def say(text: str) -> None:
        # where standard error is full or closed, nobody can read it
        with contextlib.suppress(OSError):
            click.echo(f"portagpu: {text}", err=True)

    outputs: list[Callable[[Round], None]] = [lambda each: say_events(each, say)]
    if json_to is None and not serves:
        outputs += [Lines(stream).write, _end_with_reader()]
    return outputs, say, time.sleep


def _show_again(
    path: Path,
    outputs: Sequence[Callable[[Round], None]],
    sleep: Callable[[float], None],
    say: Callable[[str], None],
    *,
    keeps: bool,
) -> None:
    """Give the rounds of a file to the outputs, with the pauses between them.

    ``say`` says one line to people. ``keeps`` says whether an output keeps rounds and their time.
    """
    from portagpu.checks.monitor.replay import has_samples, read_rounds, recorded_round
    from portagpu.checks.monitor.run import ReaderGone

    def rounds() -> Iterable[Round]:
        if has_samples(path):
            return read_rounds(path)
        if keeps:
            raise click.UsageError(
                f"{path.name} is not a file of samples and has no time of its own: leave out "
                "--json and --serve; portagpu info --replay --json has its values"
            )
        from portagpu.checks.recordings.replay import Recording

        found = Recording(path).inventory()
        for problem in found.problems:
            say(problem)
        if found.breaks_off:
            say(f"{path.name} breaks off: there may be more devices and values")
        return [recorded_round(found, path)]

    before_s = 0.0
    with contextlib.suppress(ReaderGone), usage_errors(RecordingError):
        for each in rounds():
            sleep(max(0.0, each.at_s - before_s))
            before_s = each.at_s
            for output in outputs:
                output(each)


def _end_with_reader() -> Callable[[Round], None]:
    """An output that ends the monitor once the reader of standard output is gone.

    The command line puts /dev/null in place of a pipe that its reader has closed.
    """
    from portagpu.checks.monitor.run import ReaderGone

    before = os.fstat(1)

    def check(_: Round) -> None:
        sys.stdout.flush()
        now = os.fstat(1)
        if (now.st_dev, now.st_ino) != (before.st_dev, before.st_ino):
            raise ReaderGone

    return check


def _write_dashboard(path: str) -> int:
    from portagpu.base.files import write_atomic
    from portagpu.checks.monitor.metrics import dashboard

    check_outputs(path)
    if path == STDOUT:
        click.echo(dashboard(), nl=False)
    else:
        write_atomic(path, dashboard())
        click.echo(f"{path}: import it in Grafana, under Dashboards, New, Import")
    return 0
