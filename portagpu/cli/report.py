"""``portagpu report``: HTML reports from result files."""

from __future__ import annotations

from pathlib import Path

import click

from portagpu.cli._common import check_kept, check_outputs
from portagpu.errors import ResultError


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report to FILE instead. Only with a single RESULT.",
)
def report(results: tuple[Path, ...], out: Path | None) -> None:
    """Write an HTML report next to each RESULT.

    RESULT is a file that --json wrote, or a folder that bringup --out wrote. The report of x.json
    is x.html; the report of result.json is report.html.
    """
    from portagpu.report import write_report
    from portagpu.results.run import read_json

    if out is not None and len(results) > 1:
        raise click.UsageError("--out works with a single RESULT: leave it out for several")
    files = [each / "result.json" if each.is_dir() else each for each in results]
    places = [out] if out is not None else [_report_path(file) for file in files]
    try:
        runs = [read_json(file) for file in files]
    except ResultError as error:
        message = f"{error}; give result documents, as --json and --out write them"
        raise click.UsageError(message) from error
    check_kept(files, *places)
    check_outputs(*places)
    for run, place in zip(runs, places, strict=True):
        click.echo(f"wrote {write_report(run, place)}")


def _report_path(file: Path) -> Path:
    return (
        file.with_name("report.html") if file.name == "result.json" else file.with_suffix(".html")
    )
