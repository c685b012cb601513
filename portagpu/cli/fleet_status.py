"""``portagpu fleet status``: how far a fleet run is, from its record alone."""

from __future__ import annotations

from pathlib import Path

import click

from portagpu.cli._common import check_kept, json_option, print_lines, text_stream, write_json


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
def status(folder: Path, json_to: str | None) -> int:
    """Show how far the fleet run in FOLDER is, as its record says; Slurm is not asked.

    Exit codes: 0 if every node is PASS, 1 after FAIL or ERROR, 3 if a node has no result yet.
    """
    from portagpu.base.documents import encode
    from portagpu.base.units import count
    from portagpu.cli._fleet_text import closing_lines, code_of, slow_sentences
    from portagpu.reports.fleet.record import FILE, read_record

    check_kept([folder / FILE], json_to)
    record = read_record(folder)
    write_json(encode(record), json_to)
    words = " ".join([record.what, *record.arguments])
    head = f"{words} on {count(len(record.nodes), 'node')}, begun {record.started}"
    slow = slow_sentences(record, folder)
    print_lines([head, *closing_lines(record, folder, slow)], text_stream(json_to))
    return code_of(record, slow)
