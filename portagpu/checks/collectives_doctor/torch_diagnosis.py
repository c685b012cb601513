"""What torch itself found, in the output of ranks and launchers.

Its watchdog's timeouts, the calls that its wrapper of process groups compares
(``TORCH_DISTRIBUTED_DEBUG=DETAIL``), the ranks that a monitored barrier misses, and which rank a
launcher saw end first, in its summary or in its records of events. Sources:
``torch/csrc/distributed/c10d`` ``ProcessGroupNCCL.cpp``, ``ProcessGroupWrapper.cpp`` and
``ProcessGroupGloo.cpp`` of torch 1.9 to 2.13, and ``torch/distributed/elastic``
``multiprocessing/errors/__init__.py`` and ``events/api.py``.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt, ranks_in_words
from portagpu.checks.collectives_doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MAX_KEPT: Final = 200
_MAX_JOINED: Final = 4000
FOLLOWING: Final = 12
"""Lines that belong to one message at most."""

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
_DAEMON: Final = re.compile(
    r"lost communication with .{0,400}?(?:Remote daemon ?: \S{1,100} on node|hostname:)\s{1,8}"
    r"(?P<host>[\w.-]{1,100})"
)
_FIRST_FAILED: Final = re.compile(
    r"Root Cause \(first observed failure\) ?:.{0,200}?"
    r"(?:host\s{0,12}:? ?(?P<host>[\w.-]{1,100}).{0,60}?)?"
    r"rank\s{0,12}:? ?(?P<rank>\d{1,7}) ?\(local[_ ]rank: ?(?P<local>\d{1,7})\)\s{0,8}"
    r"exitcode\s{0,8}: ?(?P<code>-?\d{1,5})"
)
_LOCAL_FAILED: Final = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,5})\) local_rank: (?P<local>\d{1,7}) \(pid: \d{1,9}\)"
)
_NOTICED: Final = re.compile(
    r"(?:mpirun|mpiexec|orterun|prterun)(?:\.\w{1,10})? noticed that process rank "
    r"(?P<rank>\d{1,7}) with PID \w{1,9} on node (?P<host>\S{1,100}) exited on"
    r"(?: signal (?P<signal>\d{1,3}))?"
)
_ABORTED: Final = re.compile(
    r"MPI_A(?:BORT was invoked on|bort\(\d{1,10}\) was called by)? ?rank (?P<rank>\d{1,7})\b"
)
_STEP: Final = re.compile(
    r"srun: error: (?P<host>[\w.-]{1,100}): tasks? (?P<rank>\d{1,7})[\d,\[\]-]{0,60}: "
    r"(?P<how>Killed|Exited with exit code \d{1,3}|[A-Z][\w ()]{1,40})"
)
_LAUNCHED: Final = re.compile(
    r"(?:sigkill_handler\] .{0,3600}?exits with return code = (?P<code>-?\d{1,5})"
    r"|CalledProcessError: Command .{0,3600}? (?:returned non-zero exit status (?P<status>\d{1,5})"
    r"|died with <Signals\.SIG\w{1,8}: (?P<signal>\d{1,3})>))"
)
"""DeepSpeed's launcher (launcher/launch.py), and ``torch.distributed.launch``."""
_FIRST_PROCESS: Final = re.compile(
    r"Process name: \[\[\d{1,9},\d{1,9}\],(?P<rank>\d{1,7})\]\s{1,8}"
    r"Exit code:\s{1,8}(?P<code>\d{1,5})"
)
"""Open MPI's summary (orte/tools/orterun/help-orterun.txt), whose lines are joined."""
_LOCAL_OPTION: Final = re.compile(r"--local[_-]rank[= ]'?(?P<local>\d{1,7})\b")
_SPAWNED: Final = re.compile(
    r"ProcessExitedException: process (?P<rank>\d{1,7}) terminated with "
    r"(?:signal (?P<name>SIG\w{1,8})|exit code (?P<code>\d{1,5}))"
)
"""torch/multiprocessing/spawn.py."""
_CODE: Final = re.compile(
    r"(?:(?:command terminated|Process finished) with exit code|exited with code|Exit [Cc]ode:?|"
    r"EXIT CODE:|[Pp]rocess \d{1,7} exit with status code)\s{1,8}(?P<code>\d{1,5})\b"
    r"|KILLED BY SIGNAL: (?P<signal>\d{1,3})\b"
)
"""kubectl, Docker, Open MPI, Hydra and Horovod."""
_STATE: Final = re.compile(
    r'"torchelastic\.worker\.status\.(?P<state>[A-Z]{2,20})", "source": "(?P<source>WORKER|AGENT)"'
    r'.{0,200}?"global_rank": (?P<rank>\d{1,7}|null)'
    r'(?:.{0,300}?"hostname": "(?P<host>[\w.-]{1,100})")?'
)
_RAW_ERROR: Final = re.compile(r'\\"message\\": \\"(?P<message>(?:[^\\]|\\\\(?!")){1,400})')
MARKS: Final = (
    "torchelastic.worker.status",
    "work", "Watchdog", "Detected mismatch", "monitoredBarrier", "Root Cause", "failed (exitcode",
    " noticed that process", "MPI_A", "srun: error", "is running collective",
    "Process name: [[", "return code = ", "CalledProcessError", "ProcessExitedException",
    "exit code", "exited with code", "xit Code", "xit code", "EXIT CODE", "status code",
    "KILLED BY SIGNAL", "Barrier timed out", "lost communication with",
)  # fmt: skip
"""Words of which a line that is read here has one."""


@dataclass(slots=True)
class Diagnosis:
    """What torch and the launchers said, of all logs of one job."""

    timeouts: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """Of each rank, what its watchdog caught, in order."""
    statuses: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    """Of each (group, rank): the number of the last call it began and of the last completed."""
    mismatches: list[Finding] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)
    """Ranks that did not pass a monitored barrier, of the list of all if there is one."""
    listed: bool = False
    barrier_ms: int = 0
    ended: dict[str, Finding] = field(default_factory=dict)
    """Processes that a launcher saw end: by its words for the process."""
    first_is_known: bool = False
    is_cancelled: bool = False
    """A scheduler cancelled the job before: what ends then ends because of it."""

    @property
    def ranks(self) -> set[int]:
        return set(self.timeouts)


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
        known |= _read_fingerprints(_joined(lines, at), diagnosis)
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
    if "Barrier timed out" in line and (found := _TASKS_MISSING.search(_joined(lines, at))):
        diagnosis.missing |= set(map(int, _TASK.findall(found["tasks"])))
        known = bool(diagnosis.missing)
    return known | _read_ended(lines, at, diagnosis)


def stated_rank(line: str) -> int | None:
    """The rank that torch's own message begins with ("[PG ID 0 ... Rank 2]"); None without."""
    if "Rank " not in line or (found := _RANK.search(line)) is None:
        return None
    return int(found["rank"])


def _joined(lines: Sequence[str], at: int) -> str:
    return " ".join(lines[at : at + FOLLOWING])[:_MAX_JOINED]


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
    if caught not in of_rank and len(of_rank) < _MAX_KEPT:
        of_rank.append(caught)


def _read_fingerprints(text: str, diagnosis: Diagnosis) -> bool:
    sides: list[tuple[int, dict[str, str]]] = []
    for found in _FINGERPRINT.finditer(text):
        call = dict(_PART.findall(found["call"] or ""))
        if found["operation"]:
            call["OpType"] = found["operation"]
        sides.append((int(found["rank"]), call))
    if not sides or len(diagnosis.mismatches) >= _MAX_KEPT:
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


def _read_state(line: str, diagnosis: Diagnosis) -> bool:
    """Add a rank of which torchelastic's record of events says that it failed."""
    found = _STATE.search(line)
    if found is None:
        return False
    failed = found["state"] == "FAILED" and found["source"] == "WORKER" and found["rank"] != "null"
    if failed and not diagnosis.first_is_known and len(diagnosis.ended) < _MAX_KEPT:
        said = _RAW_ERROR.search(line)
        message = "" if said is None or said["message"] == "<NONE>" else f": {said['message']}"
        on = f" on {found['host']}" if found["host"] else ""
        evidence = excerpt(f"torchrun saw rank {found['rank']}{on} fail{message}", 400)
        device = f"rank {found['rank']}"
        diagnosis.ended.setdefault(
            evidence, Finding(id="rank-ended", evidence=evidence, device=device)
        )
    return True


def _read_ended(lines: Sequence[str], at: int, diagnosis: Diagnosis) -> bool:
    line = lines[at]
    if "torchelastic.worker.status" in line:
        return _read_state(line, diagnosis)
    if "Root Cause (first" in line:
        if found := _FIRST_FAILED.search(_joined(lines, at)):
            rank, local = int(found["rank"]), found["local"]
            on = f" on {found['host']}" if found["host"] else ""
            how, cause = _how_it_ended(int(found["code"]))
            evidence = f"torchrun saw rank {rank} (local rank {local}){on} end first, with {how}"
            diagnosis.ended = {"": Finding(
                id="rank-ended", evidence=evidence, device=f"rank {rank}", cause=cause
            )}  # fmt: skip
            diagnosis.first_is_known = True
        return True
    ended: Finding | None = None
    if "Process name: [[" in line and (found := _FIRST_PROCESS.search(_joined(lines, at))):
        how, cause = _how_it_ended(int(found["code"]))
        evidence = f"mpirun saw rank {found['rank']} end first, with {how}"
        device = f"rank {found['rank']}"
        diagnosis.ended = {
            "": Finding(id="rank-ended", evidence=evidence, device=device, cause=cause)
        }
        diagnosis.first_is_known = True
        return True
    if "lost communication with" in line and (found := _DAEMON.search(_joined(lines, at))):
        evidence = f"the launcher lost its own process on {found['host']}"
        ended = Finding(id="daemon-lost", evidence=evidence, device=found["host"])
    elif found := _LOCAL_FAILED.search(line):
        how, cause = _how_it_ended(int(found["code"]))
        evidence = f"torchrun saw local rank {found['local']} end with {how}"
        ended = Finding(id="rank-ended", evidence=evidence, cause=cause)
    elif found := _NOTICED.search(line):
        # MPI folds the line before the signal where the host's name is long
        folded = re.match(r"\s*signal (\d{1,3})", "".join(lines[at + 1 : at + 2]))
        number = found["signal"] or (folded[1] if folded is not None else "")
        how, cause = _how_it_ended(-int(number)) if number else ("a signal", "")
        evidence = f"mpirun saw rank {found['rank']} on {found['host']} end with {how}"
        ended = Finding(
            id="rank-ended", evidence=evidence, device=f"rank {found['rank']}", cause=cause
        )
    elif found := _ABORTED.search(line):
        evidence = f"rank {found['rank']} called MPI_Abort"
        ended = Finding(id="rank-ended", evidence=evidence, device=f"rank {found['rank']}")
    elif found := _STEP.search(line):
        evidence = f"srun saw task {found['rank']} on {found['host']} end: {found['how']}"
        ended = Finding(id="rank-ended", evidence=evidence, device=f"rank {found['rank']}")
    else:
        ended = _read_launched(line)
        if ended is None:
            return False
    if diagnosis.is_cancelled:
        words = f"{ended.evidence}, after the job was cancelled"
        ended = Finding(id="launcher-stopped", evidence=words)
    if not diagnosis.first_is_known and len(diagnosis.ended) < _MAX_KEPT:
        diagnosis.ended.setdefault(ended.evidence, ended)
    return True


def _read_launched(line: str) -> Finding | None:
    """What launchers say that do not know ranks, or number them by themselves."""
    if found := _LAUNCHED.search(line):
        said = found["code"] or found["status"] or f"-{found['signal']}"
        local = _LOCAL_OPTION.search(found[0])
        who = f"local rank {local['local']}" if local is not None else "a process"
        by = "DeepSpeed's launcher" if found["code"] else "the launcher"
    elif found := _SPAWNED.search(line):
        number = getattr(signal, found["name"] or "", None)
        said = found["code"] or f"-{int(number) if number is not None else 0}"
        who, by = f"rank {found['rank']}", "torch.multiprocessing"
    elif found := _CODE.search(line):
        said = found["code"] or f"-{found['signal']}"
        who, by = "a process", "the launcher"
    else:
        return None
    if int(said) == 0:
        return None
    how, cause = _how_it_ended(int(said))
    return Finding(id="rank-ended", evidence=f"{by} saw {who} end with {how}", cause=cause)


def _how_it_ended(code: int) -> tuple[str, str]:
    """(how a process ended, the usual cause where there is one)."""
    # a shell adds 128 to the number of a signal
    number = -code if code < 0 else code - 128
    try:
        name = f" ({signal.Signals(number).name})"
    except ValueError:
        name = ""
    how = f"signal {number}{name}"
    if code >= 0:
        how = f"exit code {code}" + (f", that of {how}" if name else "")
    return how, _CAUSES.get(number, "")


_CAUSES: Final[Mapping[int, str]] = {
    signal.SIGKILL: (
        "somebody or something killed it: mostly the kernel or a container's limit, because "
        "the host's memory ran out (dmesg shows it), or the scheduler"
    ),
    signal.SIGBUS: (
        "a file that is mapped into memory cannot be had whole: mostly /dev/shm is full or too "
        "small; containers have 64 MiB"
    ),
    signal.SIGSEGV: "a fault in the program or in one of its libraries; its stack says where",
}
"""The usual cause of some signals."""


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
