"""Reads the logs of communication libraries, launchers and torch.

Each line is read without what launchers and collectors write in front of it. Tables
(:mod:`portagpu.checks.collectives_doctor.log_tables`) say what a line means. A line that a library
wrote as a warning or worse, and that no table has, is a finding too: an unknown message does not
mean that all is well.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from portagpu.checks.collectives_doctor.findings import known_findings
from portagpu.checks.collectives_doctor.launchers import FOLLOWING
from portagpu.checks.collectives_doctor.log_benchmarks import is_open, wrong_values
from portagpu.checks.collectives_doctor.log_filter import LineFilter
from portagpu.checks.collectives_doctor.log_job import Job, Process, add_fact, see, see_words
from portagpu.checks.collectives_doctor.log_tables import patterns
from portagpu.checks.collectives_doctor.torch_diagnosis import (
    read_diagnosis,
    stated_rank,
)
from portagpu.checks.collectives_doctor.tracebacks import (
    FOLLOWS,
    HEAD,
    STOPPED,
    is_last,
    read_traceback,
)
from portagpu.facts.formats.cleaning import without_escapes
from portagpu.facts.formats.prefixes import (
    regular_prefixes,
    split_prefixes,
    text_of_json,
    without_json,
)
from portagpu.facts.readings.model import FormatError
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.checks.collectives_doctor.log_tables import Event, LibraryLine
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
_MAX_WAITED: Final = 200
"""Lines after "Last error:" in which that error may stand."""
_COUNTED: Final = frozenset({"network", "transport", "interface", "plugin", "setup", "ready"})
"""What a fact states that is only counted, or the same for every process of a job."""

_BAD: Final = re.compile(
    r"(?i)\b(?:un ?handled|fail(?:ed|s|ure|ures)?|errors?|mismatch(?:ed|es)?|abort(?:ed|ing)?"
    r"|\w{1,40}error)\b|\berr(?:no)?[:=] ?-?[1-9]|Couldn't|Unable to"
)
"""Words with which a library says that something broke."""
_EXCEPTION: Final = re.compile(
    r"(?:^|[\s\]\"'])(?P<name>(?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Interrupt)|Exception)"
    r"(?: ?\([^)]{0,60}\))?: ?(?P<message>.*)"
)
_FOLDED: Final = (
    "Detected mismatch", "Root Cause", "noticed that", "Process name: [[", "Barrier timed out",
    "lost communication with", "(local_rank: ",
)  # fmt: skip
"""Words of messages that have several lines."""
_LINKED: Final = re.compile(r"\[([^\[\]\n]{1,200})\]\(https?://[^()\s]{1,300}\)")
"""Places and addresses that a mail program took for links."""
_SEVERE: Final = re.compile(
    # a number after it is a measured error
    r"\b(?:FATAL|CRITICAL|ERROR|Error)\b\s{0,4}[\]:|](?!\s*[-+\d.])"
    r"|(?:^|[:\]] )(?:FATAL|CRITICAL|ERROR)\b"
    r"|^[Ff]ailed: |^error: (?!\s*[-+\d.])|^\[[-\d]{10} [\d:,.]{8,15} [EF] \d{1,9} \d{1,9}\]"
    r"|\blost connection to |\blevel=(?:error|fatal|panic)\b|^panic: |\bpanicked at "
    # glog, absl, klog and the clients of XLA
    r"|(?:^|[\s:|>])[EF](?:\d{4}(?:\d{4})? \d\d:\d\d:\d\d\.\d{1,9} {1,8}\d{1,20})? "
    r"[\w./-]{1,200}\.(?:cc|cpp|cu|h|go|rs|py):\d{1,6}\] "
)
"""Where a program says by itself that it failed."""
_SEVERE_LEVELS: Final = ("ERROR", "CRITICAL", "FATAL")
_LETTER: Final = re.compile(r"(?<!\w)[EF](?:\d{4})? ")
"""A level as glog and its kin write it."""
_IN_JSON: Final = re.compile(
    r'"(?:level|levelname|severity|lvl)": ?"(?i:error|fatal|critical|panic|alert|emergency)"'
)
"""The level of a line that a program wrote as JSON."""
_ENDS: Final = re.compile(r"^terminate called ")
_IS_SOURCE: Final = re.compile(r"\s*(?:raise |assert |return )\S")
"""Lines of a program's source in a traceback."""
_JOINED: Final = re.compile(r"(?<=\s)\[rank\d{1,7}\]: ?(?=\S)")
"""Where another line of a rank begins inside a line."""
_THROWN: Final = re.compile(r"^(?: *what\(\):)+ +(?P<message>.*)")
_OF_TORCH: Final = re.compile(
    r".*\.py:\d|(?:.*/)?(?:[A-Z]\w*|tensorpipe_\w*|socket|debug|reducer|logger)\.[ch]pp:\d"
).match
"""Places in the sources of torch, by the names that its files have."""
_SAID_LAST: Final = re.compile(r"Last error: {0,4}(\S.*)")
_LAST_ERROR: Final = re.compile(r"Last error: ?$")


class NoKnownLineError(FormatError):
    """A text in which no line is known: another program's output."""


def read_log(text: str, job: Job) -> None:
    """Add what a log says to ``job``. Raises NoKnownLineError for a text without any line of
    one, and FormatError for what is not text."""
    before = job.lines, job.said
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
    if (job.lines, job.said) == before and not found:
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
        self._is_caught: dict[int, bool | None] = {}
        """Of lines with which tracebacks end, whether somebody caught the exception."""

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

    def read(self, number: int, raw: str, *, is_whole: bool = False) -> bool:
        """Add what a line says; False where it is nothing that changes a judgement.

        ``is_whole`` leaves what most lines begin with.
        """
        if not raw or raw.isspace():
            return False
        is_severe = raw[:1] == "{" and _IN_JSON.search(raw) is not None
        raw = text_of_json(raw)
        origin, line = split_prefixes(raw[:_MAX_LINE]) if is_whole else self._split(raw)
        is_severe |= origin.level in _SEVERE_LEVELS and line[:1] not in " \t"
        job = self._job
        job.joined += 0 if is_whole else origin.repeats
        library = self._patterns.line(line)
        if self._regular is not None and (library is None or not library.host):
            # what most lines begin with may be what a library writes by itself
            whole = self._patterns.line(split_prefixes(raw[:_MAX_LINE])[1])
            library = whole if whole is not None and whole.host else library
        is_last = bool(self._last_error) and origin in self._last_error
        if is_last:
            if not line.strip():
                return False
            self._last_error.discard(origin)
        # what a library only remarks has its words at the beginning
        is_marked = (library is None or bool(library.level)) and self._patterns.is_marked(line)
        has_more = not is_whole and self._is_more_than_prefix(raw, line)
        if library is None and not is_marked and not is_last:
            return has_more and self.read(number, raw, is_whole=True)
        if library is not None:
            self._read_joined(number, line, library)
        if library is None and _IS_SOURCE.match(line):
            # a collector may join lines of a traceback
            joined = _JOINED.search(line)
            return joined is not None and self.read(number, line[joined.start() :])
        if library is None and HEAD in line:
            self._read_traceback(number)
            return False
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
            add_fact(job, key, fact, found, origin)
            known += 1
            matters |= any(each not in _COUNTED for each, v in found.groupdict().items() if v)
        events = list(self._patterns.events_of(message, place, is_marked=is_marked))
        # several patterns of one finding may fit a line, which counts once
        for event, at in {event.finding: (event, at) for event, at in reversed(events)}.values():
            see(job.seen, event.finding, message, key, origin, at, event)
        if (said := _SAID_LAST.search(message)) is not None:
            # torch writes the library's own words after its own, where lines were joined
            last = self._patterns.events_of(said[1], "", is_marked=True)
            for event, at in last:
                see(job.seen, event.finding, message, key, origin, said.start(1) + at)
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
                see_words(unknown, message, key, origin)
                known += 1
            else:
                before = job.said
                known += self._read_exception(
                    number, line, message, key, origin, is_severe=is_severe
                )
                matters = bool(known) or job.said > before
        elif library is None and not is_diagnosis and _are_mild(events):
            # what only remarks may quote an exception
            known += self._read_exception(number, line, message, key, origin, is_severe=None)
        if "Last error" in message and _LAST_ERROR.search(message):
            self._last_error.add(origin)
            matters = True
        if has_more and not (known or events or matters):
            # what most lines begin with may be the message of a few equal ones
            return self.read(number, raw, is_whole=True)
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

    def _is_more_than_prefix(self, raw: str, line: str) -> bool:
        """Whether what most lines begin with has words or a level, as a message has."""
        if self._regular is None:
            return False
        head = raw[: max(len(raw) - len(line), 0)]
        return self._patterns.is_marked(head) or _LETTER.search(head) is not None

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

    def _read_traceback(self, number: int) -> None:
        """Know whether somebody caught the exception of a traceback, and read one of any name."""
        found = read_traceback(self._lines, number, lambda raw: self._split(text_of_json(raw)))
        if found is None:
            return
        self._is_caught[found.number] = found.is_caught
        origin, line = self._split(text_of_json(self._lines[found.number]))
        known = _EXCEPTION.search(line) or self._patterns.words.search(line)
        if known or any(self._patterns.events_of(line.strip(), "", is_marked=True)):
            return
        self._add_exception(found.number, line, self._key("", "", origin.rank), origin)

    def _read_exception(
        self,
        number: int,
        line: str,
        message: str,
        key: tuple[str, str],
        origin: Origin,
        *,
        is_severe: bool | None,
    ) -> int:
        """Add an exception; 1 if it is a library's, or if a rank is known to have ended with it.

        ``is_severe`` is whether the line's prefix has an error's level, None where no level counts.
        """
        job = self._job
        found = _EXCEPTION.search(line) or _THROWN.match(line) or _ENDS.match(line)
        if found is None:
            if is_severe or (is_severe is not None and _SEVERE.search(line)):
                see_words(job.severe, message, key, origin)
            return 0
        if self._patterns.words.search(found[0]):
            see_words(job.errors, found[0].strip(), key, origin)
            job.processes.setdefault(key, Process("", origin.rank))
            return 1
        if "name" not in found.re.groupindex:
            # nobody catches what C++ throws to the end; the first line names only its type
            if found.re is _ENDS:
                after = self._split("".join(self._lines[number + 1 : number + 2]))[1]
                thrown = _THROWN.match(after)
                message += f" {thrown[0].strip()}" if thrown is not None else ""
            see(job.seen, "aborted", message, key, origin)
            return 1
        begins = not line[: found.start("name")].strip()
        return self._add_exception(number, message, key, origin, begins=begins)

    def _add_exception(
        self, number: int, message: str, key: tuple[str, str], origin: Origin, begins: bool = True
    ) -> int:
        job = self._job
        if origin.rank is not None:
            see(job.seen, "rank-exception", message, key, origin)
            job.processes.setdefault(key, Process("", origin.rank))
            return 1
        is_caught = self._is_caught.get(number)
        ends = is_caught is False or (begins and is_last(self._lines, number))
        if is_caught or STOPPED.match(message):
            where = job.exceptions
        elif FOLLOWS.search(message):
            where = job.followed
        else:
            where = job.ended if ends else job.exceptions
        see_words(where, message.strip(), key, origin)
        return 0


def _are_mild(events: Sequence[tuple[Event, int]]) -> bool:
    mild = (Verdict.PASS, Verdict.UNVERIFIED)
    return all(known_findings()[event.finding].verdict in mild for event, _ in events)


def _sample(lines: Sequence[str]) -> list[str]:
    """Lines from all of a text, and all of a short one."""
    step = max(1, len(lines) // _MAX_SAMPLE)
    return [text_of_json(line)[:_MAX_LINE] for line in lines[::step]]


def _is_text(text: str) -> bool:
    """Whether the beginning is what programs print, and not bytes of something else."""
    head = text[:_MAX_LINE]
    prints = sum(sign.isprintable() or sign.isspace() for sign in head)
    return bool(head.strip()) and prints >= _TEXT_SHARE * len(head)
