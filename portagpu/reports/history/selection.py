"""A set of runs, from the words of a command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from portagpu.base.text import did_you_mean, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.reports.history.model import StoredRun

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
            f"{one_line(text)!r} is no time: write 2026-11-23 or 2026-11-23T08:00:00Z"
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
    return f": {one_line(unknown[0])!r} is no condition of theirs; {hint}"


def _pair(text: str) -> tuple[str, str]:
    name, joint, value = (part.strip() for part in text.partition("="))
    if not (name and joint and value):
        raise SelectionError(f"{one_line(text)!r} is no condition: write NAME=VALUE")
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
