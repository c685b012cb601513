"""What the logs of one job say together: causes first, then what follows from them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.base.text import excerpt, ranks_in_words
from portagpu.base.units import count
from portagpu.checks.collectives_doctor.findings import Finding, known_findings, own_table
from portagpu.checks.collectives_doctor.log_tables import patterns
from portagpu.checks.collectives_doctor.logs import FINE
from portagpu.checks.collectives_doctor.torch_diagnosis import judge_diagnosis
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.checks.collectives_doctor.log_job import Job, Seen

_MAX_SHOWN: Final = 4
_SAY_NO_MORE: Final = frozenset({"torch-ends", "error-returned"})
"""Findings that are left out where a library's failure is named."""
_CODES: Final = re.compile(r"(?i)unhandled system|internal error")
"""What a library's code says in words where it does not know the cause."""
_MAX_CREATIONS: Final = 200
"""Communicators of which the absent ranks are worked out."""


def judge_logs(job: Job) -> Iterator[Finding]:
    """The findings of all logs of one job, a cause before what follows from it."""
    found = [*_findings(job)]
    failures = [each for each in found if _is_failure(each)]
    if not failures:
        found += _unfinished(job)
    elif {each.id for each in failures} != {"torch-ends"}:
        # these say no more than that there was one
        found = [each for each in found if each.id not in _SAY_NO_MORE]
    order = _order()
    codes = [each for each in found if each.id == "rank-ended" and not each.cause]
    # of several that ended with a code none is known as the first, and a library says more; so it
    # does where a program gave up
    several = len(codes) > 1 and not job.diagnosis.first_is_known
    says_less = [id(each) for each in codes if several or "(SIGABRT)" in each.evidence]
    places: dict[int, float] = {id(each): order.get(each.id, order[""]) for each in found}
    places |= dict.fromkeys(says_less, order["library-error"] + 0.5)
    if any(each.id == "library-error" for each in found):
        # a program's exception may be what became of the library's error
        ended = order["library-error"] + 0.25
        places |= {id(e): ended for e in found if e.id == "program-ended"}
    if (codes_alone := job.seen.get("library-error")) and _CODES.search(codes_alone.line):
        # a peer that closed a connection is named at least
        words = _in_words(job, codes_alone)
        places |= {id(e): order["peer-closed"] + 0.5 for e in found if e.evidence == words}
    found.sort(key=lambda each: places[id(each)])
    yield Finding(id="log", evidence=_summary(job))
    cause = next((each for each in found if _is_failure(each)), None)
    consequences = own_table()["consequences"]
    for each in found:
        if each.id in consequences and cause is not None and cause.id not in consequences:
            said = each.cause or known_findings()[each.id].cause
            follows = f"it may follow from {cause.id}, which is named first"
            yield replace(each, cause=f"{follows}; {said}")
        else:
            yield each


def _is_failure(finding: Finding) -> bool:
    return (finding.verdict or known_findings()[finding.id].verdict) is Verdict.FAIL


@cache
def _order() -> dict[str, float]:
    """Where each kind of finding stands; "" for kinds that the table does not name."""
    table = own_table()
    names = [*table["causes"], "", *table["consequences"], *table["slow"]]
    return {name: place for place, name in enumerate(names)}


def _findings(job: Job) -> Iterator[Finding]:
    world = max((process.ranks for process in job.processes.values()), default=0)
    yield from judge_diagnosis(job.diagnosis, world)
    yield from _creations(job)
    yield from _versions(job)
    if job.wrong_values:
        yield Finding(id="wrong-values", evidence="; ".join(job.wrong_values[:_MAX_SHOWN]))
    several = max(job.nodes, len(job.hosts)) > 1
    reported: set[str] = set()
    for event in patterns().events:
        seen = job.seen.get(event.finding)
        if seen is None or event.finding in reported or event.finding == FINE:
            continue
        if (event.only_with and event.only_with not in job.seen) or (
            event.several_hosts and not several
        ):
            continue
        if event.finding == "gloo-timeout" and job.diagnosis.missing:
            continue
        reported.add(event.finding)
        yield Finding(
            id=event.finding,
            evidence=_in_words(job, seen),
            device=_blamed(job, seen),
            cause=seen.cause,
        )
    if (seen := job.seen.get("rank-exception")) is not None:
        yield Finding(id="rank-exception", evidence=_in_words(job, seen), device=_blamed(job, seen))
    for name, kinds in (
        ("library-error", job.errors),
        ("library-warning", job.warnings),
        ("program-ended", job.ended),
        ("program-followed", job.followed),
        ("program-exception", {**job.exceptions, **job.severe}),
    ):
        if kinds:
            shown = list(kinds.values())
            words = "; ".join(_in_words(job, seen) for seen in shown[:_MAX_SHOWN])
            more = f"; and {len(shown) - _MAX_SHOWN} more kinds" if len(shown) > _MAX_SHOWN else ""
            yield Finding(id=name, evidence=words + more)


def _unfinished(job: Job) -> Iterator[Finding]:
    """Ranks that still set up where the log ends."""
    if job.open_tables:
        yield Finding(
            id="table-open",
            evidence="the log has the head of a benchmark's table, and ends without a row",
        )
    for name, stages in job.stages.items():
        begun, done = stages.get("START", set()), stages.get("COMPLETE", set())
        counts = job.counts[name]
        size = job.sizes[name]
        if job.joined and counts["START"] > counts["COMPLETE"]:
            yield Finding(
                id="setup-open",
                evidence=(
                    f"{counts['START']} ranks began to create communicator {name} of {size} ranks, "
                    f"and {counts['COMPLETE']} completed it; the launcher joined equal lines, so "
                    "that which ranks they are is not known"
                ),
            )
            return
        if size > 1 and begun - done and not job.joined:
            yield Finding(
                id="setup-open",
                evidence=(
                    f"{ranks_in_words(begun - done)} began to create communicator {name} of {size} "
                    "ranks, and the log ends before they completed it"
                ),
            )
            return
    waiting = [each for each in job.processes.values() if each.sets_up and not each.is_set_up]
    if waiting and not any(each.is_set_up for each in job.processes.values()):
        who = sorted({each.words for each in waiting if each.words})[:_MAX_SHOWN]
        by = f" of {', '.join(who)}" if who else ""
        yield Finding(
            id="setup-open",
            evidence=f"the lines{by} end while connections are set up, and none completes it",
        )


def _summary(job: Job) -> str:
    world = max((process.ranks for process in job.processes.values()), default=0)
    parts = []
    if world:
        known = len(job.ranks_of[world])
        parts.append(f"lines of {known} of {world} ranks on {count(len(job.hosts), 'host')}")
    elif job.diagnosis.ranks - {-1}:
        ranks = ranks_in_words(job.diagnosis.ranks - {-1})
        parts.append(f"lines of torch's watchdog of {ranks}")
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
    if job.joined:
        parts.append(f"{count(job.joined, 'line')} of other processes joined by the launcher")
    if job.tables:
        parts.append(count(job.tables, "table of a benchmark", "tables of a benchmark"))
    return "; ".join(parts) or count(job.lines, "line")


def _in_words(job: Job, seen: Seen) -> str:
    times = f" ({seen.count} times)" if seen.count > 1 else ""
    if seen.joined:
        times = f" (stands for {seen.count + seen.joined} lines)"
    of = [job.processes[key] for key in seen.processes if key in job.processes]
    if of and all(each.rank is not None and not each.host for each in of):
        return f'"{seen.line}"{times}, by {ranks_in_words({each.rank or 0 for each in of})}'
    who = sorted({w for key in seen.processes if (w := _who(job, key))})
    more = f" and {len(who) - _MAX_SHOWN} more" if len(who) > _MAX_SHOWN else ""
    by = f", by {', '.join(who[:_MAX_SHOWN])}{more}" if who else ""
    return f'"{seen.line}"{times}{by}'


def _who(job: Job, key: tuple[str, str]) -> str:
    process = job.processes.get(key)
    return process.words if process is not None else ""


def _blamed(job: Job, seen: Seen) -> str | None:
    who = {_who(job, key) for key in seen.processes}
    if len(who) != 1 or next(iter(who)) == "":
        return None
    only = next(iter(who))
    return only if len(job.processes) > 1 or only.startswith("rank ") else None


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
        if size < 2 or not begun - done or len(begun | done) == size or job.joined:
            # where all began, the log may end before they complete it
            continue
        shown += 1
        known = range(min(size, 1 << 16)) if shown <= _MAX_CREATIONS else ()
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
