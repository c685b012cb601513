"""``portagpu fleet clear``: that a device was replaced, or examined and found well."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from portagpu.base.errors import ResultError
from portagpu.cli._common import usage_errors


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--node", required=True, metavar="NAME", help="The node, as fleet report names it.")
@click.option(
    "--device",
    default="",
    metavar="ID",
    help="Its UUID, else its PCI address, else its name.  [default: all devices of the node]",
)
@click.option("--replaced", is_flag=True, help="Another device is in its place.")
@click.option(
    "--cleared", is_flag=True, help="The device was examined, and the cause was somewhere else."
)
@click.option("--reason", required=True, metavar="TEXT", help="What was done, in one line.")
def clear(folder: Path, node: str, device: str, replaced: bool, cleared: bool, reason: str) -> None:
    """Record that a device was replaced or cleared, in FOLDER next to its results.

    A value that was silently wrong, and a device that is missing, stay failures until then,
    whatever passes later. After --replaced nothing of the old device counts. After --cleared its
    wrong values no longer count, and the node is INCONCLUSIVE until what failed is run again.
    """
    from portagpu.base.text import did_you_mean, one_line
    from portagpu.reports.bundles.clearance import write_clearance
    from portagpu.reports.fleet.record import FleetRecordError
    from portagpu.reports.fleet.result_files import gather
    from portagpu.runs.ledger import Relief

    if replaced == cleared:
        raise click.UsageError("give either --replaced or --cleared")
    if not reason.strip():
        raise click.UsageError("--reason is empty: write what was done")
    with usage_errors(ResultError, FleetRecordError):
        fleet = gather([folder])
    if node not in fleet.nodes:
        known = list(fleet.nodes)
        hint = did_you_mean(node, known, f"nodes are {', '.join(known[:5])}")
        raise click.UsageError(f"no result in {folder} is of the node {one_line(node)!r}: {hint}")
    identity = fleet.device(node, device) if device else ""
    if identity is None:
        known = sorted(fleet.devices(node))
        hint = did_you_mean(device, known, f"devices are {', '.join(known) or 'not named'}")
        raise click.UsageError(f"no result of {node} names the device {one_line(device)!r}: {hint}")
    path = write_clearance(
        folder,
        node=node,
        device=identity,
        what=Relief.REPLACED if replaced else Relief.CLEARED,
        reason=one_line(reason),
        now=datetime.now(UTC),
    )
    click.echo(f"wrote {path}")
