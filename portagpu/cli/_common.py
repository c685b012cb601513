"""Shared by the verbs: the ``--json`` option, output streams, and the check for torch."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click

from portagpu.base.errors import MissingDependency, OutputError, PortagpuError, TargetError
from portagpu.base.files import check_writable, is_special, write_atomic
from portagpu.base.text import is_shown, printable
from portagpu.cli._process import STDOUT as STDOUT
from portagpu.cli._process import document_written
from portagpu.runs.results.plain import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from click.shell_completion import CompletionItem
    from rich.console import Console

    from portagpu.machine.inventory.sources import Machine
    from portagpu.runs.results.run import Run


_F = TypeVar("_F", bound="Callable[..., Any]")
_R = TypeVar("_R")


class RefusedOutput(click.UsageError):
    """A file that must not be written: it cannot be, is read too, or is named twice."""


@contextlib.contextmanager
def usage_errors(*kinds: type[PortagpuError]) -> Iterator[None]:
    """Turn errors of these ``kinds`` into UsageError: an option names something unknown."""
    try:
        yield
    except kinds as error:
        raise click.UsageError(str(error)) from error


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Leave Python's collector of cycles off: it would search millions of values that have none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def run_json_option(function: Callable[..., _R]) -> Callable[..., _R]:
    """Add ``--json FILE|-`` and ``--ocp FILE|-`` to a verb whose document is a run.

    The verb receives ``json_to``; ``ocp_place`` is the value of ``--ocp``.
    """

    @functools.wraps(function)
    def call(*, ocp_to: str | None, **given: Any) -> _R:
        if ocp_to is not None:
            if given.get("list_only") or given.get("only_print"):
                raise click.UsageError("--ocp is of a run, and nothing runs here: leave it out")
            if ocp_to == STDOUT == given["json_to"]:
                raise click.UsageError(
                    "--json - and --ocp - both need standard output: give one of them a file"
                )
            click.get_current_context().meta[_OCP_TO] = ocp_to
        return function(**given)

    call.writes_run = True  # type: ignore[attr-defined]
    option = click.option(
        "--ocp",
        "ocp_to",
        metavar="FILE|-",
        help="Also write the run as lines of OCP Test & Validation Output 2.0 to FILE, each result "
        "as it comes; '-' is standard output.",
    )
    return json_option(option(call))


_OCP_TO: Final = "portagpu.ocp_to"


def ocp_place() -> str | None:
    """The value of ``--ocp`` of the verb that runs; None without one."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_OCP_TO)


def json_option(function: _F) -> _F:
    """Add ``--json FILE|-`` to a verb, which receives it as ``json_to``."""
    return click.option(
        "--json",
        "json_to",
        metavar="FILE|-",
        help="Also write the result as JSON to FILE; '-' writes JSON to standard output instead "
        "of text.",
    )(function)


def folder_option(function: _F) -> _F:
    """Add ``--out FOLDER`` to a verb, which receives it as ``out``."""
    return click.option(
        "-o",
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Write result.json, junit.xml and report.html to this folder.",
    )(function)


def target_option(words: str) -> Callable[[_F], _F]:
    """``--target``, which takes a target's id or a file; ``words`` say what it is for."""
    return click.option("--target", type=TARGET, metavar="ID|FILE", help=words)


def expect_devices_option(words: str) -> Callable[[_F], _F]:
    """``--expect-devices``, a number of devices; ``words`` say what it is for."""
    return click.option("--expect-devices", type=click.IntRange(min=1), metavar="N", help=words)


def replay_option(words: str) -> Callable[[_F], _F]:
    """``--replay``, which may be repeated; ``words`` say what becomes of the recording."""
    words = f"{words} Repeat it for several files of one machine."
    return click.option("--replay", multiple=True, metavar="PATH", help=words)


def strict_option(function: _F) -> _F:
    """``--strict``, which an engine's ``RunOptions`` take."""
    words = "Any UNVERIFIED result lowers PASS to UNVERIFIED."
    return click.option("--strict", is_flag=True, help=words)(function)


def junit_option(function: _F) -> _F:
    """``--junit``, the file for the results as JUnit XML."""
    words = "Also write the results as JUnit XML to FILE."
    return click.option("--junit", metavar="FILE", help=words)(function)


def with_options(kind: type[Any]) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """Hand a verb its options that are fields of ``kind`` as one object, its first argument."""
    names = tuple(kind.__dataclass_fields__)

    def add(function: Callable[..., _R]) -> Callable[..., _R]:
        @functools.wraps(function)
        def call(**given: Any) -> _R:
            return function(kind(**{name: given.pop(name) for name in names}), **given)

        return call

    return add


def chosen_effort(quick: bool, full: bool) -> str:
    """ "quick" or "full"; raises UsageError when both are given."""
    if quick and full:
        raise click.UsageError("give either --quick or --full, not both")
    return "full" if full else "quick"


MAX_LIMIT_S: Final = 86_400.0
"""One day: the longest time limit that every clock can add."""
_TIME_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Seconds of "90s", "30m" and "2h"."""
    if value is None:
        return None
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smh])", value)
    seconds = float(found[1]) * _TIME_UNITS[found[2]] if found else 0.0
    if not 1.0 <= seconds <= MAX_LIMIT_S:
        raise click.BadParameter(f"{value!r} is not a time of 1s to 24h, such as 90s, 30m or 2h")
    return seconds


def check_finite(
    context: click.Context, option: click.Parameter, value: float | None
) -> float | None:
    """Refuse NaN and infinity: a NaN passes click's own range checks."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value:g} is not a finite number")
    return value


def text_stream(json_to: str | None) -> TextIO:
    """The stream for human-readable text: stderr when a document goes to stdout, else stdout."""
    return sys.stderr if STDOUT in (json_to, ocp_place()) else sys.stdout


def write_json(document: object, json_to: str | None) -> None:
    """Write ``document`` to the place that ``--json`` names; do nothing without the option.

    Raises OutputError if the file cannot be written.
    """
    if json_to is None:
        return
    text = json_text(document, indent=2) + "\n"
    if json_to == STDOUT:
        document_written()
        click.echo(text, nl=False)
    else:
        write_atomic(json_to, text)
        document_written()


def check_outputs(*paths: str | os.PathLike[str] | None) -> None:
    """Raise RefusedOutput for an output file that cannot be written, before the work starts.

    Also for a file that is named twice: only the last output would survive.
    """
    try:
        given = [path for path in paths if path is not None]
        for path in given:
            if path != STDOUT:
                check_writable(path)
        regular = [os.path.realpath(path) for path in given if not is_special(path)]
    except OutputError as error:
        raise RefusedOutput(str(error)) from error
    if len(set(regular)) < len(regular):
        raise RefusedOutput(f"two outputs go to {given[-1]}: name a different file for each")


def check_kept(
    read: Iterable[str | os.PathLike[str]], *outputs: str | os.PathLike[str] | None
) -> None:
    """Raise RefusedOutput for an output that would replace a file that is read."""
    written = {
        _identity(path): path
        for path in outputs
        if not (path is None or path == STDOUT or is_special(path))
    }
    for path in read if written else ():
        if (output := written.get(_identity(path))) is not None:
            raise RefusedOutput(f"{output} is also an input: name another file to write")


def _identity(path: str | os.PathLike[str]) -> object:
    """What two names of one file share, whether it is there or not."""
    try:
        found = os.stat(path)  # noqa: PTH116 - of thousands of names
    except (OSError, ValueError):
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def print_lines(lines: Sequence[str], stream: IO[str]) -> None:
    """Print ``lines``; on a terminal, wrap them between words with an indent.

    Control characters in names of devices, packages or folders are escaped.
    """
    columns = shutil.get_terminal_size().columns if live_console(stream) is not None else 0
    for text in lines:
        line = text if is_shown(text) else _indent(text) + printable(text)
        indent = _indent(line) + "  "
        if columns > 40 and len(line) > columns:
            line = textwrap.fill(
                line,
                columns,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        click.echo(line, file=stream)


def _indent(line: str) -> str:
    return " " * (len(line) - len(line.lstrip(" ")))


def results_line(run: Run) -> str:
    """ "12 results in 3.4 s"."""
    count = len(run.results)
    return f"{count} result{'' if count == 1 else 's'} in {run.info.duration_s:.1f} s"


def terminal(stream: IO[str] | None = None) -> Console | None:
    """A rich console if ``stream`` is a terminal or FORCE_COLOR is set, else None.

    ``is_interactive`` says whether its cursor can be moved. rich itself obeys NO_COLOR.
    """
    stream = sys.stdout if stream is None else stream
    moves = stream.isatty() and os.environ.get("TERM") != "dumb"
    if not moves and not os.environ.get("FORCE_COLOR"):
        return None
    from rich.console import Console

    return Console(
        file=stream,
        force_terminal=True,
        force_interactive=moves,
        highlight=False,
        markup=False,
        emoji=False,
    )


def live_console(stream: IO[str]) -> Console | None:
    """A rich console whose cursor can be moved, or None."""
    console = terminal(stream)
    return console if console is not None and console.is_interactive else None


class SizeType(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes: "64M" is 64 MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes; raises BadParameter for any other text."""
        from portagpu.base.units import parse_size

        try:
            return parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def chosen_machine(replay: tuple[str, ...]) -> Machine:
    """The recording that ``--replay`` names, else this machine. Raises RecordingError."""
    if replay:
        from portagpu.checks.recordings.replay import Recording

        return Recording(*replay)
    from portagpu.machine.inventory.sources import Live

    return Live()


def require_torch(verb: str) -> None:
    """Raise MissingDependency, with what to install, if torch is missing or cannot be used."""
    from portagpu.checks.diagnostics import install_torch
    from portagpu.facts.torchbuild import torch_build

    build = torch_build()
    if build is None:
        raise MissingDependency(f"portagpu {verb} needs torch: {install_torch()}")
    if build.problem is not None:
        raise MissingDependency(f"portagpu {verb} needs torch, and {build.problem}")


class _TargetId(click.ParamType):  # type: ignore[type-arg]
    """The id of a target, or the file of one, which is added to those that are known."""

    name = "id|file"

    def convert(self, value: object, param: click.Parameter | None, ctx: Any) -> str:
        """The id; raises UsageError for a wrong file."""
        text = str(value)
        if not text.endswith(".toml"):
            return text
        from portagpu.facts.targets import use_target_file

        with usage_errors(TargetError):
            return use_target_file(Path(text)).id

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The ids of targets with this prefix."""
        from click.shell_completion import CompletionItem

        from portagpu.facts.targets import load_targets

        return [CompletionItem(name) for name in _matching_names(incomplete, load_targets)]


TARGET: Final = _TargetId()
"""The type of ``--target ID|FILE``."""


def complete_arch(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """The names of architectures with this prefix."""
    from portagpu.facts.targets import architecture_names

    return _matching_names(incomplete, architecture_names)


def complete_gate(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """The ids of gates with this prefix."""
    from portagpu.checks.bringup.gates import load_gates

    return _matching_names(incomplete, lambda: [gate.id for gate in load_gates()])


def complete_area(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """The areas of the conformance suite with this prefix."""
    from portagpu.suites.conformance.cases import AREAS

    return _matching_names(incomplete, lambda: AREAS)


def complete_measure(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """The areas and metrics of the performance suite with this prefix."""
    from portagpu.suites.performance.cases import metrics

    names = {name: None for metric in metrics() for name in (metric.partition("/")[0], metric)}
    return _matching_names(incomplete, lambda: names)


def _matching_names(incomplete: str, names: Callable[[], Iterable[Any]]) -> list[str]:
    """The names with this prefix, sorted; empty if they cannot be read."""
    try:
        return sorted(name for name in names() if name.startswith(incomplete))
    except PortagpuError:
        return []
