"""Ways of a library that its cost model has no times for: which may run instead, and why not.

The rows are ``mechanism`` in a vendor's table ``cost_model``. A row has ``name``, other names
(``aliases``), ``operations`` (none where only a program's own kernels use it), ``condition``, the
version ``since`` which and ``until`` before which the library has it, and ``source``. ``nodes`` is
"one" or "several", without it any; ``archs`` are beginnings of names of architectures;
``below_bytes`` and ``above_bytes`` bound the sizes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from portagpu.base.units import size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from portagpu.devices.collectives.cost import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherWay:
    """A way of which the model has no times. ``reason`` says when it runs, or why it does not."""

    name: str
    may_run: bool
    reason: str
    since: str
    until: str | None = None
    source: str

    def __str__(self) -> str:
        runs = "may run instead, without a time here" if self.may_run else "does not run"
        return f"{self.name} (since {self.since}): {runs}: {self.reason}"


def other_ways(
    rows: Iterable[Mapping[str, Any]], library: str, version: str, question: Question
) -> tuple[OtherWay, ...]:
    """Every way of the rows, judged for a question and a version of the library."""
    return tuple(_judged(row, library, version, question) for row in rows)


def named_way(rows: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """The row of that name, up to case and the signs between words; None without one."""
    wanted = _plain(name)
    return next(
        (row for row in rows if wanted in map(_plain, (row["name"], *row["aliases"]))), None
    )


def refusal(
    rows: Sequence[Mapping[str, Any]], name: str, library: str, version: str, question: Question
) -> str | None:
    """Why a choice cannot be asked for a way of that name; None where no row has the name."""
    row = named_way(rows, name)
    if row is None:
        return None
    way = _judged(row, library, version, question)
    if not way.may_run:
        return f"{way.name} of {library} cannot be chosen here: {way.reason} ({way.source})"
    return (
        f"{way.name} of {library} (since {way.since}) may do this, {way.reason}; the cost model "
        f"has no times of them: measure, and give --measured ({way.source})"
    )


def _judged(row: Mapping[str, Any], library: str, version: str, question: Question) -> OtherWay:
    against = _against(row, library, version, question)
    return OtherWay(
        name=row["name"],
        may_run=against is None,
        reason=against or row["condition"],
        since=row["since"],
        until=row.get("until"),
        source=row["source"],
    )


def _against(row: Mapping[str, Any], library: str, version: str, question: Question) -> str | None:
    operations = row["operations"]
    if not operations:
        return f"{row['condition']}: a collective of the host does not use it"
    if question.operation not in operations:
        return f"it has {', '.join(operations)}, not {question.operation}"
    where = row.get("nodes")
    if where == "one" and question.nodes > 1:
        return "it is for one domain of links between GPUs, and there are several nodes"
    if where == "several" and question.nodes == 1:
        return "it is for several nodes"
    archs = row.get("archs")
    arch = question.hardware.arch if question.hardware is not None else ""
    if archs and arch and not arch.startswith(tuple(archs)):
        return f"it is for {', '.join(archs)}, not {arch}"
    if (below := row.get("below_bytes")) is not None and question.size_bytes > below:
        return f"it is for at most {size(below)}"
    if (above := row.get("above_bytes")) is not None and question.size_bytes < above:
        return f"it is for {size(above)} and more"
    if _number(version) < _number(row["since"]):
        return f"it needs {library} {row['since']} or newer, and this is {version}"
    if (until := row.get("until")) is not None and _number(version) >= _number(until):
        return f"{library} {until} removed it, and this is {version}"
    return None


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
