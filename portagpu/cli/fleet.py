"""``portagpu fleet``: verbs about many nodes, each with a module of its own."""

from __future__ import annotations

from typing import Final

import click

from portagpu.cli._group import VerbGroup

_VERBS: Final[dict[str, tuple[str, str]]] = {
    "report": (
        "portagpu.cli.fleet_report:report",
        "Write one HTML page of a whole fleet: who failed, who is unlike the others, and in what.",
    ),
}
"""As ``portagpu.cli.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def fleet() -> None:
    """Check many nodes through Slurm, and say what they show together."""
