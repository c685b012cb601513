"""Runs and their measures as plain data: what the store returns, and what is computed from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.base.units import worse_side

if TYPE_CHECKING:
    from collections.abc import Mapping

WORSE: Final = "worse"
BETTER: Final = "better"
DIFFERENT: Final = "different"
"""Neither worse nor better, as the unit does not say which direction is good."""


class Machine(NamedTuple):
    """Where runs were made: runs of one machine are compared over time."""

    target: str | None
    host: str

    def __str__(self) -> str:
        return f"{self.target or 'no known target'} on {self.host or 'a host without name'}"


class MeasureId(NamedTuple):
    """What was measured: the same in every run that measured it."""

    suite: str
    id: str
    device: str | None
    unit: str
    statistic: str | None

    def __str__(self) -> str:
        suite = "" if self.suite == "performance" else f" ({self.suite})"
        return f"{self.id} on {self.device}{suite}" if self.device else f"{self.id}{suite}"

    def to_json(self) -> dict[str, str | None]:
        """An object with a key for each field."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run of the store without its results; ``started_s`` is in seconds since 1970, UTC.

    ``key`` is the store's number for it, and ``measures`` how many results have a number.
    """

    key: int
    id: str
    started_s: float
    machine: Machine
    backend: str | None
    versions: Mapping[str, str | None]
    verdict: str
    digest: str
    measures: int

    @property
    def started(self) -> str:
        """When it began, as RFC 3339, in UTC."""
        return f"{datetime.fromtimestamp(self.started_s, UTC):%Y-%m-%dT%H:%M:%SZ}"

    def to_json(self) -> dict[str, Any]:
        """An object for ``--json``."""
        return {
            "id": self.id,
            "started": self.started,
            "host": self.machine.host,
            "target": self.machine.target,
            "backend": self.backend,
            "versions": dict(self.versions),
            "verdict": self.verdict,
            "measures": self.measures,
            "digest": self.digest,
        }


@dataclass(frozen=True, slots=True)
class Series:
    """One measure in several runs, in no order.

    ``runs``, ``values`` and ``spreads`` are arrays of one length: the position of the run in the
    list of runs that was asked for; the value, and the median absolute deviation of its samples
    (NaN where there is none), both in ``what.unit``.
    """

    what: MeasureId
    runs: Any
    values: Any
    spreads: Any


def judge(change: float, unit: str) -> str:
    """What it means that a value became larger by ``change``: WORSE, BETTER, or DIFFERENT."""
    side = worse_side(unit)
    if not side:
        return DIFFERENT
    return WORSE if (change > 0) == (side > 0) else BETTER


def quotient(value: float, by: float) -> float | None:
    """``value / by``; None where no number holds it, as where ``by`` is 0."""
    found = value / by if by else math.inf
    return found if math.isfinite(found) else None


def changed_versions(before: StoredRun, after: StoredRun) -> dict[str, tuple[str, str]]:
    """Component -> (its version before, after), for each one that differs; "none" where it is not.

    The kernel is a component too, as ``run.versions`` of a result lists it.
    """
    old, new = before.versions, after.versions
    return {
        name: (old.get(name) or "none", new.get(name) or "none")
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    }


def in_words(changed: Mapping[str, tuple[str, str]]) -> str:
    """ "torch 2.12 -> 2.13, driver 580 -> 590", or that no version changed."""
    told = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changed.items())
    return told or "no version changed"
