"""Runs the steps of a fleet as processes of this one: through ssh, or on this machine alone.

Every step reads an input that stays open as long as this process follows it. When that ends,
because of Ctrl-C, a lost connection or a machine that was turned off, the node ends the command, so
that nothing is left running. Sources: ssh(1), ssh_config(5), sh(1) of POSIX.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from portagpu.base.errors import MissingDependency, OutputError
from portagpu.base.files import read_bounded
from portagpu.base.patience import LIMITS
from portagpu.base.plugins import install
from portagpu.base.subprocesses.start import Background, find_program, run_program
from portagpu.base.text import did_you_mean, excerpt
from portagpu.reports.fleet.record import ENDED, RESULT
from portagpu.reports.fleet.request import OF_SSH
from portagpu.reports.fleet.slurm import NODE_NAME, Job, Node, SlurmError, UnknownNodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from portagpu.reports.fleet.slurm import Request

ON_NODE: Final = (
    'exec 3<&0; end() { kill "-$1" "-$command" || kill "-$1" $command; }; '
    "new=$(command -v setsid); "
    '$new "$@" </dev/null 3<&- & command=$!; '
    "{ trap 'kill $rest; exit' TERM; cat <&3; end TERM; sleep 30 & rest=$!; wait $rest; "
    "end KILL; } >/dev/null 2>&1 & watch=$!; "
    "exec 3<&-; wait $command; code=$?; kill $watch; "
    'if [ $code -gt 128 ]; then left=30; while [ $left -gt 0 ] && kill -0 "-$command"; '
    "do sleep 1; left=$((left - 1)); done; end KILL; fi >/dev/null 2>&1; exit $code"
)
"""What a node's shell runs: the command, which is ended where the input ends before it.

With it ends its process group: a program that calls portagpu may be a shell that waits for it."""
_OPTIONS: Final = (
    "-T",
    *("-o", "BatchMode=yes"),
    *("-o", f"ConnectTimeout={LIMITS.client_s:.0f}"),
    # a node that no longer answers is given up after a minute
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=4"),
)
_SSH_FAILED: Final = 255
"""ssh's own exit code where it could not run the command (ssh(1))."""
_NOT_STARTED: Final = frozenset({126, 127})
"""A shell's exit codes for a command that is not there, or not to be run (POSIX, sh)."""
_WHY: Final = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "{its} host key changed; where it was installed again, ssh-keygen -R {key} helps",
    ),
    (
        "Host key verification failed",
        "{its} host key is not known here: connect to it once by hand",
    ),
    ("Permission denied", "{it} refuses this user: give ssh a key that it takes"),
    ("timed out", "{it} does not answer"),
    ("No route to host", "{it} does not answer"),
    ("Connection refused", "no server answers there: start sshd, or name its port"),
    ("Could not resolve hostname", "this machine knows no address of {it}: check its name"),
    (
        "stdio forwarding failed",
        "its jump host cannot reach it: check what that host forwards, and the name there",
    ),
    (
        "kex_exchange_identification",
        "{it} ends connections before they begin: try --at-once 8, or raise its MaxStartups",
    ),
    ("closed by remote host", "the connection was cut: look whether the node is up, and repeat"),
)
"""What ssh prints, and what it means: words that a report finds equal on many nodes."""
_KEY_OF: Final = re.compile(r"Host key for (\S+) has changed")
_THROUGH: Final = "UNKNOWN port 65535"
"""How ssh names the other end where it has only a pipe to a jump host."""
_SPECIAL: Final = re.compile(r"[\[\]@!&^*]")
"""Signs of a node set that is more than names and commas."""
_LIKE_A_FILE: Final = re.compile(r"/|\.(txt|list|lst|hosts|nodes|csv|conf|cfg)$", re.IGNORECASE)
"""What no name of a node has: no such top-level domain exists."""
_MAX_LIST: Final = 4 << 20


def nodes_of(text: str) -> tuple[str, ...]:
    """The nodes of a set such as "gpu[01-08],login1" or of a file of such lines, each once.

    A file may have comments after #, empty lines, a byte order mark and any line ends.
    Raises UnknownNodes, and MissingDependency where only ClusterShell can expand it.
    """
    lines, source = _lines(text)
    found = dict.fromkeys(name for line in lines for name in _expanded(line))
    for name in found:
        if not NODE_NAME.fullmatch(name):
            raise UnknownNodes(f"{source} is not a set of nodes: it gives {excerpt(name)!r}")
    if not found:
        raise UnknownNodes(f"{source} names no nodes")
    return tuple(found)


def _lines(text: str) -> tuple[list[str], str]:
    """The lines of a file or of ``text`` itself, and how errors call it."""
    source, path = repr(excerpt(text)), Path(text)
    with contextlib.suppress(OSError, ValueError):
        # a folder of results may have the name of a node
        if path.is_dir() and "/" in text:
            raise UnknownNodes(f"--ssh: {source} is a folder; name a file of nodes in it")
        if path.exists() and not path.is_dir():
            source = f"the file {source}"
            data = read_bounded(path, _MAX_LIST)
            wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            text = data.decode("utf-16" if wide else "utf-8-sig", "replace")
        elif _LIKE_A_FILE.search(text):
            names = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
            hint = did_you_mean(path.name, names, "give a file, or names such as gpu01,gpu02")
            raise UnknownNodes(f"--ssh: there is no file {source}: {hint}")
    kept = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in kept if line], source


def _expanded(line: str) -> Iterable[str]:
    if not _SPECIAL.search(line):
        return re.split(r"[,\s]+", line.strip(", "))
    try:
        from ClusterShell.NodeSet import NodeSet, NodeSetException
    except ImportError:
        raise MissingDependency(
            f"node sets such as {excerpt(line)!r} need ClusterShell: {install('ssh')}; or name the "
            "nodes with commas"
        ) from None
    try:
        return map(str, NodeSet(line))
    except NodeSetException as error:
        raise UnknownNodes(f"{excerpt(line)!r} is not a set of nodes: {error}") from error


@dataclass(slots=True)
class _Running:
    """A step on its way: ``ends_s`` is when its time is over."""

    process: Background
    request: Request
    ends_s: float
    state: str = "RUNNING"
    reason: str = ""


@dataclass(slots=True)
class Processes:
    """Starts each step as a process of this one: of ``ssh`` with its options, or without it here.

    ``drain_with`` is a command that takes a node out of use and back: it gets ``drain NODE REASON``
    or ``resume NODE``. ``drained`` has the reasons of those nodes that it took out of use.
    """

    names: tuple[str, ...]
    ssh: Sequence[str] | None = None
    drain_with: str = ""
    drained: Mapping[str, str] = field(default_factory=dict)
    _steps: dict[str, _Running] = field(default_factory=dict)
    _count: int = 0

    TITLE = "portagpu"
    LASTS = False

    @property
    def SHARES(self) -> bool:  # noqa: N802 - a constant of the others
        return self.ssh is None

    def version(self) -> str:
        """Empty. Raises MissingDependency where ssh is not installed."""
        if self.ssh is not None and find_program(self.ssh[0]) is None:
            raise MissingDependency(
                f"{self.ssh[0]} is not installed here: install OpenSSH's client"
            )
        return ""

    def nodes(self) -> Mapping[str, Node]:
        """All of them, as usable as is known: those that this run drained, with its reason."""
        return {
            name: Node(name, "drained" if why else "idle", frozenset(), "", why)
            for name in self.names
            for why in (self.drained.get(name, ""),)
        }

    def jobs(self, name: str, /) -> Mapping[str, Job]:
        """The steps that this process started."""
        for number, each in self._steps.items():
            self._look(number, each)
        return {
            number: Job(number, each.state, each.request.comment, each.reason)
            for number, each in self._steps.items()
        }

    def submit(self, script: Path, request: Request, /) -> str:
        """Start the step; returns a number that no other step of any run has."""
        self._count += 1
        number = f"{os.getpid()}-{self._count}-{time.time_ns()}"
        _, *words = request.words
        here = ["sh", "-c", ON_NODE, "sh", *words]
        command = here if self.ssh is None else [*self.ssh, *_OPTIONS, "--"]
        if self.ssh is not None:
            command += [request.nodes[0], shlex.join(here)]
        for old in (ENDED, RESULT, f"{RESULT}.part"):
            (request.folder / old).unlink(missing_ok=True)
        try:
            with (request.folder / "job.log").open("wb") as log, self._output(request) as out:
                process = Background(command, out or log, log)
        except OSError as error:
            raise OutputError(f"cannot begin {request.comment}: {error}") from error
        ends_s = time.monotonic() + 60.0 * request.minutes
        self._steps[number] = _Running(process, request, ends_s)
        return number

    def _output(self, request: Request) -> contextlib.AbstractContextManager[IO[bytes] | None]:
        if self.SHARES:
            return contextlib.nullcontext()
        return (request.folder / f"{RESULT}.part").open("wb")

    def cancel(self, numbers: Iterable[str], /) -> None:
        """End these steps."""
        self._end([self._steps[number] for number in numbers if number in self._steps], "CANCELLED")

    def pause(self, seconds: float, /) -> None:
        """Wait until a step ends, at most so long."""
        running = [each.process.ended for each in self._steps.values() if each.state == "RUNNING"]
        if running:
            ends = select.poll()
            for handle in running:
                ends.register(handle, select.POLLIN)
            ends.poll(1000 * seconds)
        else:
            time.sleep(min(seconds, 0.05))

    def stop(self) -> None:
        """End all steps, here and on the nodes."""
        self._end([each for each in self._steps.values() if each.state == "RUNNING"], "CANCELLED")

    def drain(self, name: str, reason: str, /) -> None:
        """Call ``drain_with``; raises SlurmError where there is none, or it fails."""
        self._call("drain", name, reason)

    def resume(self, name: str, /) -> None:
        """The same for a node that comes back."""
        self._call("resume", name)

    def _call(self, *words: str) -> None:
        if not self.drain_with:
            raise SlurmError("nobody is named who does that: add --drain-with COMMAND")
        try:
            ended = run_program(*shlex.split(self.drain_with), *words, limit_s=LIMITS.scheduler_s)
        except (OSError, ValueError) as error:
            raise SlurmError(f"{self.drain_with}: {error}") from error
        if ended.returncode:
            said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
            why = said[-1] if said else f"exit code {ended.returncode}"
            raise SlurmError(f"{self.drain_with}: {excerpt(why)}")

    def _look(self, number: str, each: _Running) -> None:
        """Take note of the end of a step, or of its time."""
        if each.state != "RUNNING":
            return
        code = each.process.code()
        if code is None:
            if time.monotonic() < each.ends_s:
                return
            each.reason = f"it ran for {each.request.minutes} min"
            self._end([each], "TIMEOUT")
            return
        self._close(each)
        each.state = "COMPLETED" if code == 0 else "FAILED"
        folder = each.request.folder
        if self.ssh is not None and code == _SSH_FAILED:
            _say_why(folder / "job.log", each.request.nodes[0])
        elif self.ssh is not None and code in _NOT_STARTED:
            program = excerpt(each.request.words[1])
            why = f"it cannot run {program}: install portagpu there, or name it with --program"
            _add_why(folder / "job.log", why)
        part = folder / f"{RESULT}.part"
        with contextlib.suppress(OSError):
            if part.exists() and part.stat().st_size:
                part.replace(folder / RESULT)
            (folder / ENDED).write_text(f"{number} {code % 256}\n")

    def _end(self, steps: Sequence[_Running], state: str) -> None:
        """End steps: their input ends, and after a while they are killed."""
        for each in steps:
            each.state = state
            each.process.end_input()
        deadline = time.monotonic() + LIMITS.interrupt_s
        for each in steps:
            each.process.end(max(0.0, deadline - time.monotonic()))
            self._close(each)

    def _close(self, each: _Running) -> None:
        # here also what the command left, in whatever session
        each.process.close(strays=self.ssh is None)


def _say_why(log: Path, node: str) -> None:
    """Add to a log what ssh's words mean, where that is known."""
    with contextlib.suppress(OSError):
        said = read_bounded(log, 64 << 10, last=True).decode("utf-8", "replace")
        why = next((text for sign, text in _WHY if sign in said), None)
        if why is None:
            return
        it, its = "it", "its"
        if _THROUGH in said and "stdio forwarding failed" not in said:
            silent = "timed out" in said
            it, its = "it or its jump host" if silent else "its jump host", "its jump host's"
        changed = _KEY_OF.search(said)
        key = shlex.quote(changed[1] if changed else node)
        _add_why(log, why.format(it=it, its=its, key=key))


def _add_why(log: Path, why: str) -> None:
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as stream:
        stream.write(f"portagpu: {OF_SSH}{why}\n")
