"""``portagpu fleet scripts``: a prolog, an epilog and a HealthCheckProgram for Slurm."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from portagpu.cli._common import print_lines
from portagpu.cli._complete import complete_target
from portagpu.cli._fleet_options import program_option, program_words


@click.command()
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the scripts and their instructions to this folder.",
)
@program_option
@click.option(
    "--expect-devices", type=click.IntRange(min=1), metavar="N", help="As of portagpu health."
)
@click.option(
    "--target", metavar="ID", shell_complete=complete_target, help="As of portagpu health."
)
def scripts(out: Path, program: str | None, expect_devices: int | None, target: str | None) -> int:
    """Write a prolog, an epilog and a HealthCheckProgram that call portagpu health on each node.

    Nothing is installed: README.txt in the folder says how. The prolog and the epilog call no Slurm
    command. The HealthCheckProgram drains a node for a fault, and resumes only what it drained.
    """
    from portagpu.facts.targets import load_target
    from portagpu.reports.fleet.scripts import write_scripts

    options = []
    if expect_devices is not None:
        options += ["--expect-devices", str(expect_devices)]
    if target is not None:
        options += ["--target", load_target(target).id]
    written = write_scripts(out.absolute(), program_words(program), options)
    print_lines([f"wrote {path}" for path in written], sys.stdout)
    return 0
