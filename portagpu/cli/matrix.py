"""``portagpu matrix``: verbs about many runs, each with a module of its own."""

from __future__ import annotations

from typing import Final

import click

from portagpu.cli._group import VerbGroup

_VERBS: Final[dict[str, tuple[str, str]]] = {
    "history": (
        "portagpu.cli.matrix_history:history",
        "Keep runs in a store, and say what changed between them.",
    ),
}
"""As ``portagpu.cli.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def matrix() -> None:
    """Look at the runs of many machines."""
