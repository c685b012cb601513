"""``portagpu matrix``: verbs about all targets together, each with a module of its own."""

from __future__ import annotations

from typing import Final

import click

from portagpu.cli._group import VerbGroup

_VERBS: Final[dict[str, tuple[str, str]]] = {
    "show": (
        "portagpu.cli.matrix_show:show",
        "Show what was proven of each target, and by which evidence.",
    ),
    "run": (
        "portagpu.cli.matrix_run:run",
        "Run what this machine can of every target, through tox.",
    ),
    "report": (
        "portagpu.cli.matrix_report:report",
        "Write one HTML page that compares the results of several runs.",
    ),
    "history": (
        "portagpu.cli.matrix_history:history",
        "Keep runs in a store, and say what changed between them.",
    ),
}
"""As ``portagpu.cli.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def matrix() -> None:
    """Show and run the matrix of all targets, compare runs, and keep their history."""
