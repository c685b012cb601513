"""How long the product waits: named limits, and what counts against them on a loaded machine.

A limit distinguishes a process that hangs from one that is slow. So the time in which the watched
processes were ready to run and waited for a CPU does not count: Linux states it for each thread in
``/proc/PID/task/TID/schedstat`` (``Documentation/scheduler/sched-stats.rst``: nanoseconds on a CPU,
nanoseconds on a run queue, time slices). One that is blocked or stopped is charged the wall time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TICK_S: Final = 0.5
"""Between two readings of a watched process."""
_READINGS: Final = 7200
"""How many readings are kept: those of an hour."""
_STARVED: Final = 0.1
"""The share of the wall time from which waiting for a CPU slows a program noticeably.

It is the threshold in use for CPU ready time, the same quantity of a virtual CPU: under 5 % is
normal, and from 10 % performance suffers (VMware KB 2002181; ibm.com/support/pages/
virtual-machine-cpu-ready).
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the product, in seconds; what users set are options of the functions."""

    load_s: float = 10.0
    """Other distributions' code: importing it, and asking it what it states."""
    read_s: float = 10.0
    """A reader of another distribution, for one text."""
    probe_s: float = 40.0
    """A backend's probe: a driver that is not kept loaded initialises GPUs one by one."""
    library_s: float = 30.0
    """A vendor's library in a child, within the probe: a second or more for each GPU."""
    program_s: float = 30.0
    """A vendor's program that reads: it may initialise every GPU first, in seconds each."""
    torch_s: float = 60.0
    """Importing torch and asking it for its devices, in a child."""
    start_s: float = 120.0
    """Until a child is ready: importing torch from a cold disk takes tens of seconds."""
    prepare_s: float = 40.0
    """What ranks ask the ready helper process to import ahead; then they do it themselves."""
    grace_s: float = 2.0
    """For other ranks to report their failures after the first one."""
    reply_s: float = 15.0
    """How much longer the client of the ranks waits than their server, before it ends that."""
    exit_s: float = 5.0
    """For a process to exit after its channel ended or it was killed."""
    leave_s: float = 1.0
    """For a child that calls functions to leave: nobody needs what it would still do."""
    stray_s: float = 2.0
    """For ending what ranks left."""
    end_s: float = 0.5
    """For the end of a child that judges a node: its limit is a promise to a scheduler."""
    interrupt_s: float = 30.0
    """For a command to end after Ctrl-C, and to write what it has so far."""
    stream_open_s: float = 60.0
    """The first answer of a library that is read again and again: it opens all GPUs first."""
    stream_hang_s: float = 10.0
    """A further answer of such a library, before its child is ended and started again."""
    client_s: float = 10.0
    """A client of the monitor's endpoint that sends or takes nothing."""
    device_s: float = 60.0
    """Opening a device in a rank, and describing it or beginning a load on it."""
    compile_s: float = 120.0
    """Compiling a kernel, which takes 0.3 to 3 s on one core."""
    survey_s: float = 60.0
    """Asking a toolchain for what it compiles, in a child."""
    tool_s: float = 60.0
    """A compiler's tool that reads machine code."""
    step_s: float = 3600.0
    """A profiler's own conversion of a capture, which may hold hours of events."""
    scheduler_s: float = 60.0
    """A command of a cluster's scheduler: a busy controller takes seconds."""
    case_s: float = 60.0
    """A case of the suite that states none of its own, where no option says another."""
    random_program_s: float = 10.0
    """A random program of the suite, which takes milliseconds, since the last sign of life."""
    random_start_s: float = 30.0
    """What is added to that where a process did not come to its first program: its disk is cold."""
    meet_s: float = 30.0
    """Ranks of random programs to meet: they may still open their devices."""
    answer_s: float = 12.0
    """What each rank saw of a random program, which takes milliseconds."""
    group_s: float = 8.0
    """A rank of random programs that waits for another one. The library counts it, in wall time."""
    lost_s: float = 2.0
    """A collective of a case that loses a rank, in wall time; the case allows as much again."""


@dataclass(frozen=True, slots=True)
class Starvation:
    """How much of the later half of a wait the watched processes were ready to run without a CPU.

    A process that waited for one, got it and then hangs is blocked in the later half.
    """

    wall_s: float
    """The length of that half."""
    waited_s: float
    """The longest wait of a thread in each reading, summed; an estimate where Linux states none."""
    load: float
    """The load average over one minute."""
    cpus: int
    """The CPUs that this process may use."""

    @property
    def is_starved(self) -> bool:
        """Whether processes waited so much that what they did not do says little of them."""
        return self.waited_s > 0 and self.waited_s >= _STARVED * self.wall_s

    @property
    def clause(self) -> str:
        """ "load 31.2 on 2 CPUs; waited 61 % of the last 40 s for a CPU"."""
        share = 100 * self.waited_s / self.wall_s if self.wall_s else 0.0
        cpus = f"{self.cpus} CPU{'s' if self.cpus != 1 else ''}"
        waited = f"waited {share:.0f} % of the last {self.wall_s:.3g} s for a CPU"
        return f"load {self.load:.1f} on {cpus}; {waited}"

    @property
    def remark(self) -> str:
        """ " on a busy machine (CLAUSE)" where processes are starved, else nothing."""
        return f" on a busy machine ({self.clause})" if self.is_starved else ""


def usable_cpus() -> int:
    """The CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def charged_s() -> float:
    """Seconds on the clock, less those in which this thread was ready and waited for a CPU.

    A difference of two is what a thread used, on a busy machine too; where Linux does not say how
    long it waited, it is the time that passed.
    """
    waited_ns = _numbers(Path("/proc/thread-self/schedstat"))[1:2]
    return time.monotonic() - (waited_ns[0] / 1e9 if waited_ns else 0.0)


def load_average() -> float:
    """The load average over one minute; 0 where it is unknown."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


@dataclass(frozen=True, slots=True)
class Patience:
    """What limits are counted with: a clock, the times of processes, and the machine's load."""

    clock: Callable[[], float] = time.monotonic
    proc: Path = Path("/proc")
    load: Callable[[], float] = load_average
    cpus: Callable[[], int] = usable_cpus
    most_times: float = 10.0
    """A limit is over at this multiple of its wall time, whatever counts: nothing waits forever."""

    def meter(self, *pids: int) -> Meter:
        """Count the time of those processes, by default this one, and of all that they start."""
        return Meter(self, pids or (os.getpid(),))

    def watch(self, limit_s: float, *pids: int) -> Watch:
        """A limit that begins now, on the time of those processes as :meth:`meter` counts it."""
        return self.meter(*pids).watch(limit_s)


class BusyMachine(str):
    """A problem of a limit that starved processes met: it may be gone when it is tried again."""

    __slots__ = ()


class Meter:
    """Wall time, and how much of it some processes waited for a CPU; several limits may share it.

    In each reading the thread that waited most counts, because the others may wait for it. Threads
    and processes may come and go. Where Linux does not state the times, the load per CPU stands in.
    """

    def __init__(self, patience: Patience, pids: tuple[int, ...]) -> None:
        self.patience = patience
        self._pids = pids
        me = patience.proc / "thread-self"
        # a kernel without CONFIG_SCHED_INFO has zeros in the file, and others have no file
        self._is_told = any(_numbers(me / "schedstat"))
        self._lists_children = (me / "children").exists()
        self._readings = deque([(patience.clock(), 0.0)], maxlen=_READINGS)
        self._threads = self._read_threads()

    def watch(self, limit_s: float) -> Watch:
        """A limit that begins now."""
        return Watch(self, limit_s)

    def read(self, older_s: float = 0.0) -> tuple[float, float]:
        """The clock, and the seconds waited so far, from a reading ``older_s`` old at most."""
        now = self.patience.clock()
        seen_s, waited_s = self._readings[-1]
        if now - seen_s > older_s:
            waited_s += self._waited_since(now - seen_s)
            self._readings.append((now, waited_s))
        return now, waited_s

    def reading_at(self, time_s: float) -> tuple[float, float]:
        """The last reading up to that time of the clock, else the first that is kept."""
        found = self._readings[0]
        for reading in self._readings:
            if reading[0] > time_s:
                break
            found = reading
        return found

    def _waited_since(self, passed_s: float) -> float:
        if not self._is_told:
            load, cpus = self.patience.load(), self.patience.cpus()
            return passed_s * (1 - cpus / load) if load > cpus else 0.0
        before, self._threads = self._threads, self._read_threads()
        longest = 0.0
        for thread, total_s in self._threads.items():
            waited_s = total_s - before.get(thread, 0.0)
            if thread not in before:
                # an adopted process has a past, and a number may be used again
                waited_s = min(waited_s, passed_s)
            # a wait is stated when it ends, so it may have begun before the last reading
            longest = max(longest, waited_s)
        return longest

    def _read_threads(self) -> dict[tuple[int, int], float]:
        """Process and thread -> the seconds that it has waited for a CPU since it began."""
        if not self._is_told:
            return {}
        found: dict[tuple[int, int], float] = {}
        for pid in self._tree():
            for folder in _folders(self.patience.proc / str(pid) / "task"):
                with contextlib.suppress(IndexError):
                    waited_ns = _numbers(folder / "schedstat")[1]
                    found[pid, int(folder.name)] = waited_ns / 1e9
        return found

    def _tree(self) -> set[int]:
        """The watched processes and their descendants that are there."""
        children: dict[int, list[int]] = {}
        if not self._lists_children:
            for pid, parent, _ in processes(self.patience.proc):
                children.setdefault(parent, []).append(pid)
        found: set[int] = set()
        left = list(self._pids)
        while left:
            pid = left.pop()
            if pid in found:
                continue
            found.add(pid)
            if self._lists_children:
                for folder in _folders(self.patience.proc / str(pid) / "task"):
                    left += _numbers(folder / "children")
            else:
                left += children.get(pid, [])
        return found


class Watch:
    """A limit on processes: it is over when the time that counts against it is used up."""

    def __init__(self, meter: Meter, limit_s: float) -> None:
        self._meter = meter
        self.limit_s = limit_s
        self.begin_again()

    def begin_again(self) -> None:
        """Have the limit begin now."""
        self._begun_s, self._waited_s = self._meter.read(_TICK_S)

    @property
    def left_s(self) -> float:
        """How much of the limit is left at least; 0 where it is over."""
        for older_s in (_TICK_S, 0.0):
            left_s = self._left_s(*self._meter.read(older_s))
            if left_s > 0:
                return left_s
        return 0.0

    def _left_s(self, now: float, waited_s: float) -> float:
        wall_s = now - self._begun_s
        counted_s = wall_s - min(wall_s, waited_s - self._waited_s)
        return min(
            self.limit_s - counted_s, self.limit_s * self._meter.patience.most_times - wall_s
        )

    @property
    def over(self) -> bool:
        """Whether the limit is used up."""
        return self.left_s <= 0

    @property
    def pause_s(self) -> float:
        """How long to wait for an event before the next look at this watch; 0 where it is over."""
        return min(self.left_s, _TICK_S)

    @property
    def starved(self) -> Starvation:
        """How much of the later half of the time since the begin they waited for a CPU."""
        now, waited_s = self._meter.read()
        half = self._meter.reading_at((self._begun_s + now) / 2)
        begun_s, before_s = max(half, (self._begun_s, self._waited_s))
        wall_s = now - begun_s
        patience = self._meter.patience
        return Starvation(
            wall_s, min(wall_s, waited_s - before_s), patience.load(), patience.cpus()
        )

    @property
    def problem(self) -> str:
        """What did not happen, as the rest of a sentence: "did not answer within 10 s"."""
        text = f"did not answer within {self.limit_s:g} s"
        remark = self.starved.remark
        return BusyMachine(f"{text}{remark}") if remark else text

    def sleep(self) -> None:
        """Sleep until the limit is over."""
        while (pause_s := self.pause_s) > 0:
            time.sleep(pause_s)

    def wait(self, happened: Callable[[float], bool]) -> bool:
        """Call ``happened(seconds)`` until it is true, or the limit is over; returns which.

        ``happened`` waits for an event, for the seconds that it is given at most. It is called at
        least once.
        """
        while True:
            left_s = self.pause_s
            if happened(left_s):
                return True
            if left_s <= 0:
                return False


def processes(proc: Path = Path("/proc"), *, ended: bool = False) -> Iterator[tuple[int, int, int]]:
    """(process, parent, session) of every visible process; with ``ended`` also of zombies."""
    for folder in _folders(proc):
        try:
            fields = stat_fields(folder)
            found = int(folder.name), int(fields[1]), int(fields[3])
        except (OSError, ValueError, IndexError):
            continue
        if ended or fields[0] not in "ZX":
            yield found


def stat_fields(folder: Path) -> list[str]:
    """What ``/proc/PID/stat`` states after the name: state, parent, group, session and so on."""
    # the name stands in parentheses and may hold spaces
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _folders(folder: Path) -> list[Path]:
    """The folders of processes or threads, which have numbers as names; none of one that ended."""
    try:
        return [each for each in folder.iterdir() if each.name.isdigit()]
    except OSError:
        return []


def _numbers(path: Path) -> list[int]:
    """The numbers in a file; none where it cannot be read, as that of a thread that ended."""
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []


PATIENCE: Final = Patience()
"""The patience of the product on this machine."""
LIMITS: Final = Limits()
"""The limits of the product."""
