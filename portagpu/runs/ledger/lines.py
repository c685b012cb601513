"""Whose a run is: the rows of a report."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.runs.ledger.model import Account
    from portagpu.runs.results.run import Run

_SCRUBBED: Final = re.compile(r"<\w+-\d+>")


class Owner(NamedTuple):
    """Whose a run is: the node by the record of a fleet run, the host that the run states, and the
    name of its file or folder for a run that states none."""

    node: str
    host: str
    place: str


def owner_of(run: Run, place: str, node: str = "") -> Owner:
    """Whose ``run`` is. In a bundle the host was replaced by a number, which names nobody."""
    return Owner(node, host_of(run), place)


def host_of(run: Run) -> str:
    """The host that a run states; empty where it names nobody."""
    host = run.info.host
    return "" if _SCRUBBED.fullmatch(host) else host


@dataclass(frozen=True, slots=True)
class Line:
    """One row of what is known: a node with all that ran there, or one recording.

    ``entries`` are positions in what :func:`lines` was given.
    """

    name: str
    entries: list[int] = field(default_factory=list)


def lines(owners: Sequence[tuple[Owner, Account]]) -> list[Line]:
    """Runs by node: by its record, else by host. A run of no known host is a line of its own, and
    so is each recording, whose name says that it is one where it has the name of a node."""
    found: dict[str, Line] = {}
    alone: list[tuple[str, int]] = []
    for index, (owner, account) in enumerate(owners):
        name = owner.node or owner.host
        if name and not account.replayed:
            found.setdefault(name, Line(name)).entries.append(index)
        else:
            alone.append((f"{name} (recording)" if name else owner.place, index))
    for name, index in alone:
        shown, number = name, 1
        while shown in found:
            number += 1
            shown = f"{name} ({number})"
        found[shown] = Line(shown, [index])
    return list(found.values())
