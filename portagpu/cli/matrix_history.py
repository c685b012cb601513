"""``portagpu matrix history``: verbs over a store of runs, each with a module of its own."""

from __future__ import annotations

from typing import Final

import click

from portagpu.cli._group import VerbGroup

_VERBS: Final[dict[str, tuple[str, str]]] = {
    "import": (
        "portagpu.cli.matrix_history_import:import_runs",
        "Add results and bundles to a store.",
    ),
    "export": (
        "portagpu.cli.matrix_history_export:export",
        "Write the documents of a store as files again.",
    ),
    "runs": ("portagpu.cli.matrix_history_runs:runs", "List the runs of a store."),
    "compare": (
        "portagpu.cli.matrix_history_compare:compare",
        "Compare two runs, or two sets of runs, measure by measure.",
    ),
    "trend": (
        "portagpu.cli.matrix_history_trend:trend",
        "Show one measure over time, for each target and host.",
    ),
    "regressions": (
        "portagpu.cli.matrix_history_regressions:regressions",
        "Find where measures became worse for good, and which software changed there.",
    ),
    "outliers": (
        "portagpu.cli.matrix_history_outliers:outliers",
        "Find devices, nodes and runs that are unlike their peers.",
    ),
}
"""As ``portagpu.cli.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def history() -> None:
    """Keep runs in a store (SQLite or PostgreSQL), and say what changed between them."""
