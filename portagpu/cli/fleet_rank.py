"""``portagpu fleet rank``: one rank of a step of several nodes; srun starts it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from portagpu.cli._common import print_lines, require_torch


@click.command()
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Rank 0 writes result.json to this folder.",
)
@click.option("--backend", metavar="NAME", help="Use this backend. Default: this machine's.")
def rank(out: Path, backend: str | None) -> int:
    """Check and time an all_reduce between the ranks that srun started; fleet run calls this.

    Exit codes: 0 for PASS, 1 for FAIL or ERROR. Only rank 0 writes and prints.
    """
    require_torch("fleet rank")
    from portagpu.devices import registry
    from portagpu.reports.fleet.all_reduce_check import all_reduce
    from portagpu.runs.results.run import new_run

    run = new_run(["portagpu", *sys.argv[1:]])
    done = all_reduce(run, registry.backend(backend))
    if done is None:
        return 0
    written = done.finish().write_json(out / "result.json")
    print_lines([done.summary_line(), f"wrote {written}"], sys.stdout)
    return done.exit_code
