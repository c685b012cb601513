"""``portagpu collectives doctor``: what makes collectives hang, crawl or lie."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from portagpu.cli._common import chosen_machine, json_option, results_line
from portagpu.results.wording import without_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.results.run import Result, Run


@click.command()
@click.argument("paths", nargs=-1, metavar="[FILE|FOLDER ...]", type=click.Path())
@click.option(
    "--replay",
    multiple=True,
    metavar="PATH",
    help="Look at the settings of this recording. Repeat it for several files of one machine.",
)
@click.option("--strict", is_flag=True, help="Any UNVERIFIED finding lowers PASS to UNVERIFIED.")
@json_option
def doctor(
    paths: tuple[str, ...], replay: tuple[str, ...], strict: bool, json_to: str | None
) -> int:
    """Find what makes collectives hang, crawl or lie.

    Files are dumps of torch's flight recorder, logs, and reports in JSON, of all ranks of one run.
    Without files it looks at the settings of this machine. Nothing in a file is run. Each finding
    has its evidence, cause, remedy and source. Exit codes: 0 for PASS, 1 for FAIL or ERROR, 3 if
    nothing was judged, 130 if interrupted.
    """
    from portagpu.cli._run_output import Files, View, deliver
    from portagpu.doctor import DoctorOptions
    from portagpu.doctor import doctor as engine

    options = DoctorOptions(
        paths=paths,
        machine=chosen_machine(replay) if replay or not paths else None,
        strict=strict,
        command=["portagpu", *sys.argv[1:]],
    )
    files = Files(json_to)
    run = engine(options, View(files))
    deliver(run, files, list(_lines(run)))
    return run.exit_code


def _lines(run: Run) -> Iterator[str]:
    for result in run.results:
        yield from _finding(result)
    yield ""
    yield results_line(run)
    yield run.summary_line()


def _finding(result: Result) -> Iterator[str]:
    where = f" {result.device}" if result.device else ""
    yield f"{result.verdict} {result.id.rpartition('/')[2]}{where}: {without_device(result)}"
    if str(result.verdict) in ("PASS", "SKIP"):
        return
    for key in ("cause", "remedy", "source"):
        yield f"    {key}: {result.extra[key]}"
