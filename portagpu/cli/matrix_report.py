"""``portagpu matrix report``: one HTML page of several runs."""

from __future__ import annotations

from pathlib import Path

import click

from portagpu.cli._common import check_kept, check_outputs


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", required=True, help="Write it here."
)
def report(results: tuple[Path, ...], out: Path) -> None:
    """Write one HTML page that compares the results of several runs.

    RESULT is a file that --json wrote, a bundle, a folder that bringup --out wrote, or a folder of
    these. The page has the verdict of every target and area, what failed, each measure of all runs
    on one axis, and every check, with filters and search. Values are compared with those of the
    first RESULT.
    """
    from portagpu.cli._result_files import read_runs
    from portagpu.report import write_report

    check_outputs(out)
    named = read_runs(results)
    check_kept(named, out)
    click.echo(f"wrote {write_report(list(named.values()), out)}")
