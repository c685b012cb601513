"""``portagpu port``: verbs about programs written for one vendor, each with a module of its own."""

from __future__ import annotations

from typing import Final

import click

from portagpu.cli._group import VerbGroup

_VERBS: Final[dict[str, tuple[str, str]]] = {
    "lint": (
        "portagpu.cli.port_lint:lint",
        "List what ties programs to one vendor, why it breaks, and what to write.",
    ),
    "rewrite": (
        "portagpu.cli.port_rewrite:rewrite",
        "Rewrite Python programs so that they run on every backend.",
    ),
}
"""As ``portagpu.cli.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def port() -> None:
    """Find and rewrite what ties training programs to one vendor. No program is run."""
