"""The tables of lines: how a line of a library begins, what it states, and what it means.

A ``line`` finds the message after host, process and device. Its groups may be ``host``, ``pid``,
``place`` (a file of the library), ``level`` and ``message``. A ``fact`` has groups with
names that the reader of logs knows. An ``event`` makes a line a finding: ``only_with`` another one,
where there are ``several_hosts``, of lines from a ``place``, or ``alone``, so that the line means
nothing else. A pattern is matched with the beginning of a message if it starts with "^", else
anywhere. All tables are read in every log, because libraries are forks of each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.checks.collectives_doctor.findings import TABLE, known_findings, own_table
from portagpu.facts.vendors import leave_out_table, tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Find = Callable[[str], "re.Match[str] | None"]
_LEVELS: Final = {
    "W": "WARN", "WARN": "WARN", "WARNING": "WARN", "E": "ERROR", "ERROR": "ERROR", "F": "ERROR",
    "FATAL": "ERROR", "ABORT": "ERROR", "CRITICAL": "ERROR",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """A pattern of lines that are a finding."""

    finding: str
    find: Find
    only_with: str = ""
    several_hosts: bool = False
    place: str = ""
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Fact:
    """A pattern of lines that state something."""

    find: Find
    library: str = ""


@dataclass(frozen=True, slots=True)
class LibraryLine:
    """A line that a library wrote: by which process, how grave, where and what."""

    message: str
    host: str = ""
    pid: str = ""
    level: str = ""
    """ "WARN", "ERROR", or "" for what is less."""
    place: str = ""


class _Line:
    """A form of lines. ``marks`` are words of which a line has one, so that others cost little.

    ``level`` is that of lines which state none.
    """

    def __init__(self, pattern: str, marks: Sequence[str] = (), level: str = "") -> None:
        self._find = _finder(pattern)
        self._marks = tuple(marks)
        self._level = level

    def read(self, line: str) -> LibraryLine | None:
        if self._marks and not any(mark in line for mark in self._marks):
            return None
        if (found := self._find(line)) is None:
            return None
        said = {name: value or "" for name, value in found.groupdict().items()}
        return LibraryLine(
            message=said["message"],
            host=said.get("host", ""),
            pid=said.get("pid", ""),
            level=_LEVELS.get(said.get("level", self._level).upper(), ""),
            place=said.get("place", ""),
        )


class _Matches:
    """Patterns that are looked for together, and one by one only where any of them is there."""

    def __init__(self, patterns: Iterable[str]) -> None:
        bare = [re.sub(r"\(\?P<\w+>", "(?:", each) for each in patterns]
        first = [each for each in bare if each.startswith("^")]
        rest = [each for each in bare if not each.startswith("^")]
        self._first: Find | None = _joined(first).match if first else None
        self._rest: Find | None = _joined(rest).search if rest else None

    def any_in(self, message: str) -> bool:
        return bool(
            (self._first is not None and self._first(message))
            or (self._rest is not None and self._rest(message))
        )


def _joined(patterns: Sequence[str]) -> re.Pattern[str]:
    try:
        return re.compile("|".join(f"(?:{each})" for each in patterns))
    except re.error:
        # flags of one pattern, or numbers of groups: then each is tried
        return re.compile("")


@dataclass(frozen=True, slots=True)
class Patterns:
    """All tables together."""

    lines: tuple[_Line, ...]
    facts: tuple[Fact, ...]
    events: tuple[Event, ...]
    known: _Matches
    words: re.Pattern[str]
    """Of libraries, in the text of exceptions."""

    def line(self, text: str) -> LibraryLine | None:
        """The line as one of a library; None for others."""
        for form in self.lines:
            if (found := form.read(text)) is not None:
                return found
        return None

    def events_of(self, message: str, place: str) -> Iterator[tuple[Event, int]]:
        """What a message from a place in a library's sources means, and where it says so."""
        for event in self.events:
            if event.place and event.place not in place:
                continue
            if (found := event.find(message)) is not None:
                yield event, found.start()
                if event.alone:
                    return


@cache
def patterns() -> Patterns:
    """The tables, ours first; a vendor's broken one is left out."""
    lines: list[_Line] = []
    facts: list[Fact] = []
    events: list[Event] = []
    sources: list[str] = []
    words: list[str] = []
    for vendor, table in [("", own_table()), *dict(tables(TABLE)).items()]:
        try:
            own = [_Line(**each) for each in table.get("line", ())]
            said = [
                Fact(_finder(e["pattern"]), e.get("library", "")) for e in table.get("fact", ())
            ]
            made = [
                Event(
                    find=_finder(each["pattern"]),
                    **{name: value for name, value in each.items() if name != "pattern"},
                )
                for each in table.get("event", ())
            ]
            if unknown := [e.finding for e in made if e.finding not in known_findings()]:
                raise ValueError(f"unknown finding {unknown[0]!r}")
            spoken = [re.compile(each).pattern for each in table.get("library_words", ())]
            texts = [e["pattern"] for key in ("fact", "event") for e in table.get(key, ())]
        except (KeyError, TypeError, ValueError, re.error) as error:
            leave_out_table(vendor, TABLE, error)
            continue
        lines, facts, words = [*lines, *own], [*facts, *said], [*words, *spoken]
        # what is true of one place comes before what is true of all
        events, sources = [*events, *made], [*sources, *texts]
    events.sort(key=lambda event: not event.alone)
    return Patterns(tuple(lines), tuple(facts), tuple(events), _Matches(sources), _joined(words))


def _finder(pattern: str) -> Find:
    compiled = re.compile(pattern)
    return compiled.match if pattern[:1] == "^" else compiled.search
