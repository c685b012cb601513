"""``portagpu matrix report``: one HTML page of several runs."""

from __future__ import annotations

from pathlib import Path

import click

from portagpu.cli._common import check_kept, check_outputs


@click.command()
@click.argument(
    "results", nargs=-1, required=True, metavar="RESULT...", type=click.Path(path_type=Path)
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    help="Write it here.",
)
def report(results: tuple[Path, ...], out: Path) -> None:
    """Write one HTML page that compares the results of several runs.

    RESULT is a file that --json wrote, a bundle, or a folder of these. The page has the verdict of
    every target and area, what failed, each measure of all runs on one axis, and every check, with
    filters and search. Values are compared with those of the first RESULT.
    """
    from portagpu.cli._run_output import read_results
    from portagpu.reports.html import write_report

    check_outputs(out)
    documents, clearances = read_results(results)
    check_kept([each.path for each in documents], out)
    runs = [each.run for each in documents]
    click.echo(f"wrote {write_report(runs, out, clearances=clearances)}")
