"""``portagpu matrix run``: what this machine can run of every target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from portagpu.base.text import printable
from portagpu.cli._common import check_outputs, usage_errors
from portagpu.cli._complete import complete_target

if TYPE_CHECKING:
    from portagpu.reports.proofs.run import Environment, Outcome

_SUITES = ("compile", "conformance", "performance", "bringup")


@click.command()
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="ID",
    shell_complete=complete_target,
    help="Run this target alone. May be repeated.  [default: all]",
)
@click.option(
    "--suite",
    "suites",
    multiple=True,
    type=click.Choice(_SUITES),
    help="Run this suite alone. May be repeated.  [default: all]",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("matrix-run"),
    show_default=True,
    metavar="DIR",
    help="Where each environment's result and log go. A result of the same cases, devices and "
    "software is kept.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    metavar="N",
    help="How many run at once. Performance and bring-up run alone.",
)
@click.option("--again", is_flag=True, help="Run what ended earlier once more.")
@click.option("--list", "list_only", is_flag=True, help="List what would run, and run nothing.")
def run(
    targets: tuple[str, ...],
    suites: tuple[str, ...],
    out: Path,
    jobs: int,
    again: bool,
    list_only: bool,
) -> int:
    """Run what this machine can of the matrix, one tox environment for each suite of each target.

    Machine code is built for every target; the other suites run on targets that are here. Needs a
    checkout and tox. Run it again after an interruption: it goes on.

    Exit codes: 0 for PASS, 1 for FAIL or ERROR, 3 if something was not judged, 130 if interrupted.
    """
    from portagpu.facts.targets import load_target, load_targets
    from portagpu.reports.proofs.run import CannotRun, reachable, run_environments
    from portagpu.runs.results.verdicts import exit_code, fold

    chosen = [load_target(each) for each in dict.fromkeys(targets)] or list(load_targets().values())
    found = reachable(chosen, suites or _SUITES)
    if not found:
        raise click.UsageError(
            "this machine can run nothing of that: it builds machine code for GPUs, and runs the "
            "other suites on its own devices (portagpu info names their targets)"
        )
    if list_only:
        for each in found:
            click.echo(each.name)
        return 0
    check_outputs(out / f"{found[0].name}.json")
    count = 0

    def told(outcome: Outcome) -> None:
        nonlocal count
        count += 1
        click.echo(f"{count}/{len(found)}  {_line(outcome)}")

    def runs_again(each: Environment, why: str) -> None:
        click.echo(f"{each.name} runs again: {printable(why)}")

    with usage_errors(CannotRun):
        outcomes = run_environments(
            found, out, jobs=jobs, again=again, told=told, runs_again=runs_again
        )
    verdict = fold(each.verdict for each in outcomes)
    click.echo(f"{verdict}: {len(outcomes)} environments; portagpu matrix show {out} shows them")
    return exit_code(verdict)


def _line(outcome: Outcome) -> str:
    """The verdict of an environment, how long it took, and why it is no PASS."""
    took = "kept" if outcome.kept else f"{outcome.seconds:.0f} s"
    why = outcome.problem if outcome.run is None else outcome.run.why
    told = f": {printable(why)}" if why else ""
    return f"{outcome.verdict:<12}  {took:>6}  {outcome.environment.name}{told}"
