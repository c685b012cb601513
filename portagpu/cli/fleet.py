"""``portagpu fleet``: verbs about many nodes, each with a module of its own."""

from __future__ import annotations

from typing import Final

import click

from portagpu.cli._group import VerbGroup

_VERBS: Final[dict[str, tuple[str, str]]] = {
    "run": (
        "portagpu.cli.fleet_run:run",
        "Run bring-up, conformance, benchmarks or collectives on many nodes through Slurm.",
    ),
    "status": (
        "portagpu.cli.fleet_status:status",
        "Show how far a fleet run is, and which nodes failed.",
    ),
    "resume": (
        "portagpu.cli.fleet_resume:resume",
        "Resume the nodes that a fleet run drained, and no others.",
    ),
    "rank": (
        "portagpu.cli.fleet_rank:rank",
        "Be one rank of a pair or group of nodes; fleet run calls this.",
    ),
    "scripts": (
        "portagpu.cli.fleet_scripts:scripts",
        "Write a prolog, an epilog and a HealthCheckProgram for Slurm.",
    ),
    "clear": (
        "portagpu.cli.fleet_clear:clear",
        "Record that a device was replaced or cleared, so that its failures no longer count.",
    ),
    "report": (
        "portagpu.cli.fleet_report:report",
        "Write one HTML page of a whole fleet: who failed, who is unlike the others, and in what.",
    ),
}
"""As ``portagpu.cli.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def fleet() -> None:
    """Check many nodes through Slurm, and say what they show together."""
