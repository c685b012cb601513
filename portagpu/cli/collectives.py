"""``portagpu collectives``: verbs about collectives, each with a module of its own."""

from __future__ import annotations

from typing import Final

import click

from portagpu.cli._group import VerbGroup

_VERBS: Final[dict[str, tuple[str, str]]] = {
    "verify": (
        "portagpu.cli.collectives_verify:verify",
        "Check the values of collectives and time them, or judge recorded outputs.",
    ),
    "choose": (
        "portagpu.cli.collectives_choose:choose",
        "Say which algorithm would run, how long it takes, and which bucket sizes fit.",
    ),
    "tune": (
        "portagpu.cli.collectives_tune:tune",
        "Measure ways to perform collectives here, and write a profile of the fastest.",
    ),
    "placement": (
        "portagpu.cli.collectives_placement:placement",
        "Say where ranks belong: rings, domains, affinity and groups over the links of a machine.",
    ),
    "doctor": (
        "portagpu.cli.collectives_doctor:doctor",
        "Find what makes collectives hang, crawl or lie.",
    ),
}
"""As ``portagpu.cli.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def collectives() -> None:
    """Verify, choose, tune and diagnose collectives, and place ranks."""
