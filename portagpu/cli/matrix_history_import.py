"""``portagpu matrix history import``: files into a store."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from pathlib import Path

import click

from portagpu.base.text import one_line
from portagpu.cli._common import (
    check_kept,
    check_outputs,
    json_option,
    live_console,
    print_lines,
    text_stream,
    write_json,
)
from portagpu.cli._errors import FAILED, NOT_JUDGED
from portagpu.cli._history import open_for, store_option
from portagpu.cli._tables import aside_lines


@click.command("import")
@click.argument(
    "paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path)
)
@store_option
@json_option
def import_runs(paths: tuple[Path, ...], place: str, json_to: str | None) -> int:
    """Add results and bundles to the store, which is made where there is none.

    Each PATH is a file that --json or --out wrote, or a folder: then all such files in it.
    Nothing is added twice, so that a folder may be imported again. A file that is refused leaves
    nothing, and the others are imported. Exit codes: 1 if a file was refused, 3 if no file is a
    result or a bundle, else 0.
    """
    check_outputs(json_to)
    check_kept(paths, json_to)
    store = open_for(place, json_to, create=True)
    from portagpu.reports.bundles.files import Aside
    from portagpu.reports.history.importing import Outcome, import_files

    counts: Counter[Outcome] = Counter()
    refused = []
    aside: list[Aside] = []
    console = live_console(sys.stderr)
    with store, console.status("") if console else contextlib.nullcontext() as status:
        for each in import_files(store, paths):
            counts[each.outcome] += 1
            if status is not None:
                status.update(f"{counts.total()} files")
            if each.outcome is Outcome.PASSED_OVER:
                aside.append(Aside(each.path, each.why.removeprefix(f"{each.path}: ")))
            if each.outcome is Outcome.REFUSED:
                refused.append({"file": str(each.path), "reason": each.why})
                click.echo(f"portagpu: {one_line(each.why)}", file=sys.stderr)
    print_lines(aside_lines(aside), sys.stderr)
    document = {outcome.name.lower(): counts[outcome] for outcome in Outcome}
    write_json({**document, "reasons": refused}, json_to)
    told = ", ".join(f"{counts[each]} {each}" for each in Outcome if counts[each])
    click.echo(told or "no files: there is no *.json in these folders", file=text_stream(json_to))
    if refused:
        return FAILED
    return 0 if counts[Outcome.ADDED] + counts[Outcome.THERE] else NOT_JUDGED
