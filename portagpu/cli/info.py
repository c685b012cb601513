"""``portagpu info`` and ``portagpu record``: this machine's hardware and software, shown or saved.

A record is what a replay of this machine needs, without identifying data.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from portagpu.base.errors import OutputError
from portagpu.cli._common import (
    STDOUT,
    check_outputs,
    chosen_machine,
    json_option,
    print_lines,
    replay_option,
    terminal,
    text_stream,
    write_json,
)

if TYPE_CHECKING:
    from rich.console import Console

    from portagpu.cli._info_view import Section
    from portagpu.machine.inventory.sources import Machine


@click.command()
@replay_option("Read a recording instead of this machine.")
@click.option(
    "--topology",
    is_flag=True,
    help="Show the links between GPUs, NICs and NUMA nodes instead.",
)
@json_option
def info(replay: tuple[str, ...], topology: bool, json_to: str | None) -> None:
    """Show the hardware, torch, libraries, the matching target and every backend's status.

    Works without torch. What cannot be read is shown as "unknown".
    """
    check_outputs(json_to)
    machine = chosen_machine(replay)
    if topology:
        _topology(machine, json_to)
        return
    from portagpu.checks.info import collect

    document = collect(machine=machine)
    write_json(document, json_to)
    if json_to != STDOUT:
        _show(document)


def _topology(machine: Machine, json_to: str | None) -> None:
    from rich.console import Console

    from portagpu.cli._info_view import show_topology
    from portagpu.machine.inventory.routes import topology_document

    found = machine.topology()
    write_json(topology_document(found), json_to)
    if json_to != STDOUT:
        show_topology(terminal() or Console(highlight=False), found)


def _show(document: dict[str, Any]) -> None:
    from portagpu.cli._info_view import sections

    console = terminal()
    found = sections(document)
    if console is None:
        click.echo("\n\n".join(_plain_section(section) for section in found))
    else:
        _print_rich(console, found)


def _plain_section(section: Section) -> str:
    width = max((len(label) + 2 for label, _ in section.rows if label), default=0)
    lines = [f"  {label:<{width}}{text}" for label, text in section.rows]
    return "\n".join([section.title, *lines])


def _print_rich(console: Console, found: tuple[Section, ...]) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    for number, section in enumerate(found):
        if number:
            console.print()
        console.print(Text(section.title, style="bold"))
        labelled = any(label for label, _ in section.rows)
        table = Table.grid(padding=(0, 2))
        if labelled:
            table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for label, text in section.rows:
            table.add_row(*([Text(label)] if labelled else []), Text(text))
        console.print(Padding(table, (0, 0, 0, 2), expand=False))


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
