"""``portagpu port rewrite``: a diff of what can be decided, or the rewritten files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from portagpu.cli._common import json_option, print_lines, text_stream, write_json
from portagpu.cli._port_text import check_paths, require_libcst, unread_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.train.port.rewrite import Rewriting


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@click.option("--write", is_flag=True, help="Write the files; without it a diff is printed.")
@click.option(
    "--unsafe",
    is_flag=True,
    help="Also rewrite what may change the results on the GPU that the program was written for.",
)
@json_option
def rewrite(paths: tuple[str, ...], write: bool, unsafe: bool, json_to: str | None) -> int:
    """Rewrite Python programs so that the same source runs on every backend.

    A diff is printed and nothing is written, unless --write says so; patch -p0 applies it. On a
    terminal, control characters of the source are shown as escapes. Each file is written at once
    or not at all. What is not decided stays, with the reason. Exit codes: 0 if nothing is left that
    breaks, 1 if something is, 3 if a file could not be read or written.
    """
    from portagpu.train.port.rewrite import rewrite as engine

    require_libcst("rewrite")
    check_paths(paths, json_to)
    result = engine(paths, unsafe=unsafe)
    stream = text_stream(json_to)
    if write:
        result.write()
    else:
        for each in result.changed:
            click.echo(each.shown_diff if stream.isatty() else each.diff, file=stream, nl=False)
    print_lines(list(_lines(result, write)), sys.stderr)
    print_lines(unread_lines(result.unread), sys.stderr)
    write_json(_document(result, write), json_to)
    return result.exit_code


def _lines(result: Rewriting, write: bool) -> Iterator[str]:
    from portagpu.train.port.formats import code_line

    for each in result.left:
        yield f"{each.path}:{each.line}: {each.rule.id} stays: {code_line(each)}"
        yield f"    {each.left}; write {each.rule.write}"
    done = sum(len(each.done) for each in result.files)
    word = "rewritten" if write else "to rewrite, shown and not written (--write writes)"
    yield f"{done} uses in {len(result.changed)} files {word}; {len(result.left)} stay"


def _document(result: Rewriting, write: bool) -> dict[str, object]:
    from portagpu.train.port import formats

    return {
        "schema": formats.SCHEMA,
        "written": [each.source.path for each in result.changed] if write else [],
        "done": [formats.finding(each) for file in result.files for each in file.done],
        "left": [formats.finding(each) for each in result.left],
        "unread": [formats.unread(each) for each in result.unread],
    }
