"""Whether click takes the words of a command that a page or a file names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from portagpu.cli._verbs import app

if TYPE_CHECKING:
    from collections.abc import Sequence


def assert_taken(words: Sequence[str]) -> None:
    """Read words as the command line does, up to where the verb would begin its work.

    Raises click.UsageError for an unknown option or a wrong argument, and fails for an unknown
    verb.
    """
    program, *rest = words
    assert program.rpartition("/")[2] == "portagpu"
    command: click.Command = app
    context = click.Context(app, info_name="portagpu")
    while isinstance(command, click.Group):
        name = rest.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no {context.command_path} {name}"
        command = found
        context = click.Context(command, info_name=name, parent=context)
    command.make_context(context.info_name, rest, parent=context.parent)
