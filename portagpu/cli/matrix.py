"""``portagpu matrix``: all targets together. ``matrix history`` is in ``matrix_history.py``."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from portagpu.base.errors import ResultError
from portagpu.base.text import did_you_mean, printable
from portagpu.cli._common import (
    STDOUT,
    TARGET,
    check_kept,
    check_outputs,
    json_option,
    print_lines,
    terminal,
    usage_errors,
    write_json,
)
from portagpu.cli._levels import level_option
from portagpu.cli._process import NOT_JUDGED
from portagpu.cli._tables import aside_lines, print_table
from portagpu.cli._verbs import VerbGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.reports.proofs import Row
    from portagpu.reports.proofs.run import Environment, Outcome


_AREA_HEAD = ("suite", "area", "verdict", "evidence, results", "run", "file")


@click.command()
@click.argument("results", nargs=-1, metavar="[RESULT ...]", type=click.Path(path_type=Path))
@click.option(
    "--target",
    "targets",
    multiple=True,
    type=TARGET,
    metavar="ID|FILE",
    help="Show each area of this target. May be repeated.",
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table as Markdown.")
@json_option
def show(
    results: tuple[Path, ...], targets: tuple[str, ...], as_markdown: bool, json_to: str | None
) -> int:
    """Show the matrix: for each target what was read, built and run, with verdict and evidence.

    RESULT is a file that --json wrote, a bundle, or a folder of these. The project's own results
    are shown too. A failure stays until the same case passes on the
    same device, and an area is a PASS when all of its cases were judged. Exit codes: 0, and 3 if no
    RESULT is of a target that is shown.
    """
    from portagpu.base.paths import matrix_dir
    from portagpu.cli._run_output import read_results
    from portagpu.facts.targets import load_target, load_targets
    from portagpu.reports.bundles.document import Aside, find_files
    from portagpu.reports.proofs import document, markdown, rows
    from portagpu.reports.proofs.evidence import target_of
    from portagpu.reports.proofs.table import NOTHING, read_committed

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


_SUITES = ("compile", "conformance", "performance", "bringup")
_SMOKE: Final = _SUITES[:2]
"""The suites of the level smoke."""


@click.command()
@level_option(
    {},
    smoke="machine code and conformance",
    default="every suite",
    full="as default",
    deep="as default",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Run only this environment, as --list names it, or those that a pattern with * and ? "
    "fits. May be repeated.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    type=TARGET,
    metavar="ID|FILE",
    help="Run only this target. May be repeated.  [default: all]",
)
@click.option(
    "--suite",
    "suites",
    multiple=True,
    type=click.Choice(_SUITES),
    help="Run only this suite. May be repeated.  [default: all]",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("matrix-run"),
    show_default=True,
    metavar="FOLDER",
    help="The folder for each environment's result and log. A result of the same cases, devices "
    "and software is kept.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    metavar="N",
    help="How many run at once. Performance and bring-up run alone.",
)
@click.option("--again", is_flag=True, help="Also run what has a result already.")
@click.option("--list", "list_only", is_flag=True, help="List what would run, and run nothing.")
def run(
    level: str,
    only: tuple[str, ...],
    targets: tuple[str, ...],
    suites: tuple[str, ...],
    out: Path,
    jobs: int,
    again: bool,
    list_only: bool,
) -> int:
    """Run what this machine can of the matrix, one tox environment for each suite of each target.

    Machine code is built for every target; the other suites run on targets that are here. Needs a
    checkout and tox. Run it again after an interruption to continue.

    Exit codes: 0 for PASS, 1 for FAIL or ERROR, 3 if something was not judged, 130 if interrupted.
    """
    from portagpu.facts.targets import load_target, load_targets
    from portagpu.reports.proofs.run import CannotRun, reachable, run_environments
    from portagpu.runs.results.verdicts import exit_code, fold

    chosen = [load_target(each) for each in dict.fromkeys(targets)] or list(load_targets().values())
    found = reachable(chosen, suites or (_SMOKE if level == "smoke" else _SUITES))
    for name in only:
        if not any(fnmatchcase(each.name, name) for each in found):
            hint = did_you_mean(name, [each.name for each in found], "--list names them")
            raise click.UsageError(f"there is no environment {name!r}: {hint}")
    found = [each for each in found if not only or any(fnmatchcase(each.name, n) for n in only)]
    if not found:
        raise click.UsageError(
            "this machine can run none of these: it builds machine code for GPUs, and runs the "
            "other suites on its own devices (portagpu info names their targets)"
        )
    if list_only:
        for each in found:
            click.echo(each.name)
        return 0
    check_outputs(out / f"{found[0].name}.json")
    count = 0

    def on_outcome(outcome: Outcome) -> None:
        nonlocal count
        count += 1
        click.echo(f"{count}/{len(found)}  {_outcome_line(outcome)}")

    def on_rerun(each: Environment, why: str) -> None:
        click.echo(f"{each.name} runs again: {printable(why)}")

    with usage_errors(CannotRun):
        outcomes = run_environments(
            found, out, jobs=jobs, again=again, on_outcome=on_outcome, on_rerun=on_rerun
        )
    verdict = fold(each.verdict for each in outcomes)
    click.echo(f"{verdict}: {len(outcomes)} environments; portagpu matrix show {out} shows them")
    return exit_code(verdict)


def _outcome_line(outcome: Outcome) -> str:
    """The verdict of an environment, how long it took, and why it is not a PASS."""
    took = "kept" if outcome.kept else f"{outcome.seconds:.0f} s"
    why = outcome.problem if outcome.run is None else outcome.run.why
    reason = f": {printable(why)}" if why else ""
    return f"{outcome.verdict:<12}  {took:>6}  {outcome.environment.name}{reason}"


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
    help="Write the page to this file.",
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


_VERBS: Final[dict[str, tuple[str, str]]] = {
    "show": (
        "portagpu.cli.matrix:show",
        "Show what was proven of each target, and by which evidence.",
    ),
    "run": (
        "portagpu.cli.matrix:run",
        "Run what this machine can of every target, through tox.",
    ),
    "report": (
        "portagpu.cli.matrix:report",
        "Write one HTML page that compares the results of several runs.",
    ),
    "history": (
        "portagpu.cli.matrix_history:history",
        "Keep runs in a store, and say what changed between them.",
    ),
}
"""As ``portagpu.cli._verbs.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def matrix() -> None:
    """Show and run the matrix of all targets, compare runs, and keep their history."""
