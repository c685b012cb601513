"""``portagpu matrix``: verbs about results of several targets, each with its own module."""

from __future__ import annotations

from typing import Final

import click

from portagpu.cli._group import VerbGroup

_VERBS: Final[dict[str, tuple[str, str]]] = {
    "report": (
        "portagpu.cli.matrix_report:report",
        "Write one HTML page that compares the results of several runs.",
    ),
}
"""As ``portagpu.cli.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def matrix() -> None:
    """Compare the results of several runs and targets."""
