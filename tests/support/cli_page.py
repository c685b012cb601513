"""The page of the command line: every verb with its arguments and options, as click has them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

import click

from portagpu.base.installation import WRITE_PAGES
from portagpu.cli._verbs import VERBS, app

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD: Final = f"""\
# The command line

Written by `{WRITE_PAGES}` from the commands themselves: what `--help` says of every verb. Each verb
also has `-h` and `--help`.

| verb | what it does |
|---|---|
"""


def cli_page() -> str:
    """docs/book/cli.md."""
    parts = [_HEAD]
    parts += [
        f"| [`{verb}`](#portagpu-{verb}) | {cell(line)} |\n" for verb, (_, line) in VERBS.items()
    ]
    for context in commands(click.Context(app, info_name="portagpu")):
        parts.append(_section(context))
    return "".join(parts)


def commands(above: click.Context) -> Iterator[click.Context]:
    """A context for each command below ``above``, in the order of --help."""
    group = above.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(above):
        command = group.get_command(above, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=above)
        yield context
        if isinstance(command, click.Group):
            yield from commands(context)


def _section(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"\n## {context.command_path}\n\n```\n{usage}\n```\n"]
    parts += [f"\n{each}\n" for each in _paragraphs(command.help or "")]
    rows = [f"| `{names}` | {cell(text)} |\n" for names, text in _options(context)]
    if rows:
        parts += ["\n| option | |\n|---|---|\n", *rows]
    return "".join(parts)


def _options(context: click.Context) -> Iterator[tuple[str, str]]:
    """Names and help of each option but --help, and of an argument that has a help text."""
    for parameter in context.command.params:
        names, text = parameter.get_help_record(context) or ("", "")
        if text or (names and isinstance(parameter, click.Option)):
            yield names.replace("|", "\\|"), text


def _paragraphs(text: str) -> Iterator[str]:
    """A help text in Markdown. What click is not to wrap, below ``\\b``, stays as it is."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        first, _, others = paragraph.partition("\n")
        yield f"```\n{others}\n```" if first == "\b" else escaped(paragraph)


def cell(text: str) -> str:
    """Text for a cell of a table, where a bar is none."""
    return escaped(" ".join(text.split())).replace("|", "\\|")


def escaped(text: str) -> str:
    """Plain text in Markdown."""
    for sign in "\\*_<[`":
        text = text.replace(sign, f"\\{sign}")
    return text
