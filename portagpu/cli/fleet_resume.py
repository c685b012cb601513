"""``portagpu fleet resume``: gives back the nodes that a fleet run drained."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from portagpu.cli._common import print_lines, usage_errors
from portagpu.cli._errors import FAILED


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--nodes", metavar="LIST", help="Only these. Default: all that the run in FOLDER drained."
)
def resume(folder: Path, nodes: str | None) -> int:
    """Resume nodes that the fleet run in FOLDER drained, and no others.

    A node is left alone unless Slurm still has it drained for the very reason in the record: one
    that an administrator drained, or gave another reason, is theirs. Exit codes: 1 if a node was
    left alone, else 0.
    """
    from portagpu.reports.fleet.drain import resume as resume_nodes
    from portagpu.reports.fleet.slurm import UnknownNodes, expand

    with usage_errors(UnknownNodes):
        names = () if nodes is None else expand(nodes)
    outcomes = resume_nodes(folder, names)
    told = [f"{each.node}  {each.told}" for each in outcomes]
    print_lines(told or ["this run drained no node that is not resumed yet"], sys.stdout)
    return 0 if all(each.done for each in outcomes) else FAILED
