"""The tables of lines: how a line of a library begins, what it states, and what it means.

A ``line`` finds the message after host, process and device. Its groups may be ``host``, ``pid``,
``place`` (a file of the library), ``level`` and ``message``. A ``fact`` has groups with
names that the reader of logs knows. An ``event`` makes a line a finding: ``only_with`` another one,
where there are ``several_hosts``, of lines from a ``place``, or ``alone``, so that the line means
nothing else. It may have a ``cause`` of its own, and ``is_deepest`` where a stack of errors is
written, whose last line says the cause. A pattern is matched with the beginning of a message if it
starts with "^", else anywhere in lines with one of the table's ``marks``. All tables are read in
every log, because libraries are forks of each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.checks.collectives_doctor.findings import TABLE, known_findings, own_table
from portagpu.facts.formats.prefixes import REPEATED
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
    is_first: bool = False
    """It is at the beginning of a message."""
    is_deepest: bool = False
    """Of several lines the last one says the cause: a stack of errors."""
    cause: str = ""
    """What these words mean, where it is more than what the finding says."""


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
    start: int = 0
    """Where it begins in the text."""


class _Line:
    """A form of lines. ``marks`` are words of which a line has one, so that others cost little.

    ``level`` is that of lines which state none.
    """

    def __init__(self, pattern: str, marks: Sequence[str] = (), level: str = "") -> None:
        self._find = _finder(pattern)
        self._marks = tuple(marks)
        self._level = level

    @property
    def marks(self) -> tuple[str, ...]:
        """Words of which a line has one; "" is in every line."""
        return self._marks or ("",)

    def read(self, line: str) -> LibraryLine | None:
        """The line in this form; None where it has another."""
        if (found := self._find(line)) is None:
            return None
        said = found.groupdict("")
        return LibraryLine(
            message=said["message"],
            host=said.get("host", ""),
            pid=said.get("pid", ""),
            level=_LEVELS.get(said.get("level", self._level).upper(), ""),
            place=said.get("place", ""),
            start=found.start(),
        )


class _Finders:
    """Patterns that are looked for together, and one by one only where any of them is there.

    Those that may stand anywhere in a line are looked for in lines with one of ``marks`` alone.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        bare = [re.sub(r"\(\?P<\w+>", "(?:", each) for each in patterns]
        first = [each for each in bare if each.startswith("^")]
        rest = [each for each in bare if not each.startswith("^")]
        self._first: Find | None = _joined(first).match if first else None
        self._rest: Find | None = _joined(rest).search if rest else None

    def any_in(self, message: str, *, is_marked: bool) -> bool:
        return bool(
            (self._first is not None and self._first(message))
            or (is_marked and self._rest is not None and self._rest(message))
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

    lines: tuple[tuple[str, _Line], ...]
    """The forms of lines, each with a word that such a line has."""
    facts: tuple[Fact, ...]
    events: tuple[Event, ...]
    of_facts: _Finders
    of_events: _Finders
    marks: tuple[str, ...]
    """Words of which a line has one if a pattern may be anywhere in it; empty for all lines."""
    words: re.Pattern[str]
    """Of libraries, in the text of exceptions."""

    @property
    def line_words(self) -> tuple[str, ...]:
        """Words of which every line has one that says something; empty if any line may."""
        words = {*self.marks, *(mark for mark, _ in self.lines), REPEATED}
        return tuple(sorted(words)) if self.marks and "" not in words else ()

    def line(self, text: str) -> LibraryLine | None:
        """The line as one of a library; None for others."""
        for mark, form in self.lines:
            if mark in text and (found := form.read(text)) is not None:
                return found
        return None

    def is_marked(self, line: str) -> bool:
        """Whether the line has a word that makes it worth a longer look."""
        return not self.marks or any(mark in line for mark in self.marks)

    def facts_of(self, message: str) -> Iterator[tuple[Fact, re.Match[str]]]:
        """What a message states."""
        if self.of_facts.any_in(message, is_marked=True):
            for fact in self.facts:
                if (found := fact.find(message)) is not None:
                    yield fact, found

    def events_of(
        self, message: str, place: str, *, is_marked: bool
    ) -> Iterator[tuple[Event, int]]:
        """What a message from a place in a library's sources means, and where it says so."""
        if not self.of_events.any_in(message, is_marked=is_marked):
            return
        for event in self.events:
            if event.place and event.place not in place:
                continue
            if not (is_marked or event.is_first):
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
    of_facts: list[str] = []
    of_events: list[str] = []
    words: list[str] = []
    marks: list[str] = []
    marked = True
    for vendor, table in [("", own_table()), *dict(tables(TABLE)).items()]:
        try:
            own = [_Line(**each) for each in table.get("line", ())]
            said = [
                Fact(_finder(e["pattern"]), e.get("library", "")) for e in table.get("fact", ())
            ]
            made = [
                Event(
                    find=_finder(each["pattern"]),
                    is_first=each["pattern"][:1] == "^",
                    **{name: value for name, value in each.items() if name != "pattern"},
                )
                for each in table.get("event", ())
            ]
            if unknown := [e.finding for e in made if e.finding not in known_findings()]:
                raise ValueError(f"unknown finding {unknown[0]!r}")
            spoken = [re.compile(each).pattern for each in table.get("library_words", ())]
            texts = [[e["pattern"] for e in table.get(key, ())] for key in ("fact", "event")]
            own_marks = list(map(str, table.get("marks", ())))
            # a table without words of its own has its patterns looked for in every line
            marked &= bool(own_marks) or all(each[:1] == "^" for each in texts[1])
        except (KeyError, TypeError, ValueError, re.error) as error:
            leave_out_table(vendor, TABLE, error)
            continue
        lines, facts, words = [*lines, *own], [*facts, *said], [*words, *spoken]
        events = [*events, *made]
        of_facts, of_events = [*of_facts, *texts[0]], [*of_events, *texts[1]]
        marks = [*marks, *own_marks]
    # what is true of one place comes before what is true of all
    events.sort(key=lambda event: not event.alone)
    return Patterns(
        lines=tuple((mark, form) for form in lines for mark in form.marks),
        facts=tuple(facts),
        events=tuple(events),
        of_facts=_Finders(of_facts),
        of_events=_Finders(of_events),
        marks=tuple(dict.fromkeys(marks)) if marked else (),
        words=_joined(words),
    )


def _finder(pattern: str) -> Find:
    compiled = re.compile(pattern)
    return compiled.match if pattern[:1] == "^" else compiled.search
