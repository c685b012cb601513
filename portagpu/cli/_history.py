"""Shared by the verbs of ``portagpu matrix history``: the store, and which of its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from portagpu.base.errors import MissingDependency
from portagpu.base.text import did_you_mean, excerpt, one_line, shortened
from portagpu.cli._common import check_finite, check_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.reports.history.model import StoredRun
    from portagpu.reports.history.store import Store

_F = TypeVar("_F", bound="Callable[..., Any]")

_LARGE: Final = 1e6
_LONGEST_CELL: Final = 100
EXIT_NOTHING: Final = 3
"""Nothing could be compared, so nothing was judged."""


def store_option(function: _F) -> _F:
    """Add ``--store`` to a verb."""
    return click.option(
        "--store",
        "place",
        required=True,
        metavar="FILE|URL",
        help="The store: a file (SQLite), or postgresql+psycopg://USER@HOST/NAME.",
    )(function)


def which_option(function: _F) -> _F:
    """Add ``--of`` to a verb: the runs that it looks at."""
    return click.option(
        "--of",
        "which",
        metavar="RUNS",
        help="Only these runs, such as host=node-1,since=2026-01-01: conditions on host, "
        "target, backend, verdict, since, until, or a component of the versions.",
    )(function)


def least_option(function: _F) -> _F:
    """Add ``--least`` to a verb: the smallest difference that counts, in percent."""
    return click.option(
        "--least",
        "least_percent",
        type=click.FloatRange(min=0),
        default=5.0,
        show_default=True,
        callback=check_finite,
        metavar="PERCENT",
        help="Smaller differences do not count.",
    )(function)


def open_for(place: str, json_to: str | None = None, *, create: bool = False) -> Store:
    """The store; raises MissingDependency where what it needs is not installed.

    Raises UsageError where ``json_to`` is the store itself.
    """
    check_kept([place], json_to)
    try:
        from portagpu.reports.history.store import open_store
    except ModuleNotFoundError as error:
        from portagpu.base.plugins import install

        raise MissingDependency(f"history needs {error.name}: {install('history')}") from error
    return open_store(place, create=create)


def no_measure(measure: str, store: Store) -> click.UsageError:
    """The error for a measure that no run has, or none of those that were chosen."""
    known = {name.id for name in store.names()}
    named = excerpt(measure)
    if measure in known:
        return click.UsageError(f"these runs have no measure {named!r} that can be compared")
    if not known:
        return click.UsageError("the runs of the store have no measures: import some of bench")
    hint = did_you_mean(measure, known, f"measures are such as {excerpt(min(known))}")
    return click.UsageError(f"the store has no measure {named!r}: {hint}")


def cell(text: object) -> str:
    """A name in a table: on one line, and no longer than can be read there."""
    return shortened(one_line(str(text)), _LONGEST_CELL)


def ratio_text(ratio: float | None) -> str:
    """A ratio in a table: "0.800"; empty where there is none."""
    if ratio is None:
        return ""
    return f"{ratio:.3f}" if abs(ratio) < _LARGE else f"{ratio:.3g}"


def chosen(store: Store, which: str | None) -> list[StoredRun]:
    """The runs that ``--of`` names, the oldest first; all without. Raises UsageError for none."""
    runs = store.runs()
    if not runs:
        raise click.UsageError("the store has no runs: import some first")
    return pick(which, runs) if which else runs


def pick(words: str, runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The runs that ``words`` name; raises UsageError where there is none."""
    from portagpu.reports.history.selection import SelectionError, select

    try:
        return select(words, runs)
    except SelectionError as error:
        raise click.UsageError(str(error)) from error
