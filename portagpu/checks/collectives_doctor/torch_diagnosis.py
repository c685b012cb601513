"""What torch itself found, in the output of ranks and launchers.

Its watchdog's timeouts, the calls that its wrapper of process groups compares
(``TORCH_DISTRIBUTED_DEBUG=DETAIL``), and the ranks that a monitored barrier misses. Sources:
``torch/csrc/distributed/c10d`` ``ProcessGroupNCCL.cpp``, ``ProcessGroupWrapper.cpp`` and
``ProcessGroupGloo.cpp`` of torch 1.9 to 2.13, and ``torch/distributed/elastic``
``multiprocessing/errors/__init__.py`` and ``events/api.py``.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt, ranks_in_words
from portagpu.checks.collectives_doctor.findings import Finding
from portagpu.checks.collectives_doctor.launchers import MAX_KEPT, Diagnosis, joined, read_ended

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WATCHDOG: Final = re.compile(
    r"Watchdog caught collective operation timeout: "
    r"Work\w{1,12}\(SeqNum=(?P<number>\d{1,18}), OpType=(?P<operation>\w{1,40})"
    r"(?:, NumelIn=(?P<given>\d{1,18}), NumelOut=(?P<taken>\d{1,18}))?"
    r"(?:, Timeout\(ms\)=(?P<limit>\d{1,12})\))?"
)
_RANK: Final = re.compile(r"\[(?P<group>PG[^\]]{0,120}? )?Rank (?P<rank>\d{1,7})\]")
_STATUS: Final = re.compile(
    r"\[(?P<group>PG[^\]]{0,120}?) Rank (?P<rank>\d{1,7})\] .{0,300}?"
    r"[lL]ast enqueued (?:\w{1,12} )?work: (?P<enqueued>-?\d{1,18}), "
    r"last completed (?:\w{1,12} )?work: (?P<completed>-?\d{1,18})"
)
_AT_WORK: Final = re.compile(
    r"(?:Timeout at|detected by watchdog at) (?:\w{1,12} )?work(?: sequence id)?: "
    r"(?P<number>\d{1,18})\b"
)
_FINGERPRINT: Final = re.compile(
    r"Rank (?P<rank>\d{1,7}) is running (?:inconsistent )?collective: ?"
    r"(?:CollectiveFingerPrint\((?P<call>[^()]{0,3000})|(?P<operation>[A-Z_]{2,40}))"
)
_PART: Final = re.compile(
    r"(SequenceNumber|OpType|TensorShape|TensorDtypes)=(\[[^\]]{0,200}\]|\w{1,40}?(?=OpType=)|\w{1,40})"
)
_BARRIER: Final = re.compile(
    r"(?P<list>\[Rank \d{1,7}\]: )?Ranks? (?P<ranks>\d{1,7}(?:, ?\d{1,7}){0,4000}) failed to pass "
    r"monitoredBarrier in (?P<limit>\d{1,12}) ms"
)
_FAULTY: Final = re.compile(
    r"Rank (?P<rank>\d{1,7}) successfully reached monitoredBarrier, but received errors "
    r".{0,60}?from rank (?P<lost>\d{1,7})"
)
_TASKS_MISSING: Final = re.compile(
    r"Barrier timed out\..{0,400}?Timed out task names:(?P<tasks>.*)"
)
"""The service at which JAX's processes meet (xla/tsl/distributed_runtime/coordination)."""
_TASK: Final = re.compile(r"/job:[\w-]{1,80}/replica:\d{1,7}/task:(\d{1,7})\b")
MARKS: Final = (
    "torchelastic.worker.status",
    "work", "Watchdog", "Detected mismatch", "monitoredBarrier", "Root Cause", "failed (exitcode",
    " noticed that process", "MPI_A", "srun: error", "is running collective",
    "Process name: [[", "return code = ", "CalledProcessError", "ProcessExitedException",
    "exit code", "exited with code", "xit Code", "xitCode", "xit code", "EXIT CODE", "status code",
    "KILLED BY SIGNAL", "Barrier timed out", "lost communication with", "(local_rank: ",
    "exit status",
)  # fmt: skip
"""Words of which a line that is read here has one."""


def read_diagnosis(lines: Sequence[str], at: int, rank: int | None, diagnosis: Diagnosis) -> bool:
    """Add what the line at that place says; True if it says something.

    :param lines: lines without prefixes; some messages have several.
    :param at: the place of the line.
    :param rank: the rank that the line's prefix states.
    :param diagnosis: what is known of the job.
    """
    line = lines[at]
    if " DUE TO " in line and "*** " in line:
        diagnosis.is_cancelled = True
    if not any(mark in line for mark in MARKS):
        return False
    known = _read_watchdog(line, rank, diagnosis)
    if "Detected mismatch" in line:
        known |= _read_fingerprints(joined(lines, at), diagnosis)
    if (found := _BARRIER.search(line)) is not None:
        ranks = set(map(int, re.findall(r"\d+", found["ranks"])))
        if bool(found["list"]) >= diagnosis.listed:
            diagnosis.missing = ranks if found["list"] else diagnosis.missing | ranks
            diagnosis.listed |= bool(found["list"])
        diagnosis.barrier_ms = int(found["limit"])
        known = True
    if (found := _FAULTY.search(line)) is not None:
        words = (
            f"rank {found['rank']} reached a monitored barrier, and lost rank {found['lost']} in it"
        )
        finding = Finding(id="barrier", evidence=words, device=f"rank {found['lost']}")
        diagnosis.mismatches.append(finding)
        known = True
    if "Barrier timed out" in line and (found := _TASKS_MISSING.search(joined(lines, at))):
        diagnosis.missing |= set(map(int, _TASK.findall(found["tasks"])))
        known = bool(diagnosis.missing)
    return known | read_ended(lines, at, diagnosis)


def stated_rank(line: str) -> int | None:
    """The rank that torch's own message begins with ("[PG ID 0 ... Rank 2]"); None without."""
    if "Rank " not in line or (found := _RANK.search(line)) is None:
        return None
    return int(found["rank"])


def _read_watchdog(line: str, rank: int | None, diagnosis: Diagnosis) -> bool:
    of_line = _RANK.search(line)
    known = False
    if found := _STATUS.search(line):
        key = (excerpt(found["group"]), int(found["rank"]) if rank is None else rank)
        numbers = ("enqueued", "completed")
        diagnosis.statuses.setdefault(key, {name: int(found[name]) for name in numbers})
        known = True
    if rank is None and of_line is not None:
        rank = int(of_line["rank"])
    if found := _WATCHDOG.search(line):
        said = {name: text for name, text in found.groupdict().items() if text is not None}
        caught = {name: text if name == "operation" else int(text) for name, text in said.items()}
        _add_timeout(diagnosis, -1 if rank is None else rank, caught)
        return True
    if found := _AT_WORK.search(line):
        if rank is not None and rank not in diagnosis.timeouts:
            _add_timeout(diagnosis, rank, {"number": int(found["number"])})
        return True
    return known


def _add_timeout(diagnosis: Diagnosis, rank: int, caught: dict[str, Any]) -> None:
    of_rank = diagnosis.timeouts.setdefault(rank, [])
    if of_rank and "operation" not in of_rank[0]:
        of_rank.clear()
    if caught not in of_rank and len(of_rank) < MAX_KEPT:
        of_rank.append(caught)


def _read_fingerprints(text: str, diagnosis: Diagnosis) -> bool:
    sides: list[tuple[int, dict[str, str]]] = []
    for found in _FINGERPRINT.finditer(text):
        call = dict(_PART.findall(found["call"] or ""))
        if found["operation"]:
            call["OpType"] = found["operation"]
        sides.append((int(found["rank"]), call))
    if not sides or len(diagnosis.mismatches) >= MAX_KEPT:
        return bool(sides)
    (rank, mine), (other, theirs) = sides[0], sides[1] if len(sides) > 1 else (None, {})
    words = f"rank {rank} called {_called(mine)}"
    words += f", and rank {other} {_called(theirs)}" if other is not None else (
        ", which does not fit the other ranks' call"
    )  # fmt: skip
    kind = "collective-mismatch"
    for part, name in (
        ("OpType", "operation"),
        ("TensorShape", "shape"),
        ("TensorDtypes", "dtype"),
    ):
        if part in mine and part in theirs and mine[part] != theirs[part]:
            kind = name
            break
    else:
        numbers = [each.get("SequenceNumber", "") for each in (mine, theirs)]
        if all(each.isdigit() for each in numbers) and numbers[0] != numbers[1]:
            kind = "behind"
    finding = Finding(
        id=kind, evidence=excerpt(words, 400), cause="torch compared the calls itself"
    )
    if finding not in diagnosis.mismatches:
        diagnosis.mismatches.append(finding)
    return True


def _called(call: dict[str, str]) -> str:
    shape = f" of {call['TensorShape']}" if "TensorShape" in call else ""
    dtype = f" {call['TensorDtypes']}" if "TensorDtypes" in call else ""
    number = f", number {call['SequenceNumber']}" if "SequenceNumber" in call else ""
    return f"{call.get('OpType', 'a collective')}{shape}{dtype}{number}"


def judge_diagnosis(diagnosis: Diagnosis, world: int) -> Iterator[Finding]:
    """The findings of what torch and the launchers said.

    :param diagnosis: what they said.
    :param world: how many ranks the job has, 0 where no line says it.
    """
    yield from diagnosis.mismatches
    yield from diagnosis.ended.values()
    if diagnosis.missing:
        yield Finding(
            id="barrier",
            evidence=(
                f"{ranks_in_words(diagnosis.missing)} did not pass a monitored barrier"
                + (f" in {diagnosis.barrier_ms} ms" if diagnosis.barrier_ms else "")
            ),
            device=f"rank {min(diagnosis.missing)}" if len(diagnosis.missing) == 1 else None,
        )
    yield from _timeouts(diagnosis, world)


def _timeouts(diagnosis: Diagnosis, world: int) -> Iterator[Finding]:
    """What torch's watchdogs report together: ranks that differ, and those with fewer calls."""
    if not diagnosis.timeouts:
        return
    first = {rank: caught[0] for rank, caught in diagnosis.timeouts.items()}
    # ranks time out in collectives of several groups, whose numbers do not belong together
    number = Counter(each["number"] for each in first.values()).most_common(1)[0][0]
    same = {rank: each for rank, each in first.items() if each["number"] == number}
    calls = {rank: (each.get("operation"), each.get("given")) for rank, each in same.items()}
    usual = Counter(calls.values()).most_common(1)[0][0]
    agreeing = [rank for rank, call in calls.items() if call == usual]
    for rank, call in calls.items():
        if call != usual and call[0] and usual[0]:
            kind = "operation" if call[0] != usual[0] else "shape"
            yield Finding(
                id=kind,
                evidence=(
                    f"rank {rank} timed out in {_call(call)} as number {number}, and "
                    f"{ranks_in_words(agreeing)} in {_call(usual)}"
                ),
                device=f"rank {rank}",
            )
    for (group, rank), status in diagnosis.statuses.items():
        waiting = [
            r for (g, r), s in diagnosis.statuses.items() if g == group and r in same and r != rank
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
    limit = same[agreeing[0]].get("limit")
    after = f" after {limit / 1000:g} s" if limit else ""
    named = "a rank" if agreeing == [-1] else ranks_in_words(set(agreeing) - {-1})
    evidence = f"{named} timed out{after} in {_call(usual)}, number {number}"
    silent = sorted(set(range(min(world, 1 << 16))) - set(first))
    if silent:
        evidence += f"; {ranks_in_words(silent)} did not time out: look there first"
    elif world:
        evidence += "; every rank timed out"
    else:
        evidence += "; these lines do not show whether a rank never called it"
    evidence += "".join(_other_numbers(first, number))
    yield Finding(
        id="watchdog",
        evidence=evidence,
        device=f"rank {silent[0]}" if len(silent) == 1 else None,
    )


def _other_numbers(first: dict[int, dict[str, Any]], number: int) -> Iterator[str]:
    """The ranks that timed out in calls with other numbers, and how far these are away."""
    others: dict[int, list[int]] = {}
    for rank, each in first.items():
        if each["number"] != number:
            others.setdefault(each["number"], []).append(rank)
    for other, ranks in list(others.items())[:4]:
        count = abs(number - other)
        side = "fewer" if other < number else "more"
        yield (
            f"; {ranks_in_words(ranks)} timed out in number {other}, {count} calls {side}, or of "
            "another group"
        )
    if len(others) > 4:
        yield f"; and {len(others) - 4} more numbers"


def _call(call: tuple[str | None, int | None]) -> str:
    return (call[0] or "a collective") + (f" of {call[1]} elements" if call[1] is not None else "")
