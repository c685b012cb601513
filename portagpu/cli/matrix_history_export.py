"""``portagpu matrix history export``: documents of a store as files again."""

from __future__ import annotations

from pathlib import Path

import click

from portagpu.cli._history import chosen, open_for, store_option, which_option


@click.command()
@store_option
@which_option
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where to write them; made where it is missing.",
)
def export(place: str, which: str | None, out: Path) -> int:
    """Write one file for each run, byte for byte as it was imported.

    A file is named after the day and the digest of its document, so that exporting again writes the
    same files.
    """
    store = open_for(place)
    from portagpu.reports.history.importing import export_files

    with store:
        count = sum(1 for _ in export_files(store, chosen(store, which), out))
    click.echo(f"wrote {count} file{'' if count == 1 else 's'} into {out}")
    return 0
