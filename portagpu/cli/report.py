"""``portagpu report``: HTML of result documents that were written before."""

from __future__ import annotations

from pathlib import Path

import click

from portagpu.cli._common import check_outputs
from portagpu.errors import ResultError


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report of one RESULT there, instead of beside it.",
)
def report(results: tuple[Path, ...], out: Path | None) -> None:
    """Write an HTML report beside each RESULT, a document that --json or --out wrote.

    A folder is the one that bringup --out wrote. Of x.json the report is x.html, and of
    result.json it is report.html.
    """
    from portagpu.report import write_report
    from portagpu.results.run import read_json

    if out is not None and len(results) > 1:
        raise click.UsageError("--out takes the report of one RESULT; leave it out for several")
    files = [each / "result.json" if each.is_dir() else each for each in results]
    places = [out] if out is not None else [_beside(file) for file in files]
    try:
        runs = [read_json(file) for file in files]
    except ResultError as error:
        told = f"{error}; give result documents, as --json and --out write them"
        raise click.UsageError(told) from error
    for file, place in zip(files, places, strict=True):
        if place.resolve() == file.resolve():
            raise click.UsageError(f"{file} is the document itself; name another file with --out")
    check_outputs(*places)
    for run, place in zip(runs, places, strict=True):
        click.echo(f"wrote {write_report(run, place)}")


def _beside(file: Path) -> Path:
    return (
        file.with_name("report.html") if file.name == "result.json" else file.with_suffix(".html")
    )
