"""Whether click takes the words of a command that a page or a file names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
import pytest

from portagpu.cli._group import app

if TYPE_CHECKING:
    from collections.abc import Sequence

LATER: Final = ("fleet", "health", "monitor")
"""Verbs that pages name before they are in this version."""


def assert_taken(words: Sequence[str]) -> None:
    """Read words as the command line does, up to where the verb would begin its work.

    Raises click.UsageError for an unknown option or a wrong argument, and fails for an unknown
    verb; a verb of ``LATER`` skips the test.
    """
    program, *rest = words
    assert program.rpartition("/")[2] == "portagpu"
    command: click.Command = app
    context = click.Context(app, info_name="portagpu")
    while isinstance(command, click.Group):
        name = rest.pop(0)
        found = command.get_command(context, name)
        if found is None and name in LATER:
            pytest.skip(f"there is no {context.command_path} {name} in this version")
        assert found is not None, f"there is no {context.command_path} {name}"
        command = found
        context = click.Context(command, info_name=name, parent=context)
    command.make_context(context.info_name, rest, parent=context.parent)
