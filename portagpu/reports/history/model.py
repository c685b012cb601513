"""Runs and their measures as plain data: what the store returns, and what is computed from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.base.text import did_you_mean, one_line
from portagpu.base.units import worse_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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


JUDGED: Final = "results"
"""The unit of how many results a screen judged (``portagpu.suites.screen.judge.UNIT``)."""


class Judged(NamedTuple):
    """How many results a run judged of one probe on one device, and the verdict on them."""

    run: StoredRun
    what: MeasureId
    results: float
    verdict: str


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
    listed = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changed.items())
    return listed or "no version changed"


_PROPERTIES: Final[tuple[str, ...]] = ("host", "target", "backend", "verdict")
_TIMES: Final[tuple[str, ...]] = ("since", "until")
SYNTAX: Final = (
    "a run's id, several with commas, or conditions such as host=node-1,torch=2.13.0: "
    "host, target, backend, verdict, since, until, or a component of its versions"
)


class SelectionError(ValueError):
    """Words that name no runs; the message is one line that says what could be meant."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions that a run must all meet; times are in seconds since 1970, ``until`` excluded."""

    properties: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    since_s: float | None = None
    until_s: float | None = None

    def holds(self, run: StoredRun) -> bool:
        """Whether a run meets them."""
        known = {
            "host": run.machine.host,
            "target": run.machine.target,
            "backend": run.backend,
            "verdict": run.verdict,
        }
        return (
            all(known[name] == wanted for name, wanted in self.properties.items())
            and all(run.versions.get(name) == wanted for name, wanted in self.versions.items())
            and (self.since_s is None or run.started_s >= self.since_s)
            and (self.until_s is None or run.started_s < self.until_s)
        )


def select(words: str, runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The runs that ``words`` name, in their order; raises SelectionError where there is none.

    An id may be shortened to the beginning that no other has.
    """
    if "=" in words:
        wanted = parse_selection(words)
        found = [run for run in runs if wanted.holds(run)]
        if not found:
            raise SelectionError(f"no run of the store has {one_line(words)}{_hint(wanted, runs)}")
        return found
    chosen = {_one(word.strip(), runs).key for word in words.split(",")}
    return [run for run in runs if run.key in chosen]


def parse_selection(words: str) -> Selection:
    """The conditions in ``words``; raises SelectionError."""
    pairs: dict[str, str] = {}
    for name, value in map(_pair, words.split(",")):
        if name in pairs:
            raise SelectionError(f"{one_line(name)} is given twice, and all conditions must hold")
        pairs[name] = value
    times = {name: parse_time(pairs.pop(name)) for name in _TIMES if name in pairs}
    properties = {name: pairs.pop(name) for name in _PROPERTIES if name in pairs}
    return Selection(properties, pairs, times.get("since"), times.get("until"))


def parse_time(text: str) -> float:
    """Seconds since 1970 of a day (its beginning, UTC) or an RFC 3339 time; or SelectionError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SelectionError(
            f"{one_line(text)!r} is not a time: write 2026-11-23 or 2026-11-23T08:00:00Z"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _hint(wanted: Selection, runs: Sequence[StoredRun]) -> str:
    """What a component that no run knows may have meant; empty where each is known."""
    known = {name for run in runs for name in run.versions}
    unknown = [name for name in wanted.versions if name not in known]
    if not unknown:
        return ""
    names = sorted({*_PROPERTIES, *_TIMES, *known})
    hint = did_you_mean(unknown[0], names, f"conditions are {', '.join(names)}")
    return f": {one_line(unknown[0])!r} is not a condition of these runs; {hint}"


def _pair(text: str) -> tuple[str, str]:
    name, joint, value = (part.strip() for part in text.partition("="))
    if not (name and joint and value):
        raise SelectionError(f"{one_line(text)!r} is not a condition: write NAME=VALUE")
    return name, value


def _one(id_: str, runs: Sequence[StoredRun]) -> StoredRun:
    found = [run for run in runs if run.id == id_] or [
        run for run in runs if id_ and run.id.startswith(id_)
    ]
    if not found:
        hint = did_you_mean(id_, [run.id for run in runs[-1000:]], "the verb runs lists them")
        raise SelectionError(f"no run of the store has the id {one_line(id_)!r}: {hint}")
    if len(found) > 1:
        raise SelectionError(
            f"{one_line(id_)!r} begins {len(found)} ids, such as {found[0].id} and {found[1].id}: "
            "write more of it"
        )
    return found[0]
