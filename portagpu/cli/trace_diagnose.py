"""``portagpu trace diagnose``: what bounds a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from portagpu.cli._common import run_json_option
from portagpu.cli._findings_text import finding_lines
from portagpu.cli._traces import check_not_read, load

if TYPE_CHECKING:
    from portagpu.runs.results.run import Run


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

    check_not_read(files, json_to)
    loaded = load(files, device)
    output = Files(json_to)
    progress = View(output)

    def work(run: Run) -> None:
        for each in engine(*loaded):
            add_result(run, progress, each)

    run = complete(new_run(["portagpu", *sys.argv[1:]], strict=strict), progress, work)
    deliver(run, output, list(finding_lines(run)))
    return run.exit_code
