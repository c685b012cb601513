"""Reads the logs of communication libraries, and what torch's watchdog says in them.

The lines are a vendor's: its table ``doctor.toml`` has patterns. A ``line`` finds the message
after host, process and device. A ``fact`` has groups with names that :func:`_add_fact`
knows. An ``event`` makes a line a finding, ``only_with`` another one or where there are
``several_hosts``. A pattern is matched with the beginning of a message if it starts with "^", else
anywhere. All tables are read in every log, because libraries are forks of each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt, ranks_in_words
from portagpu.base.units import count
from portagpu.checks.collectives_doctor.findings import TABLE, Finding, known_findings, own_table
from portagpu.facts.readings.model import FormatError
from portagpu.facts.vendors import leave_out_table, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "log"
_MAX_LINE: Final = 4000
_TEXT_SHARE: Final = 0.9
"""Of the signs of a text; colours of a terminal do not print. Of random bytes it is 0.74."""
_MAX_SHOWN: Final = 4
_MAX_KINDS: Final = 200
"""Warnings of different words that are kept: a log repeats few."""

# torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, of torch 1.13 to 2.13
_WATCHDOG: Final = re.compile(
    r"\[Rank (?P<rank>\d{1,7})\] Watchdog caught collective operation timeout: "
    r"Work\w{1,12}\(SeqNum=(?P<number>\d{1,18}), OpType=(?P<operation>\w{1,40})"
    r"(?:, NumelIn=(?P<given>\d{1,18}), NumelOut=(?P<taken>\d{1,18}))?"
    r", Timeout\(ms\)=(?P<limit>\d{1,12})\)"
)
_STATUS: Final = re.compile(
    r"\[(?P<group>PG[^\]]{0,120}?) Rank (?P<rank>\d{1,7})\] .{0,300}?"
    r"[lL]ast enqueued (?:\w{1,12} )?work: (?P<enqueued>-?\d{1,18}), "
    r"last completed (?:\w{1,12} )?work: (?P<completed>-?\d{1,18})"
)


Find = Callable[[str], "re.Match[str] | None"]


class NoKnownLineError(FormatError):
    """A text in which no line is known: another program's output."""


@dataclass(frozen=True, slots=True)
class _Event:
    finding: str
    find: Find
    only_with: str = ""
    several_hosts: bool = False


@dataclass(frozen=True, slots=True)
class _Fact:
    find: Find
    library: str = ""


@dataclass(slots=True)
class Process:
    """What the lines of one process say: its rank in the largest communicator, and versions."""

    host: str
    rank: int | None = None
    ranks: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    """By library: "NCCL" -> "2.27.7+cuda13.0"."""

    @property
    def words(self) -> str:
        """ "rank 3 on node1", or the host alone."""
        on = f" on {self.host}" if self.host else ""
        return f"rank {self.rank}{on}" if self.rank is not None else self.host


@dataclass(slots=True)
class _Seen:
    """A finding's lines: how many, the first one, and of which processes."""

    count: int = 0
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
    seen: dict[str, _Seen] = field(default_factory=dict)
    warnings: dict[str, _Seen] = field(default_factory=dict)
    """Warnings of no known kind, by their words without numbers."""
    stages: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    """Of each communicator, the ranks that began (START) and ended (COMPLETE) its creation."""
    sizes: dict[str, int] = field(default_factory=dict)
    timeouts: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """Of each rank, what its watchdog caught, in order."""
    statuses: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    """Of each (group, rank): the number of the last call it began and of the last completed."""

    @property
    def hosts(self) -> set[str]:
        return {process.host for process in self.processes.values() if process.host}


@dataclass(frozen=True, slots=True)
class _Patterns:
    lines: tuple[re.Pattern[str], ...]
    facts: tuple[_Fact, ...]
    events: tuple[_Event, ...]


@cache
def _patterns() -> _Patterns:
    lines: list[re.Pattern[str]] = []
    facts: list[_Fact] = []
    events: list[_Event] = []
    for vendor, table in [("", own_table()), *dict(tables(TABLE)).items()]:
        try:
            own = [re.compile(each["pattern"]) for each in table.get("line", ())]
            said = [
                _Fact(_finder(each["pattern"]), each.get("library", ""))
                for each in table.get("fact", ())
            ]
            made = [
                _Event(
                    find=_finder(each["pattern"]),
                    **{name: value for name, value in each.items() if name != "pattern"},
                )
                for each in table.get("event", ())
            ]
            if unknown := [e.finding for e in made if e.finding not in known_findings()]:
                raise ValueError(f"unknown finding {unknown[0]!r}")
        except (KeyError, TypeError, ValueError, re.error) as error:
            leave_out_table(vendor, TABLE, error)
            continue
        lines, facts, events = [*lines, *own], [*facts, *said], [*events, *made]
    return _Patterns(tuple(lines), tuple(facts), tuple(events))


def read_log(text: str, job: Job) -> None:
    """Add what a log says to ``job``. Raises NoKnownLineError for a text without any line of
    one, and FormatError for what is not text."""
    patterns = _patterns()
    before = job.lines
    for raw in text.split("\n"):
        if not raw or raw.isspace():
            continue
        line = raw[:_MAX_LINE]
        prefix = next((found for each in patterns.lines if (found := each.search(line))), None)
        message = prefix["message"] if prefix else line.strip()
        key = (prefix["host"], prefix["pid"]) if prefix else ("", "")
        known = bool(prefix) + _read_watchdog(line, job)
        for fact in patterns.facts:
            if found := fact.find(message):
                _add_fact(job, key, fact, found)
                known += 1
        if prefix:
            job.processes.setdefault(key, Process(prefix["host"]))
        events = [each for each in patterns.events if each.find(message)]
        for event in events:
            _see(job.seen, event.finding, message, key)
        if prefix and not events and prefix["level"] == "WARN":
            words = re.sub(r"0x[0-9a-f]+|\d+", "N", message)
            if words in job.warnings or len(job.warnings) < _MAX_KINDS:
                _see(job.warnings, words, message, key)
        job.lines += bool(known or events)
    if job.lines == before:
        said = "no line is from a communication library, torch's watchdog or PortaGPU"
        raise NoKnownLineError(said) if _is_text(text) else FormatError("its format is not known")


def _is_text(text: str) -> bool:
    """Whether the beginning is what programs print, and not bytes of something else."""
    head = text[:_MAX_LINE]
    prints = sum(sign.isprintable() or sign.isspace() for sign in head)
    return bool(head.strip()) and prints >= _TEXT_SHARE * len(head)


def _finder(pattern: str) -> Find:
    compiled = re.compile(pattern)
    return compiled.match if pattern[:1] == "^" else compiled.search


def _see(where: dict[str, _Seen], name: str, line: str, key: tuple[str, str]) -> None:
    seen = where.setdefault(name, _Seen())
    seen.count += 1
    seen.line = seen.line or excerpt(line, 160)
    seen.processes.add(key)


def _add_fact(job: Job, key: tuple[str, str], fact: _Fact, found: re.Match[str]) -> None:
    said = {name: value for name, value in found.groupdict().items() if value is not None}
    process = job.processes.setdefault(key, Process(key[0]))
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
    if "variable" in said:
        job.settings.setdefault(said["variable"], set()).add(said.get("value", ""))
    if "communicator" in said:
        rank, ranks = int(said["rank"]), int(said["ranks"])
        stages = job.stages.setdefault(said["communicator"], {})
        stages.setdefault(said["stage"], set()).add(rank)
        job.sizes[said["communicator"]] = ranks
        if ranks > process.ranks:
            process.rank, process.ranks = rank, ranks


def _read_watchdog(line: str, job: Job) -> int:
    """Add what torch's watchdog says in a line; 1 if it says something."""
    if "work" not in line and "Watchdog" not in line:
        return 0
    if found := _WATCHDOG.search(line):
        said = {name: text for name, text in found.groupdict().items() if text is not None}
        caught = {name: text if name == "operation" else int(text) for name, text in said.items()}
        of_rank = job.timeouts.setdefault(int(said["rank"]), [])
        if caught not in of_rank and len(of_rank) < _MAX_KINDS:
            of_rank.append(caught)
        return 1
    if found := _STATUS.search(line):
        key = (excerpt(found["group"]), int(found["rank"]))
        numbers = ("enqueued", "completed")
        job.statuses.setdefault(key, {name: int(found[name]) for name in numbers})
        return 1
    return 0


def judge_logs(job: Job) -> Iterator[Finding]:
    """The findings of all logs of one job."""
    yield Finding(id="log", evidence=_summary(job))
    yield from _timeouts(job)
    yield from _creations(job)
    yield from _versions(job)
    several = max(job.nodes, len(job.hosts)) > 1
    reported: set[str] = set()
    for event in _patterns().events:
        seen = job.seen.get(event.finding)
        if seen is None or event.finding in reported:
            continue
        if (event.only_with and event.only_with not in job.seen) or (
            event.several_hosts and not several
        ):
            continue
        reported.add(event.finding)
        yield Finding(id=event.finding, evidence=_in_words(job, seen), device=_blamed(job, seen))
    if job.warnings:
        shown = sorted(job.warnings.values(), key=lambda seen: -seen.count)
        words = "; ".join(_in_words(job, seen) for seen in shown[:_MAX_SHOWN])
        more = f"; and {len(shown) - _MAX_SHOWN} more kinds" if len(shown) > _MAX_SHOWN else ""
        yield Finding(id="library-warning", evidence=words + more)


def _summary(job: Job) -> str:
    known = {process.rank for process in job.processes.values() if process.rank is not None}
    world = max((process.ranks for process in job.processes.values()), default=0)
    parts = []
    if world:
        parts.append(f"lines of {len(known)} of {world} ranks on {count(len(job.hosts), 'host')}")
    elif job.timeouts:
        parts.append(f"lines of torch's watchdog of {ranks_in_words(job.timeouts)}")
    if job.nodes > 1:
        parts.append(f"{job.nodes} machines")
    versions = {(n, v) for process in job.processes.values() for n, v in process.versions.items()}
    parts += [f"{name} {version}" for name, version in sorted(versions)]
    for name, counts in (
        ("network", job.networks),
        ("transports", job.transports),
        ("interface", job.interfaces),
        ("plugin", job.plugins),
    ):
        if counts:
            shown = [each for each, _ in counts.most_common(_MAX_SHOWN)]
            parts.append(f"{name} {', '.join(shown)}")
    if job.settings:
        stated = (f"{n}={'|'.join(sorted(v))}" for n, v in sorted(job.settings.items()))
        parts.append(f"set: {excerpt(', '.join(stated), 400)}")
    return "; ".join(parts) or count(job.lines, "line")


def _in_words(job: Job, seen: _Seen) -> str:
    times = f" ({seen.count} times)" if seen.count > 1 else ""
    who = sorted({w for key in seen.processes if (w := _who(job, key))})
    more = f" and {len(who) - _MAX_SHOWN} more" if len(who) > _MAX_SHOWN else ""
    by = f", by {', '.join(who[:_MAX_SHOWN])}{more}" if who else ""
    return f'"{seen.line}"{times}{by}'


def _who(job: Job, key: tuple[str, str]) -> str:
    process = job.processes.get(key)
    return process.words if process is not None else ""


def _blamed(job: Job, seen: _Seen) -> str | None:
    who = {_who(job, key) for key in seen.processes}
    return next(iter(who)) or None if len(who) == 1 and len(job.processes) > 1 else None


def _versions(job: Job) -> Iterator[Finding]:
    for library in sorted({name for each in job.processes.values() for name in each.versions}):
        stated = [each for each in job.processes.values() if library in each.versions]
        if len(counts := Counter(each.versions[library] for each in stated)) > 1:
            most = counts.most_common(1)[0][0]
            odd = next(each for each in stated if each.versions[library] != most)
            yield Finding(
                id="library-version",
                evidence=(
                    f"{odd.words} has {library} {odd.versions[library]}, and most have {most}"
                ),
                device=odd.words or None,
            )


def _creations(job: Job) -> Iterator[Finding]:
    """Communicators that some ranks began to create and did not complete."""
    shown = 0
    for name, stages in job.stages.items():
        begun, done = stages.get("START", set()), stages.get("COMPLETE", set())
        size = job.sizes[name]
        if size < 2 or not begun - done:
            continue
        shown += 1
        known = range(min(size, 1 << 16)) if shown <= _MAX_KINDS else ()
        absent = sorted(set(known) - begun - done)
        others = f"; {ranks_in_words(absent)} did not begin it here" if absent else ""
        yield Finding(
            id="creation",
            evidence=(
                f"{ranks_in_words(begun - done)} began to create communicator {name} of {size} "
                f"ranks and did not complete it{others}"
            ),
            device=ranks_in_words(absent) if len(absent) == 1 else None,
        )


def _timeouts(job: Job) -> Iterator[Finding]:
    """What torch's watchdogs report together: ranks that differ, and those with fewer calls."""
    if not job.timeouts:
        return
    first = {rank: caught[0] for rank, caught in job.timeouts.items()}
    # ranks time out in collectives of several groups, whose numbers do not belong together
    number = Counter(each["number"] for each in first.values()).most_common(1)[0][0]
    same = {rank: each for rank, each in first.items() if each["number"] == number}
    calls = {rank: (each["operation"], each.get("given")) for rank, each in same.items()}
    usual = Counter(calls.values()).most_common(1)[0][0]
    agreeing = [rank for rank, call in calls.items() if call == usual]
    for rank, call in calls.items():
        if call != usual:
            kind = "operation" if call[0] != usual[0] else "shape"
            yield Finding(
                id=kind,
                evidence=(
                    f"rank {rank} timed out in {_call(call)} as number {number}, and "
                    f"{ranks_in_words(agreeing)} in {_call(usual)}"
                ),
                device=f"rank {rank}",
            )
    for (group, rank), status in job.statuses.items():
        waiting = [
            r for (g, r), s in job.statuses.items() if g == group and r in same and r != rank
        ]
        if waiting and status["enqueued"] < number and rank not in same:
            yield Finding(
                id="behind",
                evidence=(
                    f"rank {rank} began number {status['enqueued']} of {group} last, and "
                    f"{ranks_in_words(waiting)} timed out in number {number}, {_call(usual)}"
                ),
                device=f"rank {rank}",
            )
    limit = same[agreeing[0]]["limit"] / 1000
    evidence = (
        f"{ranks_in_words(agreeing)} timed out after {limit:g} s in {_call(usual)}, number {number}"
    )
    world = max((process.ranks for process in job.processes.values()), default=0)
    silent = sorted(set(range(min(world, 1 << 16))) - set(first))
    if silent:
        evidence += f"; {ranks_in_words(silent)} did not time out: look there first"
    elif world:
        evidence += "; every rank timed out"
    else:
        evidence += "; these lines do not show whether a rank never called it"
    others = [rank for rank in first if rank not in same]
    if others:
        evidence += f"; {ranks_in_words(others)} timed out in a call with another number"
    yield Finding(
        id="watchdog",
        evidence=evidence,
        device=f"rank {silent[0]}" if len(silent) == 1 else None,
    )


def _call(call: tuple[str, int | None]) -> str:
    return call[0] + (f" of {call[1]} elements" if call[1] is not None else "")
