"""One interface to the sources of an inventory: this machine, a file tree, or a recording."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import BackendNotFound
from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses import run_program
from portagpu.base.text import excerpt, one_line
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.host import kernel_log
from portagpu.facts.formats.reader import read_text
from portagpu.facts.host.limits import read_limits
from portagpu.facts.host.tree import Kind, RootedFolder, Tree, as_tree, resolve_link
from portagpu.facts.readings.model import Findings, FormatError
from portagpu.machine.inventory.gpu import name_findings, with_pci_id_names
from portagpu.machine.inventory.join import join
from portagpu.machine.inventory.kernel import kernel_findings
from portagpu.machine.inventory.kernel_links import kfd_links, read_infiniband
from portagpu.machine.inventory.topology import build_topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from portagpu.devices.contract import Status
    from portagpu.facts.torchbuild import TorchBuild
    from portagpu.machine.inventory.gpu import Inventory
    from portagpu.machine.inventory.topology import Topology


_JOB: Final = re.compile(r"/(?:job|step)_|/(?:pbs_jobs|lsf|htcondor)\b")
"""Control groups of schedulers' jobs (Slurm, PBS, LSF, HTCondor)."""


class Machine(ABC):
    """One machine: its files, its environment, and the findings of its sources.

    ``info`` reads a live machine and a recording through these members alone.
    """

    tree: Tree
    """The kernel's files: of a live machine, of a recording, or an empty folder."""
    environment: Mapping[str, str]
    """The environment of the process to describe."""
    software_known: bool = True
    """Whether torch, libraries and backends are known; of a recording of hardware they are not."""

    @abstractmethod
    def findings(self) -> tuple[Findings, ...]:
        """The findings of each source; where two contradict each other, the first counts."""

    @abstractmethod
    def torch(self) -> TorchBuild | None:
        """The torch that is installed there; None where there is none, or none is known."""

    @abstractmethod
    def libraries(self) -> Mapping[str, str]:
        """Versions of what is installed there, by name."""

    @abstractmethod
    def backends(self) -> Mapping[str, Status]:
        """The status of each backend there, by name."""

    def log(self) -> Findings | None:
        """The kernel's log, where ``findings`` do not have it; None where it is not read."""
        return None

    def origins(self) -> tuple[Origin, ...]:
        """The recordings that are read; empty for a live machine."""
        return ()

    def inventory(self) -> Inventory:
        """The machine that the findings describe; names by PCI id where no source has one."""
        found = self._comparable(self.findings())
        return with_pci_id_names(join([*found, name_findings(self.tree, found)]), self.tree)

    def _comparable(self, findings: Sequence[Findings]) -> Sequence[Findings]:
        """``findings``, whose lists are of a part of the GPUs in a container or a scheduler's job.

        The kernel's files show all GPUs there, and the driver answers for those that were given.
        """
        groups = self.tree.text("proc/self/cgroup") or ""
        if not (_JOB.search(groups) or read_limits(self.tree).container):
            return findings
        return [replace(each, complete=None) for each in findings]

    def topology(self) -> Topology:
        """The graph of its devices, from the same findings and the kernel's links."""
        more = (kfd_links(self.tree), read_infiniband(self.tree))
        return build_topology([*self.findings(), *more])


class Live(Machine):
    """This machine, or the file tree below ``root`` as if it were one.

    Libraries are called only for this machine: they know no other file tree.
    """

    def __init__(
        self, root: Tree | Path | str = "/", environment: Mapping[str, str] | None = None
    ) -> None:
        self.tree = as_tree(root)
        self.environment = os.environ if environment is None else environment

    def findings(self) -> tuple[Findings, ...]:
        return (*self.library_findings(), *kernel_findings(self.tree))

    def library_findings(self) -> tuple[Findings, ...]:
        """Findings of the vendors' libraries that have readings or problems."""
        from portagpu.devices.discovery import probes

        asked = tuple(probes().values()) if self.tree.is_live else ()
        return tuple(each for each in asked if each.readings or each.problems)

    def log_output(self) -> CommandOutput | None:
        """The kernel's log as it is printed, of this machine alone."""
        return kernel_log_output() if self.tree.is_live else None

    def log(self) -> Findings | None:
        output = self.log_output()
        if output is None or output.problem:
            return None
        found = kernel_log.parse(output.text)
        # a container sees the log of its host, whose GPUs are not all its own
        return Findings(kind=found.kind, events=found.events)

    def topology(self) -> Topology:
        found = self.findings()
        more = (kfd_links(self.tree), read_infiniband(self.tree))
        return build_topology([*found, *tool_findings(self.commands(found)), *more])

    def commands(self, findings: Iterable[Findings]) -> tuple[tuple[str, ...], ...]:
        """The command lines of the plugins whose GPUs ``findings`` show, of this machine alone."""
        from portagpu.devices.discovery import candidates, plugin

        if not self.tree.is_live:
            return ()
        vendors = {reading.vendor for each in findings for reading in each.readings}
        found: list[tuple[str, ...]] = []
        for name in candidates() if vendors else ():
            with contextlib.suppress(BackendNotFound):
                each = plugin(name)
                found.extend(each.commands if each.vendor in vendors else ())
        return tuple(found)

    def torch(self) -> TorchBuild | None:
        from portagpu.facts.torchbuild import torch_build

        return torch_build()

    def libraries(self) -> Mapping[str, str]:
        from portagpu._version import __version__
        from portagpu.facts.torchbuild import library_versions

        python = {"python": platform.python_version()}
        return python | library_versions() | {"portagpu": __version__}

    def backends(self) -> Mapping[str, Status]:
        from portagpu.devices.registry import statuses

        return statuses()


MAX_FILES: Final = 20_000
"""Files of a folder that are hashed at most: eight GPUs in 64 partitions have 4101."""
MAX_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Origin:
    """Where what is known of a machine was recorded.

    ``name`` is the last part of the path. ``sha256`` is of the file; of a folder it is the hash of
    what ``find . -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum`` prints in it, None where it
    is larger than anything that was recorded of a machine. ``source`` is the address at
    which it is published, where the recording states one.
    """

    name: str
    sha256: str | None = None
    source: str | None = None

    def to_json(self) -> dict[str, str | None]:
        """The object that ``run.replay`` of a result document has for it."""
        name, source = excerpt(self.name, 255), excerpt(self.source or "", 2000)
        return {"name": name or "recording", "sha256": self.sha256, "source": source or None}


def origin_of(path: Path, source: str | None = None) -> Origin:
    """The origin of the recording at ``path``; links in it are not followed. Raises OSError."""
    return Origin(path.name or path.resolve().name or "/", _hash(path), source)


def _hash(path: Path) -> str | None:
    if not path.is_dir():
        given = path.resolve()
        found, _ = _hash_of_file(RootedFolder(given.parent), given.name, MAX_BYTES)
        return found
    folder, lines, left = RootedFolder(resolve_link(path)), hashlib.sha256(), MAX_BYTES
    files = (os.fsencode(name) for name, kind in folder.walk() if kind is Kind.FILE)
    try:
        names = list(islice(files, MAX_FILES + 1))
    except OSError:
        return None
    if len(names) > MAX_FILES:
        return None
    for name in sorted(names):
        found, size = _hash_of_file(folder, os.fsdecode(name), left)
        if found is None:
            return None
        left -= size
        lines.update(f"{found}  ./".encode() + name + b"\n")
    return lines.hexdigest()


def _hash_of_file(folder: RootedFolder, name: str, most: int) -> tuple[str | None, int]:
    """(hash, bytes) of a file; no hash of one that has more than ``most`` bytes."""
    size = folder.status(name, follow=False).st_size
    if size > most:
        return None, size
    digest, size = hashlib.sha256(), 0
    for piece in folder.pieces(name, most + 1, follow=False):
        digest.update(piece)
        size += len(piece)
    return (digest.hexdigest() if size <= most else None), size


LOG_LINES: Final = 100_000
"""Lines of the journal that are read, the last ones."""
_LOG_COMMANDS: Final = (
    # -q leaves out marks and hints, and -n bounds what a kernel that repeats itself wrote
    (
        *("journalctl", "--dmesg", "--no-hostname", "--no-pager", "--quiet"),
        *("--output=short-iso", f"--lines={LOG_LINES}"),
    ),
    ("dmesg",),
)
"""journalctl(1) of systemd; it keeps what the kernel's own ring has overwritten."""
_REFUSED: Final = re.compile("permission|not permitted|not seeing messages", re.IGNORECASE)
"""What journalctl and dmesg(1) say to a user who may not read the log."""


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command printed; ``problem`` says in one sentence why it printed nothing usable."""

    command: tuple[str, ...]
    text: str = ""
    problem: str = ""


def run_commands(
    commands: Iterable[Sequence[str]], limit_s: float = LIMITS.program_s
) -> Iterator[CommandOutput]:
    """The output of each command; tools that are not installed are left out."""
    for command in commands:
        found = _run_command(tuple(command), limit_s)
        if found is not None:
            yield found


def tool_findings(commands: Iterable[Sequence[str]]) -> Iterator[Findings]:
    """The findings in the output of each command."""
    for output in run_commands(commands):
        kind = " ".join(output.command)
        if output.problem:
            yield Findings(kind=kind, problems=(output.problem,))
            continue
        try:
            yield from read_text(output.text)
        except FormatError as error:
            yield Findings(kind=kind, problems=(f"{kind}: {error}",))


def kernel_log_output(limit_s: float = LIMITS.program_s) -> CommandOutput:
    """The kernel's log since its start, of the first command that may read it.

    ``problem`` says why none did.
    """
    printed = list(run_commands(_LOG_COMMANDS, limit_s))
    read = (e for e in printed if not e.problem and kernel_log.has_kernel_lines(e.text))
    said = [each.problem for each in printed if each.problem]
    why = said[-1] if said else "neither journalctl nor dmesg shows it"
    if any(_REFUSED.search(each.problem or each.text) for each in printed):
        why += f"; {_how_to_read_log()}"
    return next(read, CommandOutput(("dmesg",), problem=f"the kernel's log is not read: {why}"))


def _how_to_read_log() -> str:
    if os.geteuid() == 0:  # of a container
        return "run the container with the capability SYSLOG"
    return "run this as root, or as a member of the group systemd-journal or adm"


def _run_command(command: tuple[str, ...], limit_s: float) -> CommandOutput | None:
    name = " ".join(command)
    try:
        # words and numbers as the readers know them
        done = run_program(*command, limit_s=limit_s, environment={"LC_ALL": "C"})
    except FileNotFoundError:
        return None
    except TimeoutError as error:
        return CommandOutput(command, problem=f"{name} {error}")
    except OSError as error:
        return CommandOutput(command, problem=f"{name} cannot be started: {error.strerror}")
    text = decode_text(done.stdout)
    if done.returncode or not text.strip():
        said = excerpt(one_line(decode_text(done.stderr) or text)) or "nothing"
        return CommandOutput(command, text, f"{name} ended with status {done.returncode}: {said}")
    return CommandOutput(command, text)
