"""Shared by the verbs of ``portagpu port``: the check for libcst, and files that were not read."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from portagpu.base.errors import MissingDependency
from portagpu.base.plugins import install
from portagpu.cli._common import STDOUT, check_kept, check_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.train.port.findings import Unread


def require_libcst(verb: str) -> None:
    """Raise MissingDependency, with what to install, if libcst is not installed."""
    if find_spec("libcst") is None:
        raise MissingDependency(f"portagpu port {verb} needs libcst: {install('port')}")


def check_paths(paths: Sequence[str], json_to: str | None) -> None:
    """Raise UsageError for an empty path, and for an output that cannot be written or is read."""
    from portagpu.train.port.reading import files

    if "" in paths:
        raise click.UsageError("a path is empty: name files or folders ('.' is this one)")
    check_outputs(json_to)
    if json_to not in (None, STDOUT):
        check_kept(files(paths), json_to)


def unread_lines(unread: Sequence[Unread]) -> list[str]:
    """One line for each file that was not judged."""
    return [f"portagpu: {each.path} {each.why}" for each in unread]
