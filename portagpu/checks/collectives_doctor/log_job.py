"""What the lines of all logs of one job say together, and how a line is added to it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.base.text import excerpt
from portagpu.checks.collectives_doctor.launchers import Diagnosis
from portagpu.facts.formats.prefixes import PLAIN

if TYPE_CHECKING:
    from portagpu.checks.collectives_doctor.log_tables import Event, Fact
    from portagpu.facts.formats.prefixes import Origin

_SHOWN: Final = 200
"""Letters of a line that are shown."""
_MAX_KINDS: Final = 200
"""Warnings of different words that are kept: a log repeats few."""


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
    cause: str = ""
    """What its words mean, where it is more than what the finding says."""
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
    """Exceptions of programs of which nothing says that they ended one."""
    severe: dict[str, Seen] = field(default_factory=dict)
    """What programs wrote at the level of errors, without an exception's name."""
    ended: dict[str, Seen] = field(default_factory=dict)
    """Exceptions with which programs ended."""
    followed: dict[str, Seen] = field(default_factory=dict)
    """Those that say that another process had ended."""
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
    def said(self) -> int:
        """How many kinds of errors programs wrote by themselves."""
        return len(self.exceptions) + len(self.severe) + len(self.ended) + len(self.followed)

    @property
    def hosts(self) -> set[str]:
        return {process.host for process in self.processes.values() if process.host}


def see_words(where: dict[str, Seen], message: str, key: tuple[str, str], origin: Origin) -> None:
    """Add a line of no known finding to the lines of the same words."""
    words = re.sub(r"0x[0-9a-f]+|\d+", "N", message)
    if words in where or len(where) < _MAX_KINDS:
        see(where, words, message, key, origin)


def see(
    where: dict[str, Seen],
    name: str,
    line: str,
    key: tuple[str, str],
    origin: Origin = PLAIN,
    at: int = 0,
    event: Event | None = None,
) -> None:
    """Add a line to those of a finding; ``at`` is where its words are."""
    seen = where.setdefault(name, Seen())
    seen.count += 1
    seen.joined += origin.repeats
    # the words that were looked for have to be in what is shown
    start = max(0, at - _SHOWN // 4) if len(line) > _SHOWN else 0
    if not seen.line or (event is not None and event.is_deepest):
        seen.line = ("..." if start else "") + excerpt(line[start:], _SHOWN)
    if event is not None:
        seen.cause = seen.cause or event.cause
    seen.processes.add(key)


def add_fact(
    job: Job, key: tuple[str, str], fact: Fact, found: re.Match[str], origin: Origin
) -> None:
    """Add what a line states to its process and to the job."""
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
