"""``portagpu report``: HTML reports, JUnit and OCP lines from result files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from portagpu.cli._common import check_kept, check_outputs

if TYPE_CHECKING:
    from portagpu.runs.results.run import Run

_NAMES: Final = {
    "html": ("report.html", ".html"),
    "junit": ("junit.xml", ".xml"),
    "ocp": ("ocp.jsonl", ".ocp.jsonl"),
}
"""The form, and its file next to result.json and next to any other file."""


@click.command()
@click.argument(
    "results", nargs=-1, required=True, metavar="RESULT...", type=click.Path(path_type=Path)
)
@click.option(
    "--format",
    "form",
    type=click.Choice(tuple(_NAMES)),
    default="html",
    show_default=True,
    help="A page, JUnit XML, or lines of OCP Test & Validation Output 2.0.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report to this file instead. Only with a single result.",
)
def report(results: tuple[Path, ...], form: str, out: Path | None) -> None:
    """Write a report next to each RESULT.

    RESULT is a file that --json wrote, a bundle, or a folder of these, such as one that
    --out wrote. The HTML report of x.json is x.html; that of result.json is report.html. With
    --format junit they are x.xml and junit.xml, with --format ocp x.ocp.jsonl and ocp.jsonl.
    """
    from portagpu.cli._run_output import read_results

    documents, _ = read_results(results, ordered=False)
    if out is not None and len(documents) > 1:
        raise click.UsageError("--out works with a single result: leave it out for several")
    places = [out or _report_path(each.path, form) for each in documents]
    check_kept([each.path for each in documents], *places)
    check_outputs(*places)
    for document, place in zip(documents, places, strict=True):
        click.echo(f"wrote {_write(document.run, form, place)}")


def _report_path(file: Path, form: str) -> Path:
    name, suffix = _NAMES[form]
    return file.with_name(name) if file.name == "result.json" else file.with_suffix(suffix)


def _write(run: Run, form: str, place: Path) -> Path:
    if form == "ocp":
        from portagpu.reports.ocp.stream import write_ocp

        return write_ocp(run, place)
    if form == "junit":
        from portagpu.reports.junit import write_junit

        return write_junit(run, place)
    from portagpu.reports.html import write_report

    return write_report(run, place)
