"""``portagpu trace``: verbs about what profilers captured, each with a module of its own."""

from __future__ import annotations

from typing import Final

import click

from portagpu.cli._group import VerbGroup

_VERBS: Final[dict[str, tuple[str, str]]] = {
    "summary": (
        "portagpu.cli.trace_summary:summary",
        "Show where the time of devices went: kernels, categories, ranges, ranks.",
    ),
    "timeline": (
        "portagpu.cli.trace_timeline:timeline",
        "Write a capture as a timeline for Perfetto.",
    ),
    "diff": (
        "portagpu.cli.trace_diff:diff",
        "Say what became slower or faster between two captures.",
    ),
    "diagnose": (
        "portagpu.cli.trace_diagnose:diagnose",
        "Say what bounds a run, with the evidence.",
    ),
}
"""As ``portagpu.cli.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def trace() -> None:
    """Summarise, show, compare and diagnose what a profiler captured, of any vendor."""
