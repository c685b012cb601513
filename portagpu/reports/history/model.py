"""Runs and their measures as plain data: what the store returns, and what is computed from it. All
screens of a device together say how many results were judged, and none was wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.base.text import did_you_mean, one_line
from portagpu.base.units import worse_side
from portagpu.runs.results.verdicts import FAILING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


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


DAYS: Final = 30
"""Rates of wrong results grow with the age of a device: what is older says little."""
ALL: Final = ""
"""In place of a probe: all of them together."""
_DAY_S: Final = 86_400.0
_PREFIX: Final = "screen/"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCount:
    """The results of one probe on one device, in the newest run and in the last days.

    :param probe: Its name; ``ALL`` for all probes together.
    :param runs: How many runs of the last days screened it.
    :param newest: Results in the newest of them.
    :param recent: Results in all of them.
    :param wrong: How many of these runs had a wrong result.
    """

    machine: Machine
    device: str
    probe: str
    runs: int
    newest: float
    recent: float
    wrong: int
    newest_was_wrong: bool

    @property
    def newest_rate(self) -> float | None:
        """The rate that the newest run excludes at 95 %; None where a result was wrong."""
        return None if self.newest_was_wrong else excluded(self.newest)

    @property
    def recent_rate(self) -> float | None:
        """The rate that the runs of the last days exclude together; None where one was wrong."""
        return None if self.wrong else excluded(self.recent)

    def to_json(self) -> dict[str, Any]:
        """An object for ``--json``."""
        return {
            "host": self.machine.host,
            "target": self.machine.target,
            "device": self.device,
            "probe": self.probe or None,
            "runs": self.runs,
            "wrong_runs": self.wrong,
            "newest": {"results": self.newest, "excluded_rate": self.newest_rate},
            "recent": {"results": self.recent, "excluded_rate": self.recent_rate},
        }


def excluded(results: float) -> float | None:
    """The rate that this many right results exclude at 95 %: ``screen.statistics`` has the rule."""
    from portagpu.suites.screen.tally import excluded_rate

    return excluded_rate(int(results))


def device_counts(found: Iterable[Judged], now_s: float, days: int = DAYS) -> list[DeviceCount]:
    """The counts of each probe on each device, and of all probes on it, which come first.

    A device is a place in a machine: one that was replaced goes on with the counts of the old one.

    :param found: What runs judged.
    :param now_s: The end of the days, in seconds since 1970, UTC.
    :param days: How many days.
    """
    groups: dict[tuple[Machine, str, str], list[Judged]] = {}
    for each in found:
        if not now_s - days * _DAY_S < each.run.started_s <= now_s:
            continue
        probe = each.what.id.removeprefix(_PREFIX)
        for name in (ALL, probe):
            groups.setdefault((each.run.machine, each.what.device or "", name), []).append(each)
    return [_count(*key, group) for key, group in sorted(groups.items(), key=_order)]


def _order(group: tuple[tuple[Machine, str, str], list[Judged]]) -> tuple[str, str, str]:
    machine, device, probe = group[0]
    return str(machine), device, probe


def _count(machine: Machine, device: str, probe: str, group: list[Judged]) -> DeviceCount:
    newest = max(group, key=lambda each: each.run.started_s).run.key
    wrong = {each.run.key for each in group if each.verdict in FAILING}
    return DeviceCount(
        machine=machine,
        device=device,
        probe=probe,
        runs=len({each.run.key for each in group}),
        newest=sum(each.results for each in group if each.run.key == newest),
        recent=sum(each.results for each in group),
        wrong=len(wrong),
        newest_was_wrong=newest in wrong,
    )
