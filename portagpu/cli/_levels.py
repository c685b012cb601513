"""How much a verb runs: ``--level``, one word that all verbs share, and the words of before."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    _R = TypeVar("_R")

LEVELS: Final = ("smoke", "default", "full", "deep")
UNTIL: Final = "the old word works until 1.0"


def level_option(
    old: Mapping[str, str], **means: str
) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """Add ``--level`` to a verb, which receives it as ``level``.

    :param old: The flag of before -> the level that it means. It is not listed any more.
    :param means: What each level runs, in words.
    """
    assert tuple(means) == LEVELS  # noqa: S101 - the caller is a verb

    def add(function: Callable[..., _R]) -> Callable[..., _R]:
        @functools.wraps(function)
        def call(*, level: str | None, **given: Any) -> _R:
            asked = [flag for flag in old if given.pop(flag)]
            words = [*(f"--{flag}" for flag in asked), *([f"--level {level}"] if level else [])]
            if len(words) > 1:
                raise click.UsageError(f"give either {' or '.join(words[:2])}, not both")
            for flag in asked:
                level = old[flag]
                say_old(f"--{flag}", f"--level {level}")
            return function(level=level or "default", **given)

        decorated: Callable[..., _R] = call
        for flag in reversed([*old]):
            decorated = click.option(f"--{flag}", flag, is_flag=True, hidden=True)(decorated)
        listed = "; ".join(f"{level}: {words}" for level, words in means.items())
        return click.option(
            "--level",
            type=click.Choice(LEVELS),
            metavar="|".join(LEVELS),
            help=f"How much to run.  {listed}.",
        )(decorated)

    return add


def say_old(word: str, new: str) -> None:
    """Say in one line what to write in place of an old word, which works as before."""
    click.echo(f"portagpu: {word} is {new} now; {UNTIL}", err=True)
