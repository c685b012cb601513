"""``portagpu matrix show``: what was proven of each target."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from portagpu.base.errors import ResultError
from portagpu.base.text import printable
from portagpu.cli._common import (
    STDOUT,
    check_kept,
    check_outputs,
    json_option,
    print_lines,
    terminal,
    usage_errors,
    write_json,
)
from portagpu.cli._complete import complete_target
from portagpu.cli._errors import NOT_JUDGED
from portagpu.cli._tables import aside_lines, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.reports.proofs import Row

_AREA_HEAD = ("suite", "area", "verdict", "evidence, results", "run", "file")


@click.command()
@click.argument("results", nargs=-1, metavar="[RESULT ...]", type=click.Path(path_type=Path))
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="ID",
    shell_complete=complete_target,
    help="Show each area of this target. May be repeated.",
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table as Markdown.")
@json_option
def show(
    results: tuple[Path, ...], targets: tuple[str, ...], as_markdown: bool, json_to: str | None
) -> int:
    """Show the matrix: for each target what was read, built and run, with verdict and evidence.

    RESULT is a file that --json wrote, a bundle, or a folder of these. A checkout's own matrix is
    shown too; an installed wheel has no results. A failure stays until the same case passes on the
    same device, and an area is a PASS when all of its cases were judged. Exit codes: 0, and 3 if no
    RESULT is of a target that is shown.
    """
    from portagpu.base.paths import matrix_dir
    from portagpu.cli._run_output import read_results
    from portagpu.facts.targets import load_target, load_targets
    from portagpu.reports.bundles.files import Aside, find_files
    from portagpu.reports.proofs import document, markdown, rows
    from portagpu.reports.proofs.committed import NOT_IN_WHEEL, NOTHING, read_committed
    from portagpu.reports.proofs.evidence import target_of

    check_outputs(json_to)
    check_kept([path for path, _ in find_files(results)], json_to)
    chosen = [load_target(each) for each in dict.fromkeys(targets)] or list(load_targets().values())
    documents, clearances = read_results(results)
    of_no_target = [each.path for each in documents if target_of(each.run) is None]
    print_lines(
        aside_lines(Aside(path, "its devices are of no known target") for path in of_no_target),
        sys.stderr,
    )
    with usage_errors(ResultError):
        committed = read_committed(matrix_dir())
    matrix = rows(chosen, documents, committed, clearances)
    of_none = bool(documents) and not any(row.cells for row in rows(chosen, documents, NOTHING))
    if committed == NOTHING:
        print_lines([NOT_IN_WHEEL], sys.stderr)
    write_json(document(matrix), json_to)
    if of_none:
        print_lines(["no result that you named is of a target that is shown"], sys.stderr)
    if json_to == STDOUT:
        return NOT_JUDGED if of_none else 0
    if as_markdown:
        click.echo(printable(markdown(matrix)))
    elif targets:
        for row in matrix:
            _print_areas(row)
    else:
        _print_targets(matrix)
    return NOT_JUDGED if of_none else 0


def _print_targets(matrix: Sequence[Row]) -> None:
    from portagpu.reports.proofs.table import HEAD, NOTHING_RAN, line

    lines = [line(row) for row in matrix]
    # a suite of which no target has a result only takes room
    used = [n for n in range(len(HEAD)) if any(each[n] != NOTHING_RAN for each in lines)]
    rows = [[each[n] for n in used] for each in lines]
    print_table(sys.stdout, terminal(), [HEAD[n] for n in used], rows)
    ran = sum(any(cell.badge for cell in row.cells) for row in matrix)
    click.echo(f"{len(matrix)} targets; results of {ran} of them")


def _print_areas(row: Row) -> None:
    click.echo(f"{row.target.id}: {', '.join(row.badges)}")
    if not row.cells:
        click.echo("no results: run it there, or name result files\n")
        return
    lines = [
        (
            cell.suite,
            cell.area,
            str(cell.verdict),
            cell.detail,
            cell.started[:10],
            printable(cell.source) + (" (recording)" if cell.recorded else ""),
        )
        for cell in row.cells
    ]
    print_table(sys.stdout, terminal(), _AREA_HEAD, lines)
    click.echo()
