"""``portagpu collectives doctor``: what makes collectives hang, crawl or lie."""

from __future__ import annotations

import sys

import click

from portagpu.cli._common import chosen_machine, run_json_option
from portagpu.cli._findings_text import finding_lines


@click.command()
@click.argument("paths", nargs=-1, metavar="[FILE|FOLDER ...]", type=click.Path())
@click.option(
    "--replay",
    multiple=True,
    metavar="PATH",
    help="Look at the settings of this recording. Repeat it for several files of one machine.",
)
@click.option("--strict", is_flag=True, help="Any UNVERIFIED finding lowers PASS to UNVERIFIED.")
@run_json_option
def doctor(
    paths: tuple[str, ...], replay: tuple[str, ...], strict: bool, json_to: str | None
) -> int:
    """Find what makes collectives hang, crawl or lie.

    Files are dumps of torch's flight recorder, logs, and reports in JSON, of all ranks of one run.
    Without files it looks at the settings of this machine. Nothing in a file is run. Each finding
    has its evidence, cause, remedy and source. Exit codes: 0 for PASS, 1 for FAIL or ERROR, 3 if
    nothing was judged, 130 if interrupted.
    """
    from portagpu.checks.collectives_doctor import DoctorOptions
    from portagpu.checks.collectives_doctor import doctor as engine
    from portagpu.cli._run_output import Files, View, deliver

    options = DoctorOptions(
        paths=paths,
        machine=chosen_machine(replay) if replay or not paths else None,
        strict=strict,
        command=["portagpu", *sys.argv[1:]],
    )
    files = Files(json_to)
    run = engine(options, View(files))
    deliver(run, files, list(finding_lines(run)))
    return run.exit_code
