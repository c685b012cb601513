"""Shared by the verbs of ``portagpu fleet``: how a node calls portagpu."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, TypeVar

import click

from portagpu.base.subprocesses.start import python_command

if TYPE_CHECKING:
    from collections.abc import Callable

_F = TypeVar("_F", bound="Callable[..., Any]")


def program_option(function: _F) -> _F:
    """Add ``--program`` to a verb."""
    return click.option(
        "--program",
        metavar="WORDS",
        help="How a node calls portagpu: a path, or words in quotes. Default: as here.",
    )(function)


def program_words(given: str | None) -> list[str]:
    """The words of ``--program``; raises UsageError."""
    if given is None:
        return python_command("portagpu")
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise click.UsageError(f"--program {given!r} is no command: {error}") from error
    if not words:
        raise click.UsageError("--program is empty: give a path, or words in quotes")
    return words
