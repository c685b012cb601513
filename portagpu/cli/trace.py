"""``portagpu trace``: reads captures. ``summary`` and ``diff`` are in ``trace_summary.py``."""

from __future__ import annotations

import csv
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from portagpu.base.files import write_atomic
from portagpu.base.text import MAX_NAMED, one_line
from portagpu.cli._common import STDOUT, check_outputs, ocp_place, run_json_option
from portagpu.cli._tables import finding_lines
from portagpu.cli._verbs import VerbGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from portagpu.facts.captures.model import Capture
    from portagpu.runs.results.run import Run
    from portagpu.traces.analysis.model import Summary


_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a formula begins with, also in the wide characters that some spreadsheets take for these."""


class Loaded(NamedTuple):
    """A summary, and the captures that it was made from: none where it was read as a document."""

    summary: Summary
    captures: tuple[Capture, ...]


def load(paths: Iterable[str], device: int | None = None) -> Loaded:
    """The summary of one document, or of captures, of which a folder has one for each rank.

    Raises FormatError for a file that cannot be read, as the rest would be another run, and for a
    document among other files.
    """
    from portagpu.facts.readings.model import FormatError
    from portagpu.traces.analysis.reading import is_document, read, read_document
    from portagpu.traces.analysis.summary import NEEDED

    files = []
    for path in map(Path, paths):
        if not (found := list(_files(path))):
            raise FormatError(f"{path}: no file in this folder is a trace that a reader knows")
        files += found
    files = _once(files)
    documents = [file for file in files if is_document(_head(file))]
    if documents and (len(files) > 1 or device is not None):
        raise FormatError(f"{documents[0]}: a summary must be the only file: give captures instead")
    if documents:
        return Loaded(read_document(documents[0]), ())
    captures = tuple(read(file, (*NEEDED, "flops", "payload")) for file in files)
    return Loaded(summary_of(captures, device), captures)


def summary_of(
    captures: Sequence[Capture], device: int | None = None, within: str | None = None
) -> Summary:
    """The summary of a device and of ranges; raises UsageError if there is none."""
    from portagpu.cli._tables import first_few
    from portagpu.traces.analysis.summary import summarize

    found = summarize(captures, device=device, within=within)
    of_range = within is not None and not found.ranges.num_rows
    if of_range or (device is not None and not found.devices):
        whole = summarize(captures)
        paths = list(dict.fromkeys(whole.ranges.column("path").to_pylist()))
        devices = sorted({each.device for each in whole.devices})
        if of_range:
            there = f"but {first_few(map(repr, paths), MAX_NAMED)}" if paths else "and no other"
            raise click.UsageError(one_line(f"--range {within!r}: no range has this name, {there}"))
        if device not in devices:
            there = f"but on {first_few(map(str, devices), MAX_NAMED)}" if devices else "nor on any"
            raise click.UsageError(f"--device {device}: nothing ran on it, {there}")
    return found


def check_not_read(paths: Iterable[str], *outputs: str | None) -> None:
    """Raise UsageError for an output that would replace a file that is read."""
    read = {os.path.realpath(file) for path in paths for file in _files(Path(path))}
    for each in outputs:
        if each is not None and os.path.realpath(each) in read:
            raise click.UsageError(f"{each} is a capture that is read: name another file to write")


def _once(files: Iterable[Path]) -> list[Path]:
    """Each file once, with a line on standard error where one is given again."""
    found: dict[str, Path] = {}
    for file in files:
        if found.setdefault(os.path.realpath(file), file) is not file:
            _refuse(f"{file} is given more than once: it is read once")
    return list(found.values())


def _head(path: Path) -> bytes:
    from portagpu.facts.readings.model import FormatError
    from portagpu.traces.analysis.reading import check_regular

    check_regular(path)
    try:
        with path.open("rb") as file:
            return file.read(1000)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_captures(
    paths: Iterable[str], columns: tuple[str, ...] = ()
) -> tuple[list[Capture], bool]:
    """The captures of all files, and whether every file could be read.

    A folder stands for all files in it that a reader knows. For a file that cannot be read, one
    line goes to standard error, and the others are read. With ``columns`` only these of the events
    are read, where a reader can.
    """
    from portagpu.facts.readings.model import FormatError
    from portagpu.traces.analysis.reading import read

    captures: list[Capture] = []
    whole = True
    files: list[Path] = []
    for path in paths:
        if not (found := list(_files(Path(path)))):
            whole = _refuse(f"{path}: no file in this folder is a trace that a reader knows")
        files += found
    for file in _once(files):
        try:
            captures.append(read(file, columns))
        except FormatError as error:
            whole = _refuse(str(error))
    return captures, whole


def _refuse(line: str) -> bool:
    click.echo(f"portagpu: {one_line(line)}", file=sys.stderr)
    return False


def _files(path: Path) -> Iterator[Path]:
    from portagpu.facts.readings.model import FormatError
    from portagpu.traces.analysis.reading import is_known

    if not path.is_dir():
        yield path
        return
    # pathlib raises where a folder may be listed and not searched
    inside = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    for file in sorted(each for each in inside if os.path.isfile(each)):  # noqa: PTH113
        try:
            known = is_known(file)
        except FormatError:
            # read() says why it cannot be opened
            known = True
        if known:
            yield file


def write_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], to: str) -> None:
    """Write these columns of ``rows`` with their names as CSV to a file, or to standard output."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_safe_cell(row[name]) for name in columns] for row in rows)
    if to == STDOUT:
        click.echo(text.getvalue(), nl=False)
    else:
        write_atomic(to, text.getvalue())


def _safe_cell(cell: Any) -> Any:
    """A cell of CSV that no spreadsheet takes for a formula, and without control characters."""
    if not isinstance(cell, str):
        return "" if cell is None else cell
    text = one_line(cell)
    return f"'{text}" if text[:1] in _FORMULA else text


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True))
@click.option(
    "-o",
    "--out",
    "--output",
    "output",
    required=True,
    metavar="FILE",
    help="Write the timeline to this file, such as run.pftrace. ui.perfetto.dev opens it.",
)
def timeline(paths: tuple[str, ...], output: str) -> int:
    """Write what profilers captured as one timeline for Perfetto.

    FILE is what nsys, rocprofv3, torch's profiler or another known tool wrote, of any vendor; a
    folder stands for all traces in it. Several files are the ranks of one run. They share one clock
    where every file says when its time began; else each of them begins at 0. Exit code 1 if a file
    could not be read, or if no file has an event to show.
    """
    from portagpu.base.files import write_parts
    from portagpu.base.text import one_line
    from portagpu.base.units import count as in_words
    from portagpu.traces.analysis.timeline import clock, count, parts

    if output == STDOUT:
        raise click.UsageError("--output needs the name of a file")
    check_outputs(output)
    check_not_read(paths, output)
    captures, whole = read_captures(paths)
    if not captures:
        return 1
    events = count(captures)
    for capture in captures:
        for problem in capture.problems:
            click.echo(f"problem: {one_line(problem)}", err=True)
    if not events:
        click.echo("portagpu: these captures have no events: there is no timeline", err=True)
        return 1
    write_parts(output, parts(captures))
    if not clock(captures).common:
        click.echo(
            "not every file says when its time began: each begins at 0, and their times "
            "cannot be compared",
            err=True,
        )
    click.echo(f"wrote {output}: {in_words(events, 'event')}, for ui.perfetto.dev", err=True)
    return 0 if whole else 1


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.option("--device", type=click.IntRange(min=0), metavar="N", help="Only this device.")
@click.option("--strict", is_flag=True, help="Any UNVERIFIED finding lowers PASS to UNVERIFIED.")
@run_json_option
def diagnose(files: tuple[str, ...], device: int | None, strict: bool, json_to: str | None) -> int:
    """Say what bounds a run: input, copies, launches, communication, memory or arithmetic.

    Files are captures of a profiler, one for each rank, folders of them, or one document of
    "trace summary --json", which has neither counters nor FLOPs. Each finding has its evidence,
    cause, remedy and source; what a capture cannot answer is INCONCLUSIVE and names what is
    missing. Exit codes: 0 if the device does not wait, 1 if it does, 3 if something could not be
    answered.
    """
    from portagpu.cli._run_output import Files, View, deliver
    from portagpu.runs.engine import add_result, complete
    from portagpu.runs.results.run import new_run
    from portagpu.traces.analysis.diagnose import diagnose as engine

    check_not_read(files, json_to, ocp_place())
    loaded = load(files, device)
    output = Files(json_to)
    progress = View(output)

    def work(run: Run) -> None:
        for each in engine(*loaded):
            add_result(run, progress, each)

    run = complete(new_run(["portagpu", *sys.argv[1:]], strict=strict), progress, work)
    deliver(run, output, list(finding_lines(run)))
    return run.exit_code


_VERBS: Final[dict[str, tuple[str, str]]] = {
    "summary": (
        "portagpu.cli.trace_summary:summary",
        "Show where the time of devices went: kernels, categories, ranges, ranks.",
    ),
    "timeline": (
        "portagpu.cli.trace:timeline",
        "Write a capture as a timeline for Perfetto.",
    ),
    "diff": (
        "portagpu.cli.trace_summary:diff",
        "Say what became slower or faster between two captures.",
    ),
    "diagnose": (
        "portagpu.cli.trace:diagnose",
        "Say what bounds a run, with the evidence.",
    ),
}
"""As ``portagpu.cli._verbs.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def trace() -> None:
    """Summarise, show, compare and diagnose what a profiler captured, of any vendor."""
