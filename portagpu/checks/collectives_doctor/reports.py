"""Reads what communication libraries report in JSON: states of communicators, measured calls.

The state is that of the RAS service (``ncclras -f json``, NCCL 2.28.7 and newer,
``src/ras/client_support.cc``). Measured calls are those of the Inspector plugin, one object after
another (``plugins/profiler/inspector/README.md``, format v4.0).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt, ranks_in_words
from portagpu.checks.collectives_doctor.findings import Finding
from portagpu.facts.formats.json_xml import json_documents
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# NCCL 2.28.9 leaves out a comma between two members of a missing rank
_NO_COMMA: Final = re.compile(r'("\w{1,40}": -?\d{1,12})(\s*\n\s*")')
_RUNNING: Final = 0
_INITIALISING: Final = 7
"""ncclSuccess and ncclInProgress (``src/nccl.h.in``)."""
_MAX_COMMUNICATORS: Final = 1 << 16
_MAX_RANKS: Final = 1 << 20

Counts = dict[str, dict[int, int]]


@dataclass(slots=True)
class _Communicator:
    """One communicator: calls of each kind by rank, ranks in trouble, and missing ones."""

    size: int = 0
    counts: Counts = field(default_factory=dict)
    before: Counts | None = None
    """The counts of an earlier report of the same communicator."""
    wrong: dict[int, str] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Reports:
    """What all reports of one job say together."""

    states: int = 0
    versions: set[str] = field(default_factory=set)
    communicators: dict[str, _Communicator] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    """Of each file of measured calls, how many it has."""
    last: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    """Of each (communicator, kind of call), the last number of each rank."""
    dropped: int = 0


def looks_like_report(name: str, data: bytes) -> bool:
    """Whether it is one of these reports; the plugin's file may be empty, and its name says it."""
    head = data[:4096].lstrip()
    if not head:
        return "inspector" in name.lower()
    if head[:1] != b"{":
        return False
    return b'"communicators"' in data or b'"inspector_output_format_version"' in head


def read_report(text: str, name: str, reports: Reports) -> None:
    """Add a report to ``reports``. Raises FormatError for anything else."""
    if not text.strip():
        reports.files[name] = 0
        return
    documents, cut = json_documents(_NO_COMMA.sub(r"\1,\2", text))
    calls = 0
    for document in documents:
        if not isinstance(document, dict):
            raise FormatError("not a report of a communication library")
        if isinstance(document.get("communicators"), list):
            if cut:
                raise FormatError("this report is incomplete: request it again")
            _read_state(document, reports)
            continue
        if not isinstance(document.get("metadata"), dict):
            raise FormatError("not a report of a communication library")
        calls += _read_call(document, reports)
        reports.files[name] = calls


def _read_state(document: Mapping[str, Any], reports: Reports) -> None:
    reports.states += 1
    version = next((v for key, v in document.items() if key.endswith("ccl_version")), None)
    if isinstance(version, str):
        reports.versions.add(excerpt(version, 40))
    for each in document["communicators"][:_MAX_COMMUNICATORS]:
        if not isinstance(each, dict) or not isinstance(each.get("hash"), str):
            raise FormatError(
                "not a report of a communication library: a communicator has an unexpected form"
            )
        known = reports.communicators.setdefault(excerpt(each["hash"], 40), _Communicator())
        known.size = max(known.size, _number(each.get("size")))
        counts: Counts = {}
        for rank in _tables(each.get("ranks")):
            _read_rank(rank, known, counts)
        for rank in _tables(each.get("missing_ranks")):
            status = rank.get("status")
            dead = isinstance(status, dict) and status.get("considered_dead") is True
            where = f"pid {_number(rank.get('pid'))} on {excerpt(str(rank.get('host', '')), 80)}"
            said = "is considered dead" if dead else "does not answer"
            known.missing[_number(rank.get("rank"))] = f"{said} ({where})"
        known.before, known.counts = known.counts or None, counts


def _read_rank(rank: Mapping[str, Any], known: _Communicator, counts: Counts) -> None:
    number = _number(rank.get("rank"))
    stated = rank.get("collective_counts")
    for kind, count in stated.items() if isinstance(stated, dict) else ():
        counts.setdefault(excerpt(kind, 40), {})[number] = _number(count)
    status = rank.get("status")
    if not isinstance(status, dict):
        return
    said = []
    if (state := _number(status.get("init_state"))) not in (_RUNNING, _INITIALISING):
        said.append(f"its creation failed with {state}")
    elif state == _INITIALISING:
        said.append("it is still being created")
    if error := _number(status.get("async_error")):
        said.append(f"it has the error {error}")
    if status.get("abort_flag") is True:
        said.append("it is being aborted")
    if said:
        known.wrong[number] = " and ".join(said)


def _read_call(document: Mapping[str, Any], reports: Reports) -> int:
    """Add one object of measured calls; 1 if it holds one."""
    header, stats = document.get("header"), document.get("dump_stats")
    if isinstance(stats, dict):
        reports.dropped = max(reports.dropped, _number(stats.get("dropped_total")))
    for key, kind, number in (("coll_perf", "coll", "coll_sn"), ("p2p_perf", "p2p", "p2p_sn")):
        call = document.get(key)
        if not isinstance(call, dict) or not isinstance(header, dict):
            continue
        if kind == "coll":
            name = (excerpt(str(header.get("id", "")), 40), excerpt(str(call.get(kind, "")), 40))
            last = reports.last.setdefault(name, {})
            rank = _number(header.get("rank"))
            last[rank] = max(last.get(rank, 0), _number(call.get(number)))
        return 1
    return 0


def _tables(value: object) -> Iterator[Mapping[str, Any]]:
    for each in value[:_MAX_RANKS] if isinstance(value, list) else ():
        if not isinstance(each, dict):
            raise FormatError(
                "not a report of a communication library: a rank has an unexpected form"
            )
        yield each


def _number(value: object) -> int:
    """A whole number; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def judge_reports(reports: Reports) -> Iterator[Finding]:
    """The findings of all reports of one job."""
    if reports.states:
        versions = ", ".join(sorted(reports.versions)) or "of an unknown version"
        number = len(reports.communicators)
        yield Finding(
            id="state",
            evidence=f"{reports.states} reports of {number} communicators, library {versions}",
        )
    for name, each in reports.communicators.items():
        where = f"communicator {name} of {each.size} ranks"
        for rank, said in sorted(each.missing.items()):
            yield Finding(
                id="rank-missing", evidence=f"rank {rank} of {where} {said}", device=f"rank {rank}"
            )
        for rank, said in sorted(each.wrong.items()):
            yield Finding(
                id="rank-state", evidence=f"rank {rank} of {where}: {said}", device=f"rank {rank}"
            )
        yield from _uneven(each, where)
    yield from _measured(reports)


def _uneven(each: _Communicator, where: str) -> Iterator[Finding]:
    """Ranks that made fewer calls; certain where nothing moved between two reports."""
    stopped = each.before == each.counts
    for kind, counts in each.counts.items():
        if len(set(counts.values())) < 2:
            continue
        most = Counter(counts.values()).most_common(1)[0][0]
        low = [rank for rank, count in counts.items() if count == min(counts.values())]
        named = ranks_in_words(low)
        evidence = (
            f"{named} made {min(counts.values())} calls of {kind} in {where}, others up to "
            f"{max(counts.values())}, most {most}"
        )
        if stopped:
            evidence += "; nothing changed between two reports"
        yield Finding(
            id="rank-stopped" if stopped else "rank-slow",
            evidence=evidence,
            device=named if len(low) == 1 else None,
        )


def _measured(reports: Reports) -> Iterator[Finding]:
    if not reports.files:
        return
    total = sum(reports.files.values())
    if not total:
        shown = ", ".join(excerpt(name, 80) for name in list(reports.files)[:4])
        yield Finding(id="plugin-silent", evidence=f"no call is recorded in {shown}")
        return
    yield Finding(id="measured", evidence=f"{total} measured calls in {len(reports.files)} files")
    if reports.dropped:
        yield Finding(id="measured-dropped", evidence=f"{reports.dropped} calls were dropped")
    for (name, kind), last in reports.last.items():
        if len(last) > 1 and len(set(last.values())) > 1:
            low = [rank for rank, number in last.items() if number == min(last.values())]
            yield Finding(
                id="rank-slow",
                evidence=(
                    f"{ranks_in_words(low)} recorded {kind} up to number {min(last.values())} in "
                    f"communicator {name}, others up to {max(last.values())}"
                ),
                device=ranks_in_words(low) if len(low) == 1 else None,
            )
