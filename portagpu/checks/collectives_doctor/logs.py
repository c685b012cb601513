"""Reads the logs of communication libraries, launchers and torch.

Each line is read without what launchers and collectors write in front of it. Tables
(:mod:`portagpu.checks.collectives_doctor.log_tables`) say what a line means. A line that a library
wrote as a warning or worse, and that no table has, is a finding too: an unknown message does not
mean that all is well.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.base.text import excerpt
from portagpu.checks.collectives_doctor.findings import known_findings
from portagpu.checks.collectives_doctor.log_benchmarks import is_open, wrong_values
from portagpu.checks.collectives_doctor.log_filter import LineFilter
from portagpu.checks.collectives_doctor.log_tables import patterns
from portagpu.checks.collectives_doctor.torch_diagnosis import (
    FOLLOWING,
    Diagnosis,
    read_diagnosis,
    stated_rank,
)
from portagpu.facts.formats.cleaning import without_escapes
from portagpu.facts.formats.prefixes import (
    PLAIN,
    regular_prefixes,
    split_prefixes,
    text_of_json,
    without_json,
)
from portagpu.facts.readings.model import FormatError
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.checks.collectives_doctor.log_tables import Event, Fact, LibraryLine
    from portagpu.facts.formats.prefixes import Origin, RegularPrefix

KIND: Final = "log"
FINE: Final = "log"
"""The finding of lines by which nothing is wrong."""
_MAX_LINE: Final = 4000
_TEXT_SHARE: Final = 0.9
"""Of the signs of a text; colours of a terminal do not print. Of random bytes it is 0.74."""
_MAX_SAMPLE: Final = 2000
"""Lines of a text by which its prefixes are known."""
_MAX_COMPARED: Final = 200
_SHOWN: Final = 200
"""Letters of a line that are shown."""
_MAX_WAITED: Final = 200
"""Lines after "Last error:" in which that error may stand."""
_COUNTED: Final = frozenset({"network", "transport", "interface", "plugin", "setup", "ready"})
"""What a fact states that is only counted, or the same for every process of a job."""
_MAX_KINDS: Final = 200
"""Warnings of different words that are kept: a log repeats few."""

_BAD: Final = re.compile(
    r"(?i)\b(?:un ?handled|fail(?:ed|s|ure|ures)?|errors?|mismatch(?:ed|es)?|abort(?:ed|ing)?"
    r"|\w{1,40}error)\b|\berr(?:no)?[:=] ?-?[1-9]|Couldn't|Unable to"
)
"""Words with which a library says that something broke."""
_EXCEPTION: Final = re.compile(
    r"(?:^|[\s\]\"'])(?P<name>(?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Interrupt)|Exception)"
    r"(?: \([^)]{0,60}\))?: ?(?P<message>.*)"
)
_FOLDED: Final = (
    "Detected mismatch", "Root Cause", "noticed that", "Process name: [[", "Barrier timed out",
    "lost communication with",
)  # fmt: skip
"""Words of messages that have several lines."""
_LINKED: Final = re.compile(r"\[([^\[\]\n]{1,200})\]\(https?://[^()\s]{1,300}\)")
"""Places and addresses that a mail program took for links."""
_SEVERE: Final = re.compile(
    r"(?:^|[\s\[:|])(?:FATAL|CRITICAL|ERROR)[\]:|]|^(?:FATAL|CRITICAL)\b|^Failed: "
    r"|^terminate called |^(?:.{0,80}: )?Killed$|\blost connection to "
)
"""Where a program says by itself that it failed."""
_IS_SOURCE: Final = re.compile(r"\s*(?:raise |assert |return )\S")
"""Lines of a program's source in a traceback."""
_JOINED: Final = re.compile(r"(?<=\s)\[rank\d{1,7}\]: ?(?=\S)")
"""Where another line of a rank begins inside a line."""
_THROWN: Final = re.compile(r"^(?: *what\(\):)+ +(?P<message>.*)")
_OF_TORCH: Final = re.compile(r".*\.(?:[ch]pp|py):\d").match
"""Places in the sources of torch, whose names end so."""
_SAID_LAST: Final = re.compile(r"Last error: {0,4}(\S.*)")
_LAST_ERROR: Final = re.compile(r"Last error: ?$")


class NoKnownLineError(FormatError):
    """A text in which no line is known: another program's output."""


@dataclass(slots=True)
class Process:
    """What the lines of one process say: its rank in the largest communicator, and versions."""

    host: str
    rank: int | None = None
    ranks: int = 0
    has_several: bool = False
    """It has several ranks, one for each device."""
    versions: dict[str, str] = field(default_factory=dict)
    """By library: "NCCL" -> "2.27.7+cuda13.0"."""
    sets_up: bool = False
    """It began to connect to other ranks."""
    is_set_up: bool = False

    @property
    def words(self) -> str:
        """ "rank 3 on node1", or the host alone."""
        on = f" on {self.host}" if self.host else ""
        is_one = self.rank is not None and not self.has_several
        return f"rank {self.rank}{on}" if is_one else self.host


@dataclass(slots=True)
class Seen:
    """A finding's lines: how many, the first one, and of which processes."""

    count: int = 0
    joined: int = 0
    """Equal lines of other processes that a launcher left out."""
    line: str = ""
    processes: set[tuple[str, str]] = field(default_factory=set)


@dataclass(slots=True)
class Job:
    """What all logs of one job say together."""

    lines: int = 0
    processes: dict[tuple[str, str], Process] = field(default_factory=dict)
    nodes: int = 0
    networks: Counter[str] = field(default_factory=Counter)
    transports: Counter[str] = field(default_factory=Counter)
    interfaces: Counter[str] = field(default_factory=Counter)
    plugins: Counter[str] = field(default_factory=Counter)
    settings: dict[str, set[str]] = field(default_factory=dict)
    """Variables that the library read, with their values."""
    seen: dict[str, Seen] = field(default_factory=dict)
    warnings: dict[str, Seen] = field(default_factory=dict)
    """Warnings of no known kind, by their words without numbers."""
    errors: dict[str, Seen] = field(default_factory=dict)
    """Those that say that something broke, and exceptions of a library."""
    exceptions: dict[str, Seen] = field(default_factory=dict)
    """Exceptions of programs."""
    stages: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    """Of each communicator, the ranks that began (START) and ended (COMPLETE) its creation."""
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """Of each communicator, how many ranks began and ended its creation, with joined lines."""
    sizes: dict[str, int] = field(default_factory=dict)
    ranks_of: dict[int, set[int]] = field(default_factory=dict)
    """Of each number of ranks, those of which there are lines."""
    joined: int = 0
    """Lines that a launcher left out because they equal others."""
    open_tables: int = 0
    """Tables of benchmarks that begin and have no row."""
    tables: int = 0
    """Tables of benchmarks that have rows or an end."""
    wrong_values: list[str] = field(default_factory=list)
    """What these say of wrong values."""
    diagnosis: Diagnosis = field(default_factory=Diagnosis)

    @property
    def hosts(self) -> set[str]:
        return {process.host for process in self.processes.values() if process.host}


def read_log(text: str, job: Job) -> None:
    """Add what a log says to ``job``. Raises NoKnownLineError for a text without any line of
    one, and FormatError for what is not text."""
    before = job.lines, len(job.exceptions)
    has_escapes = "\x1b" in text or "\x9b" in text or "[0m" in text
    text = without_json(text, only_folded=True)
    if "](http" in text:
        text = _LINKED.sub(r"\1", text)
    raw = (without_escapes(text) if has_escapes else text).split("\n")
    reader = _Reader(raw, job)
    lines = LineFilter(patterns().line_words)
    read = -1
    for number in lines.numbers(raw):
        if number <= read:
            continue
        read = number
        if not reader.read(number, raw[number]):
            lines.said_nothing()
        # somebody's next line says what the last error was, whatever its words
        end = min(number + _MAX_WAITED, len(raw))
        while reader.is_waiting and read + 1 < end:
            read += 1
            reader.read(read, raw[read])
        reader.stop_waiting()
    job.open_tables += is_open(text)
    found, wrong = wrong_values(text)
    job.tables += found
    job.wrong_values += wrong
    if (job.lines, len(job.exceptions)) == before and not found:
        said = "no line is from a communication library, torch's watchdog or PortaGPU"
        raise NoKnownLineError(said) if _is_text(text) else FormatError("its format is not known")


class _Reader:
    """Reads one log, a line at a time."""

    def __init__(self, lines: Sequence[str], job: Job) -> None:
        self._lines, self._job = lines, job
        self._patterns = patterns()
        # lines of libraries begin in one way by themselves
        sample = [each for each in _sample(lines) if self._patterns.line(each) is None]
        self._regular = max(
            regular_prefixes(sample),
            key=lambda each: self._known(sample[:_MAX_COMPARED], each),
            default=None,
        )
        self._last_error: set[Origin] = set()
        """Those whose next line is a library's last error."""

    def _known(self, sample: Sequence[str], regular: RegularPrefix) -> int:
        """How many lines are of libraries without such a prefix; of equal ones the first counts."""
        rest = (split_prefixes(line, regular)[1] for line in sample)
        return sum(self._patterns.line(line) is not None for line in rest)

    @property
    def is_waiting(self) -> bool:
        """Whether the next line of somebody says what the last error was."""
        return bool(self._last_error)

    def stop_waiting(self) -> None:
        """Take no further line for a last error."""
        self._last_error.clear()

    def read(self, number: int, raw: str) -> bool:
        """Add what a line says; False where it is nothing that changes a judgement."""
        if not raw or raw.isspace():
            return False
        raw = text_of_json(raw)
        origin, line = self._split(raw)
        job = self._job
        job.joined += origin.repeats
        library = self._patterns.line(line)
        is_last = bool(self._last_error) and origin in self._last_error
        if is_last:
            if not line.strip():
                return False
            self._last_error.discard(origin)
        # what a library only remarks has its words at the beginning
        is_marked = (library is None or bool(library.level)) and self._patterns.is_marked(line)
        if library is None and not is_marked and not is_last:
            return False
        if library is not None:
            self._read_joined(number, line, library)
        if library is None and _IS_SOURCE.match(line):
            # a collector may join lines of a traceback
            joined = _JOINED.search(line)
            return joined is not None and self.read(number, line[joined.start() :])
        message = library.message if library is not None else line.strip()
        rank = origin.rank
        if rank is None and not (library is not None and library.host):
            rank = stated_rank(line)
        key = self._key(library.host if library else "", library.pid if library else "", rank)
        # what is taken for a prefix may have words of the message
        is_diagnosis = is_marked and (
            self._read_diagnosis(number, line, rank) or self._read_diagnosis(number, raw, rank)
        )
        known = (library is not None) + is_diagnosis
        matters = is_last or is_diagnosis or origin.repeats > 0
        if library is not None and key not in job.processes:
            job.processes[key] = Process(library.host, rank)
        place = library.place if library is not None else ""
        for fact, found in self._patterns.facts_of(message):
            _add_fact(job, key, fact, found, origin)
            known += 1
            matters |= any(each not in _COUNTED for each, v in found.groupdict().items() if v)
        events = list(self._patterns.events_of(message, place, is_marked=is_marked))
        # several patterns of one finding may fit a line, which counts once
        for finding, at in {event.finding: at for event, at in reversed(events)}.items():
            _see(job.seen, finding, message, key, origin, at)
        if (said := _SAID_LAST.search(message)) is not None:
            # torch writes the library's own words after its own, where lines were joined
            last = self._patterns.events_of(said[1], "", is_marked=True)
            for event, at in last:
                _see(job.seen, event.finding, message, key, origin, said.start(1) + at)
                events.append((event, at))
        if events and rank is not None:
            job.processes.setdefault(key, Process(key[0], rank))
        matters |= any(event.finding != FINE for event, _ in events)
        is_silent = library is not None and (not library.level or not message.strip(" *-="))
        if not (events or is_diagnosis or is_silent or (known and library is None)):
            # torch remarks on errors of other ranks at this level too
            is_error = library is not None and library.level == "ERROR" and not _OF_TORCH(place)
            is_bad = is_error or is_last or _BAD.search(message)
            unknown = job.errors if is_bad else job.warnings
            matters = library is not None or is_last
            if matters:
                _see_words(unknown, message, key, origin)
                known += 1
            else:
                exceptions = len(job.exceptions)
                known += self._read_exception(line, message, key, origin)
                matters = bool(known) or len(job.exceptions) > exceptions
        elif library is None and not is_diagnosis and _are_mild(events):
            # what only remarks may quote an exception
            known += self._read_exception(line, message, key, origin)
        if "Last error" in message and _LAST_ERROR.search(message):
            self._last_error.add(origin)
            matters = True
        job.lines += bool(known or events)
        return matters

    def _read_joined(self, number: int, line: str, library: LibraryLine) -> None:
        """Read what other writers put before and after a library's line without a line's end."""
        before = line[: library.start].rstrip()
        if before and not before.endswith("Last error:") and self._patterns.is_marked(before):
            self.read(number, before)
        if not library.level:
            inner = self._patterns.line(library.message)
            if inner is not None and inner.level:
                self.read(number, library.message[inner.start :])

    def _split(self, raw: str) -> tuple[Origin, str]:
        """A line without its prefixes, also where a collector's JSON is after one."""
        origin, line = split_prefixes(raw[:_MAX_LINE], self._regular)
        if line[:1] == "{" and line != raw and (text := text_of_json(line)) != line:
            origin, line = split_prefixes(text[:_MAX_LINE], self._regular)
        return origin, line

    def _key(self, host: str, pid: str, rank: int | None) -> tuple[str, str]:
        if host or rank is None:
            return host, pid
        return "", f"rank {rank}"

    def _read_diagnosis(self, number: int, line: str, rank: int | None) -> bool:
        following = [line]
        if any(mark in line for mark in _FOLDED):
            after = self._lines[number + 1 : number + FOLLOWING]
            following += [self._split(text_of_json(raw))[1] for raw in after]
        return read_diagnosis(following, 0, rank, self._job.diagnosis)

    def _read_exception(self, line: str, message: str, key: tuple[str, str], origin: Origin) -> int:
        """Add an exception; 1 if it is a library's, or if a rank is known to have ended with it."""
        job = self._job
        found = _EXCEPTION.search(line) or _THROWN.match(line)
        if found is None:
            if _SEVERE.search(line):
                _see_words(job.exceptions, message, key, origin)
            return 0
        if self._patterns.words.search(found[0]):
            _see_words(job.errors, found[0].strip(), key, origin)
            job.processes.setdefault(key, Process("", origin.rank))
            return 1
        if "name" not in found.re.groupindex:
            _see_words(job.exceptions, message, key, origin)
            return 0
        if origin.rank is not None:
            _see(job.seen, "rank-exception", message, key, origin)
            job.processes.setdefault(key, Process("", origin.rank))
            return 1
        _see_words(job.exceptions, message, key, origin)
        return 0


def _are_mild(events: Sequence[tuple[Event, int]]) -> bool:
    mild = (Verdict.PASS, Verdict.UNVERIFIED)
    return all(known_findings()[event.finding].verdict in mild for event, _ in events)


def _sample(lines: Sequence[str]) -> list[str]:
    """Lines from all of a text, and all of a short one."""
    step = max(1, len(lines) // _MAX_SAMPLE)
    return [text_of_json(line)[:_MAX_LINE] for line in lines[::step]]


def _see_words(where: dict[str, Seen], message: str, key: tuple[str, str], origin: Origin) -> None:
    words = re.sub(r"0x[0-9a-f]+|\d+", "N", message)
    if words in where or len(where) < _MAX_KINDS:
        _see(where, words, message, key, origin)


def _is_text(text: str) -> bool:
    """Whether the beginning is what programs print, and not bytes of something else."""
    head = text[:_MAX_LINE]
    prints = sum(sign.isprintable() or sign.isspace() for sign in head)
    return bool(head.strip()) and prints >= _TEXT_SHARE * len(head)


def _see(
    where: dict[str, Seen],
    name: str,
    line: str,
    key: tuple[str, str],
    origin: Origin = PLAIN,
    at: int = 0,
) -> None:
    seen = where.setdefault(name, Seen())
    seen.count += 1
    seen.joined += origin.repeats
    # the words that were looked for have to be in what is shown
    start = max(0, at - _SHOWN // 4) if len(line) > _SHOWN else 0
    seen.line = seen.line or ("..." if start else "") + excerpt(line[start:], _SHOWN)
    seen.processes.add(key)


def _add_fact(
    job: Job, key: tuple[str, str], fact: Fact, found: re.Match[str], origin: Origin
) -> None:
    said = {name: value for name, value in found.groupdict().items() if value is not None}
    process = job.processes.get(key)
    if process is None:
        process = job.processes[key] = Process(key[0])
    if "version" in said:
        process.versions[fact.library] = said["version"]
    for name, counts in (
        ("network", job.networks),
        ("transport", job.transports),
        ("interface", job.interfaces),
        ("plugin", job.plugins),
    ):
        if name in said:
            counts[said[name]] += 1
    if "nodes" in said:
        job.nodes = max(job.nodes, int(said["nodes"]))
    process.sets_up |= "setup" in said
    process.is_set_up |= "ready" in said or said.get("stage") == "COMPLETE"
    if "variable" in said:
        job.settings.setdefault(said["variable"], set()).add(said.get("value", ""))
    if "ranks" in said:
        rank, ranks = int(said["rank"]), int(said["ranks"])
        if ranks > process.ranks:
            process.rank, process.ranks = rank, ranks
        process.has_several |= ranks == process.ranks and rank != process.rank
        if len(seen := job.ranks_of.setdefault(ranks, set())) < 1 << 16:
            seen.add(rank)
    if "communicator" in said:
        stages = job.stages.setdefault(said["communicator"], {})
        stages.setdefault(said["stage"], set()).add(rank)
        job.sizes[said["communicator"]] = ranks
        counts = job.counts.setdefault(said["communicator"], Counter())
        counts[said["stage"]] += 1 + origin.repeats
