"""What launchers, schedulers and shells say of processes that ended: which one, where and how.

torchrun's summary and its record of events (``torch/distributed/elastic``
``multiprocessing/errors/__init__.py``, ``events/api.py``), DeepSpeed's launcher, Open MPI, Hydra,
Slurm, kubectl and Docker.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt
from portagpu.checks.collectives_doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_KEPT: Final = 200
_MAX_JOINED: Final = 4000
FOLLOWING: Final = 12
"""Lines that belong to one message at most."""

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
_ENTRY: Final = re.compile(
    r"rank\s{1,12}: (?P<rank>\d{1,7}) \(local_rank: \d{1,7}\)\s{1,200}"
    r"exitcode\s{1,12}: (?P<code>-?\d{1,5}) \(pid"
)
"""One of torchrun's list of failures, whose head people leave out."""
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
    r"|called MPI_Abort\(\w{1,40}, -?\d{1,10}\) - process (?P<process>\d{1,7})\b"
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
    r"(?:(?:command terminated|Process finished) with exit code|exited with code"
    r"|\"?Exit ?[Cc]ode\"?:?|EXIT CODE:|[Pp]rocess \d{1,7} exit with status code"
    r"|failed with exit (?:status|code))\s{1,8}(?P<code>\d{1,5})\b"
    r"|KILLED BY SIGNAL: (?P<signal>\d{1,3})\b"
)
"""kubectl, Docker, Open MPI, Hydra and Horovod."""
_STATE: Final = re.compile(
    r'"torchelastic\.worker\.status\.(?P<state>[A-Z]{2,20})", "source": "(?P<source>WORKER|AGENT)"'
    r'.{0,200}?"global_rank": (?P<rank>\d{1,7}|null)'
    r'(?:.{0,300}?"hostname": "(?P<host>[\w.-]{1,100})")?'
)
_RAW_ERROR: Final = re.compile(r'\\"message\\": \\"(?P<message>(?:[^\\]|\\\\(?!")){1,400})')


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


def joined(lines: Sequence[str], at: int) -> str:
    """The lines of one message as one."""
    return " ".join(lines[at : at + FOLLOWING])[:_MAX_JOINED]


def _read_state(line: str, diagnosis: Diagnosis) -> bool:
    """Add a rank of which torchelastic's record of events says that it failed."""
    found = _STATE.search(line)
    if found is None:
        return False
    failed = found["state"] == "FAILED" and found["source"] == "WORKER" and found["rank"] != "null"
    if failed and not diagnosis.first_is_known and len(diagnosis.ended) < MAX_KEPT:
        said = _RAW_ERROR.search(line)
        message = "" if said is None or said["message"] == "<NONE>" else f": {said['message']}"
        on = f" on {found['host']}" if found["host"] else ""
        evidence = excerpt(f"torchrun saw rank {found['rank']}{on} fail{message}", 400)
        device = f"rank {found['rank']}"
        diagnosis.ended.setdefault(
            evidence, Finding(id="rank-ended", evidence=evidence, device=device)
        )
    return True


def read_ended(lines: Sequence[str], at: int, diagnosis: Diagnosis) -> bool:
    """Add the process that a line says ended; True if it says so."""
    line = lines[at]
    if "torchelastic.worker.status" in line:
        return _read_state(line, diagnosis)
    if "Root Cause (first" in line:
        if found := _FIRST_FAILED.search(joined(lines, at)):
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
    if "Process name: [[" in line and (found := _FIRST_PROCESS.search(joined(lines, at))):
        how, cause = _how_it_ended(int(found["code"]))
        evidence = f"mpirun saw rank {found['rank']} end first, with {how}"
        device = f"rank {found['rank']}"
        diagnosis.ended = {
            "": Finding(id="rank-ended", evidence=evidence, device=device, cause=cause)
        }
        diagnosis.first_is_known = True
        return True
    if "lost communication with" in line and (found := _DAEMON.search(joined(lines, at))):
        evidence = f"the launcher lost its own process on {found['host']}"
        ended = Finding(id="daemon-lost", evidence=evidence, device=found["host"])
    elif "(local_rank: " in line and (found := _ENTRY.search(joined(lines, at))):
        # SIGTERM is what the launcher sends to those that did not fail
        if diagnosis.first_is_known or int(found["code"]) == -signal.SIGTERM:
            return True
        how, cause = _how_it_ended(int(found["code"]))
        device = f"rank {found['rank']}"
        evidence = f"torchrun saw {device} end with {how}"
        ended = Finding(id="rank-ended", evidence=evidence, device=device, cause=cause)
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
        device = f"rank {found['rank'] or found['process']}"
        ended = Finding(id="rank-ended", evidence=f"{device} called MPI_Abort", device=device)
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
    if not diagnosis.first_is_known and len(diagnosis.ended) < MAX_KEPT:
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
