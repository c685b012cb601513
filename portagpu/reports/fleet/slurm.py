"""What this package asks of Slurm: one function a question, each a client's call with a time limit.

Only words that Slurm has had for years are used: ``--format`` instead of JSON, whose keys change
between versions, and ``squeue`` instead of ``sacct``, which needs a database. Free text stands last
in a line, because it may hold the separator. Sources: sbatch(1), squeue(1), sinfo(1), scontrol(1).
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import MissingDependency, PortagpuError
from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses.start import MARK, run_program
from portagpu.base.text import excerpt, one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

TITLE: Final = "Slurm"
LASTS: Final = True
"""Jobs go on without the process that submitted them."""
SHARES: Final = True
"""A node writes its results into the folder itself."""
OLDEST: Final = (20, 2)
"""The oldest version that is asked; the tests ran with another (docs/fleet.md)."""
NODE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
_NODE_LIST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]*")
_KEPT: Final = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})
_NOT_OURS: Final = ("SLURM", "SQUEUE_", "SINFO_", "SCONTROL_", "SBATCH_ARRAY", "SBATCH_WAIT")
"""Variables that would make another question of this one: filters, and the job that this is in."""
_UNUSABLE: Final = ("down", "drain", "fail", "inval", "error", "future", "powered_down", "drng")
_LIVE_NOT: Final = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "REVOKED",
        "TIMEOUT",
    }
)
_HOPELESS: Final = (
    "BadConstraints",
    "DependencyNeverSatisfied",
    "InvalidAccount",
    "InvalidQOS",
    "PartitionConfig",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "launch failed requeued held",
    "launch_failed_requeued_held",
)
"""Reasons for which a job waits without end (squeue(1), "JOB REASON CODES")."""


class SlurmError(PortagpuError, RuntimeError):
    """Slurm refused or did not answer; the message is its own, in one line."""


class UnknownNodes(SlurmError, LookupError):
    """The list names what Slurm does not know, or no nodes; the message says which."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the controller sees it: ``state`` in Slurm's words ("idle", "down*")."""

    name: str
    state: str
    partitions: frozenset[str]
    gres: str
    reason: str

    @property
    def usable(self) -> bool:
        """Whether a job that waits for it may begin one day without anybody's help."""
        return not self.state.startswith(_UNUSABLE)

    @property
    def unknown(self) -> bool:
        """Whether it has not answered since the controller began: it may be about to, or gone."""
        return self.state.startswith("unk")

    @property
    def drained(self) -> bool:
        return self.state.startswith(("drain", "drng"))

    @property
    def gpus(self) -> str:
        """Its GPUs as ``--gres`` wants them: "gpu:mi300x:8"; empty where Slurm knows of none."""
        plain = re.sub(r"\([^)]*\)", "", self.gres)
        return ",".join(each for each in plain.split(",") if each.startswith("gpu:"))

    @property
    def why_unusable(self) -> str:
        shown_reason = f": {excerpt(self.reason)}" if self.reason else ""
        return f"Slurm has {self.name} as {self.state}{shown_reason}"


@dataclass(frozen=True, slots=True)
class Job:
    """A job: ``comment`` is the step that it runs, ``reason`` why it waits."""

    id: str
    state: str
    comment: str
    reason: str

    @property
    def ended(self) -> bool:
        return self.state in _LIVE_NOT

    @property
    def runs(self) -> bool:
        return self.state not in ("PENDING", "CONFIGURING") and not self.ended

    @property
    def hopeless(self) -> bool:
        """Whether it waits for what will not happen by itself."""
        return self.state == "PENDING" and any(each in self.reason for each in _HOPELESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a job asks for. ``options`` are further words of ``sbatch``, as the user gave them."""

    name: str
    comment: str
    nodes: Sequence[str]
    folder: Path
    words: Sequence[str]
    minutes: int
    gres: str = ""
    partition: str | None = None
    account: str | None = None
    exclusive: bool = True
    tasks_per_node: int | None = None
    options: Sequence[str] = field(default_factory=tuple)


def version() -> str:
    """Slurm's version, "22.05.8".

    Raises MissingDependency where its clients are not installed, and SlurmError for one that is
    older than OLDEST.
    """
    answer = _ask("sinfo", "-V")
    found = re.search(r"(\d+)\.(\d+)[\w.-]*", answer)
    if found is None:
        raise SlurmError(f"sinfo does not report its version: {excerpt(answer) or 'nothing'}")
    if (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(f"{part:02}" for part in OLDEST)
        raise SlurmError(f"this is Slurm {found[0]}, and portagpu fleet needs {oldest} or newer")
    return found[0]


def partitions() -> list[str]:
    """The names of all partitions, also the hidden ones."""
    return sorted(set(_ask("sinfo", "-a", "-h", "-o", "%R").split()))


def default_partition() -> str | None:
    """The partition of a job that names none; None where the cluster has no default."""
    marked = [each for each in _ask("sinfo", "-a", "-h", "-o", "%P").split() if each.endswith("*")]
    return marked[0].rstrip("*") if marked else None


def nodes() -> dict[str, Node]:
    """Every node by its name."""
    found: dict[str, Node] = {}
    for line in _ask("sinfo", "-a", "-h", "-N", "-o", "%N|%T|%R|%G|%E").splitlines():
        name, state, partition, gres, reason = _fields(line, 5)
        before = found[name].partitions if name in found else frozenset()
        shown_reason = "" if reason == "none" else reason
        found[name] = Node(name, state, before | {partition}, gres, shown_reason)
    return found


def expand(names: str) -> tuple[str, ...]:
    """The nodes of a list such as "gpu[01-08],login1", each once; raises UnknownNodes.

    Slurm expands it, so that what this accepts is what ``--nodelist`` accepts.
    """
    if not _NODE_LIST.fullmatch(names):
        raise UnknownNodes(f"{excerpt(names)!r} is not a list of nodes, such as gpu[01-08],gpu12")
    found = dict.fromkeys(_ask("scontrol", "show", "hostnames", names).split())
    for name in found:
        if not NODE_NAME.fullmatch(name):
            raise UnknownNodes(f"{excerpt(names)!r} is not a list of nodes: it gives {name!r}")
    if not found:
        raise UnknownNodes(f"{excerpt(names)!r} names no nodes")
    return tuple(found)


def submit(script: Path, request: Request) -> str:
    """Submit ``script`` with the words of ``request`` as its arguments; returns the job's number.

    The words reach the script as they are: no shell reads them. Slurm does not requeue the job:
    Slurm 22.05 loses count of a node's GPUs when it requeues a job whose node died.
    """
    asked = {
        "--job-name": request.name,
        "--comment": request.comment,
        "--nodelist": ",".join(request.nodes),
        "--nodes": str(len(request.nodes)),
        "--time": str(request.minutes),
        "--gres": request.gres,
        "--partition": request.partition or "",
        "--account": request.account or "",
        "--ntasks-per-node": str(request.tasks_per_node or ""),
        "--chdir": str(request.folder),
        "--output": _pattern(request.folder / "job.log"),
    }
    answer = _ask(
        "sbatch",
        # of an option given twice the last counts: no other node is tested in place of this one
        *request.options,
        "--parsable",
        "--no-requeue",
        "--open-mode=append",
        *(["--exclusive"] if request.exclusive else []),
        *(f"{option}={value}" for option, value in asked.items() if value),
        str(script),
        *request.words,
    )
    number = answer.strip().splitlines()[-1].partition(";")[0] if answer.strip() else ""
    if not number.isdecimal():
        raise SlurmError(
            f"sbatch did not report the number of the job: {excerpt(answer) or 'nothing'}"
        )
    return number


def jobs(name: str) -> dict[str, Job]:
    """The jobs of that name by their number, also those that ended minutes ago."""
    line_format = "%i|%T|%k|%r"
    answer = _ask("squeue", "-a", "-h", "--states=all", f"--name={name}", "-o", line_format)
    return {
        number: Job(number, state, "" if comment == "(null)" else comment, reason)
        for number, state, comment, reason in (_fields(line, 4) for line in answer.splitlines())
    }


def cancel(numbers: Iterable[str]) -> None:
    """Cancel jobs. Raises SlurmError also for one that ended meanwhile."""
    given = list(numbers)
    if given:
        _ask("scancel", *given)


def pause(seconds: float) -> None:
    """Wait so long: Slurm does not report the end of a job."""
    time.sleep(seconds)


def stop() -> None:
    """Do nothing: jobs go on."""


def drain(name: str, reason: str) -> None:
    """Let no further job begin on a node."""
    _ask("scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}")


def resume(name: str) -> None:
    """Undo :func:`drain`."""
    _ask("scontrol", "update", f"NodeName={name}", "State=RESUME")


def reason_text(text: str) -> str:
    """``text`` as a reason that Slurm gives back unchanged: one line, no quotes, not too long."""
    return one_line(re.sub(r"""["'`\\|]""", " ", text.encode("ascii", "replace").decode()))[
        :180
    ].strip()


def _pattern(path: Path) -> str:
    r"""A path for ``--output``, in which % begins a replacement (sbatch(1), "FILENAME PATTERN")."""
    return str(path).replace("%", "%%")


def _fields(line: str, count: int) -> list[str]:
    found = [each.strip() for each in line.split("|", count - 1)]
    if len(found) != count:
        raise SlurmError(f"Slurm's answer has an unknown form: {excerpt(line) or 'an empty line'}")
    return found


def _ask(*command: str) -> str:
    """What a client prints. Raises SlurmError with its error, and MissingDependency."""
    try:
        ended = run_program(*command, limit_s=LIMITS.scheduler_s, leave_out=_left_out(os.environ))
    except FileNotFoundError:
        raise MissingDependency(
            f"{command[0]} is not installed here: run this on a machine with Slurm's clients "
            "(a login node), with their folder in PATH"
        ) from None
    except TimeoutError as error:
        raise SlurmError(f"{command[0]} {error}: is slurmctld up?") from None
    except OSError as error:
        raise SlurmError(f"{command[0]} cannot be started: {error.strerror or error}") from error
    if ended.returncode != 0:
        raise SlurmError(
            f"{command[0]}: {_error_line(ended.stderr) or f'status {ended.returncode}'}"
        )
    return ended.stdout.decode("utf-8", "replace")


def _error_line(stderr: bytes) -> str:
    """The last line of an error, without the name of the client before it."""
    lines = [line for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    return excerpt(re.sub(r"^\w+: (error|fatal): ", "", lines[-1])) if lines else ""


def _left_out(environment: Mapping[str, str]) -> Collection[str]:
    # a job inherits its submitter's variables; the mark would make its processes this one's
    return {
        MARK,
        *(name for name in environment if name.startswith(_NOT_OURS) and name not in _KEPT),
    }
