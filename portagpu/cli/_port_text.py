"""Shared by the verbs of ``portagpu port``: the check for libcst, and files that were not read."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from portagpu.distributions import install
from portagpu.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.port.findings import Unread


def require_libcst(verb: str) -> None:
    """Raise MissingDependency, with what to install, if libcst is not installed."""
    if find_spec("libcst") is None:
        raise MissingDependency(f"portagpu port {verb} needs libcst: {install('port')}")


def unread_lines(unread: Sequence[Unread]) -> list[str]:
    """One line for each file that was not judged."""
    return [f"portagpu: {each.path} {each.why}" for each in unread]
