"""``portagpu report``: HTML reports from result files."""

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
    help="Write the report to this file instead. Only with a single result.",
)
def report(results: tuple[Path, ...], out: Path | None) -> None:
    """Write an HTML report next to each RESULT.

    RESULT is a file that --json wrote, a bundle, or a folder of these, such as one that
    --out wrote. The report of x.json is x.html; the report of result.json is report.html.
    """
    from portagpu.cli._run_output import read_results
    from portagpu.reports.html import write_report

    documents, _ = read_results(results, ordered=False)
    if out is not None and len(documents) > 1:
        raise click.UsageError("--out works with a single result: leave it out for several")
    places = [out or _report_path(each.path) for each in documents]
    check_kept([each.path for each in documents], *places)
    check_outputs(*places)
    for document, place in zip(documents, places, strict=True):
        click.echo(f"wrote {write_report(document.run, place)}")


def _report_path(file: Path) -> Path:
    return (
        file.with_name("report.html") if file.name == "result.json" else file.with_suffix(".html")
    )
