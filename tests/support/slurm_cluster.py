"""A Slurm cluster on this machine: a real controller and several slurmd, each a node of its own.

All files are in one folder. Every process has it in its environment or a file of it open, by which
it is found and ended. The GPUs are files: Slurm counts and assigns them, and nothing opens them.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from portagpu.base.subprocesses.start import die_with_parent, end_marked, signal_process
from tests.support.owned import kept
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS: Final = ("slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scontrol", "scancel")
LIMIT_S: Final = 60.0
AMD: Final = ("m1", "m2", "m3", "m4")
NVIDIA: Final = ("h1", "h2")
_SEARCHED: Final = (*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin", "/sbin")
_CONF: Final = r"""
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
# a node that stops to answer is down within seconds
SlurmdTimeout=2
MessageTimeout=2
KillWait=1
ReturnToService=1
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
# a machine with fewer cores than the nodes claim is taken as they claim
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=DEFAULT CPUs=4 Sockets=4 RealMemory=100
NodeName=m[1-4] NodeHostname=localhost NodeAddr=127.0.0.1 \
  Port=[{ports[1]}-{ports[4]}] Gres=gpu:mi300x:8
NodeName=h[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 \
  Port=[{ports[5]}-{ports[6]}] Gres=gpu:h100:8
NodeName=gone NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[7]} Gres=gpu:mi300x:8
PartitionName=amd Nodes=m[1-4],gone Default=YES PriorityTier=1 MaxTime=60 State=UP
PartitionName=nvidia Nodes=h[1-2] PriorityTier=1 State=UP
PartitionName=all Nodes=ALL PriorityTier=1 State=UP
PartitionName=urgent Nodes=ALL PriorityTier=10 State=UP
"""
_GRES: Final = """
NodeName=m[1-4],gone Name=gpu Type=mi300x File={folder}/dev/gpu[0-7] Flags=amd_gpu_env
NodeName=h[1-2] Name=gpu Type=h100 File={folder}/dev/gpu[0-7] Flags=nvidia_gpu_env
"""


def program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join(_SEARCHED))


def missing() -> str:
    """Why no cluster can be started here; empty where one can."""
    absent = [name for name in PROGRAMS if program(name) is None]
    return f"there is no {absent[0]} here: install Debian's slurmctld and slurmd" if absent else ""


class Cluster:
    """A running cluster: ``folder`` has its files, also ``shared``, a folder for results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.shared = folder / "shared"
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        # a daemon dies with the thread that started it (PR_SET_PDEATHSIG), whoever asked for it
        self._starter = ThreadPoolExecutor(1)

    def start(self, name: str) -> None:
        """Start "slurmctld", or the slurmd of a node."""
        self._starter.submit(self._spawn, name).result()

    def end(self, name: str) -> None:
        """End a daemon as a crash of its machine does: it says nothing to anybody."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def crash(self, node: str) -> None:
        """End a node's slurmd, its steps and their processes, as a loss of power does."""
        daemon = self._daemons.pop(node)
        # slurmstepd has cleared its environment, and holds the node's log
        for pid in holders(str(self.folder / f"{node}.log")):
            signal_process(pid, signal.SIGKILL)
        for pid in _jobs_of(node, str(self.conf)):
            signal_process(pid, signal.SIGKILL)
        daemon.wait(LIMIT_S)

    def ask(self, *words: str, check: bool = True) -> str:
        """What a client of Slurm prints."""
        ended = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=LIMIT_S,
            check=False, cwd=self.folder,
        )  # fmt: skip
        assert not check or ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
        return ended.stdout.strip()

    def state(self, node: str) -> str:
        """A node's state in Slurm's words."""
        # empty before the controller listens
        words = ("sinfo", "-h", "-p", "all", "-N", "-n", node, "-o", "%T")
        return self.ask(*words, check=False)

    def wait_for(self, node: str, *states: str) -> None:
        """Wait until a node has one of these states."""
        wait_until(
            lambda: self.state(node) in states,
            lambda: f"{node} is {self.state(node)}; {self.log()}",
            LIMIT_S,
        )

    def heal(self) -> None:
        """No jobs, and every node idle."""
        self.ask("scancel", "--user", getpass.getuser(), check=False)
        for node in (*AMD, *NVIDIA):
            if node not in self._daemons:
                self.start(node)

        def are_idle() -> bool:
            bad = [each for each in (*AMD, *NVIDIA) if self.state(each) != "idle"]
            for node in bad:
                self.ask("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
            return not bad

        wait_until(are_idle, self.log, LIMIT_S)

    def broken(self) -> str:
        """What a daemon said that ended by itself; empty where all run."""
        ended = [name for name, each in self._daemons.items() if each.poll() is not None]
        return (self.folder / f"{ended[0]}.out").read_text(errors="replace") if ended else ""

    @contextlib.contextmanager
    def configured(self, lines: str) -> Iterator[None]:
        """Further lines of slurm.conf for a while."""
        before = self.conf.read_text()
        try:
            self.conf.write_text(before + lines)
            self.ask("scontrol", "reconfigure")
            yield
        finally:
            self.conf.write_text(before)
            self.ask("scontrol", "reconfigure")

    def log(self) -> str:
        """The end of the controller's log."""
        log = self.folder / "slurmctld.log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else "no log"

    def _spawn(self, name: str) -> None:
        words = ["slurmctld", "-D"] if name == "slurmctld" else ["slurmd", "-D", "-N", name]
        # also one that a test starts again: stop() ends it
        with kept(), (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                [str(program(words[0])), *words[1:], "-f", str(self.conf)],
                env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip

    def stop(self) -> None:
        """End every process of the cluster and of its jobs, at once."""

        def are_gone() -> bool:
            found = holders(str(self.folder))
            for pid in found:
                signal_process(pid, signal.SIGKILL)
            return not found

        wait_until(are_gone, "a process holds a file of the cluster")
        end_marked(str(self.folder))
        for daemon in self._daemons.values():
            daemon.wait(LIMIT_S)
        self._starter.shutdown()


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """A cluster in a folder of its own; skips where it cannot be started."""
    if why := missing():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="slurm") as place:
        folder = Path(place)
        for name in ("state", "spool", "dev", "shared"):
            (folder / name).mkdir()
        for number in range(8):
            (folder / f"dev/gpu{number}").touch()
        values = {"folder": folder, "ports": _ports(8), "user": getpass.getuser()}
        cluster = Cluster(folder)
        cluster.conf.write_text(_CONF.format(**values))
        (folder / "gres.conf").write_text(_GRES.format(**values))
        try:
            for name in ("slurmctld", *AMD, *NVIDIA):
                cluster.start(name)
            _wait(cluster)
            yield cluster
        finally:
            cluster.stop()


def _wait(cluster: Cluster) -> None:
    def are_idle() -> bool:
        idle = all(cluster.state(node) == "idle" for node in (*AMD, *NVIDIA))
        return idle or bool(cluster.broken())

    with contextlib.suppress(AssertionError):
        wait_until(are_idle, "", LIMIT_S)
        if not cluster.broken():
            return
    pytest.skip(f"Slurm does not start here: {cluster.broken() or cluster.log()}"[-500:])


def holders(prefix: str) -> list[int]:
    """The processes that have a file open whose path begins so."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(prefix):
                found.append(int(link.parts[2]))
    return sorted(set(found) - {os.getpid()})


def _jobs_of(node: str, conf: str) -> list[int]:
    """The processes of jobs on a node of that cluster."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            words = path.read_text("latin-1").split("\0")
            if {f"SLURMD_NODENAME={node}", f"SLURM_CONF={conf}"} <= set(words):
                found.append(int(path.parts[2]))
    return found


def _ports(count: int) -> list[int]:
    """Free ports in a row, below those that Linux gives to outgoing connections."""
    for first in range(20000 + os.getpid() % 5000, 32000, count):
        ports = range(first, first + count)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in ports:
                taken = held.enter_context(socket.socket())
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                taken.bind(("127.0.0.1", port))
            return list(ports)
    pytest.skip("there are no free ports")
