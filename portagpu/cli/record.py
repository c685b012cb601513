"""``portagpu record``: save what a replay of this machine needs, without identifying data."""

from __future__ import annotations

from pathlib import Path

import click

from portagpu.base.errors import OutputError
from portagpu.cli._common import (
    STDOUT,
    check_outputs,
    json_option,
    print_lines,
    text_stream,
    write_json,
)


@click.command()
@click.argument("folder", metavar="FOLDER")
@json_option
def record(folder: str, json_to: str | None) -> None:
    """Record this machine's devices in the new folder FOLDER.

    A name that ends in .tar.gz gives one archive instead. FOLDER must not exist yet. Names of hosts
    and users, processes, paths, secrets and serial numbers are removed. UUIDs and PCI addresses of
    GPUs stay. Check the files before you share them.
    """
    from portagpu.checks.recordings.record import record as save

    if json_to not in (None, STDOUT) and Path(folder).resolve() in Path(json_to).resolve().parents:
        raise click.UsageError(
            f"--json {json_to} is inside {folder}, whose files are hashed: name a file outside it"
        )
    check_outputs(json_to)
    try:
        saved = save(folder)
    except OutputError as error:
        raise click.UsageError(str(error)) from error
    write_json(
        {
            "schema": "portagpu.recorded/1",
            "folder": str(saved.folder),
            "files": saved.files,
            "scrubbed": dict(saved.scrubbed),
            "problems": list(saved.problems),
        },
        json_to,
    )
    out = text_stream(json_to)
    taken = ", ".join(f"{count} {kind}" for kind, count in saved.scrubbed.items())
    lines = [
        f"{saved.folder}: {saved.files} files",
        f"taken out: {taken or 'nothing was found'}",
        *(f"not in it: {problem}" for problem in saved.problems),
        f"read it with: portagpu info --replay {saved.folder}",
    ]
    print_lines(lines, out)
