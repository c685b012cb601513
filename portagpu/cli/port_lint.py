"""``portagpu port lint``: what ties programs to one vendor."""

from __future__ import annotations

import os
import sys

import click

from portagpu.cli._common import json_option, print_lines, text_stream, write_json
from portagpu.cli._port_text import check_paths, require_libcst, unread_lines


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    help="What to print: text, JSON, SARIF 2.1.0, or annotations of GitHub.",
)
@json_option
def lint(paths: tuple[str, ...], form: str, json_to: str | None) -> int:
    """List every use that ties a program to one vendor, and change nothing.

    Paths are files and folders: Python, C++ and CUDA sources, shell scripts, Dockerfiles and
    requirements. A comment "portagpu: ignore[PG001]" ends a line's finding. Exit codes: 0 if
    nothing breaks, 1 if something does, 3 if a file could not be read.
    """
    from portagpu.train.port import formats
    from portagpu.train.port.lint import lint as engine

    require_libcst("lint")
    check_paths(paths, json_to)
    if json_to == "-":
        form = "json"
    result = engine(paths, processes=len(os.sched_getaffinity(0)))
    if form in ("json", "sarif"):
        write_json(formats.document(result) if form == "json" else formats.sarif(result), "-")
    else:
        lines = formats.text(result) if form == "text" else formats.github(result)
        print_lines(list(lines), text_stream(json_to))
    if json_to not in (None, "-"):
        write_json(formats.document(result), json_to)
    print_lines(unread_lines(result.unread), sys.stderr)
    return result.exit_code
