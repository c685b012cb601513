"""Ending processes and what they left behind (Linux: ``prctl(2)``, ``waitid(2)``, ``proc(5)``)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.patience import LIMITS, processes, stat_fields

if TYPE_CHECKING:
    from collections.abc import Collection

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
MARK: Final = "PORTAGPU_PROCESS"
"""The variable by which what a child started is found after it left the child's session."""
_MARK_BYTES: Final = 32
_SELF: Final = Path("/proc/self")
_PASSES: Final = 50
_PASS_S: Final = 0.01


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def wake_at_parents_end() -> None:
    """Have the kernel continue this process, if stopped, when the thread that forked it ends.

    It then sees the end of its input. A running process does not notice.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def has_ended(pid: int) -> bool:
    """Whether that child is a zombie, which it stays."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone, or another user's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def end_strays(kept: Collection[int] = (), limit_s: float = LIMITS.stray_s) -> None:
    """End the children of this process but ``kept``: what ranks left, whose subreaper it is."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        strays = [pid for pid in children_of(os.getpid(), ended=True) if pid not in kept]
        if not strays:
            return
        for stray in strays:
            signal_process(stray, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stray, os.WNOHANG)
        time.sleep(0.01)


def new_mark() -> str:
    """The value of ``MARK`` for a child: what it starts inherits it, in whatever session."""
    return os.urandom(_MARK_BYTES // 2).hex()


def end_marked(mark: str, session: int | None = None) -> None:
    """End every process with that mark in its environment, and those of a session.

    One that is blocked in the kernel, or that emptied its environment and left the session, stays.
    """
    for _ in range(_PASSES):
        # what it starts meanwhile has the mark as well
        found = [
            pid for pid, _, its in processes() if its == session or mark in _environment_of(pid)
        ]
        if not found:
            return
        for pid in found:
            signal_process(pid, signal.SIGKILL)
        time.sleep(_PASS_S)


def _environment_of(pid: int) -> str:
    """The environment with which a process of this user began; empty for any other."""
    try:
        return Path(f"/proc/{pid}/environ").read_text("latin-1")
    except OSError:
        return ""


def mark_place() -> int | None:
    """Where this process's memory holds its mark, as others read it; None where that is unknown.

    It is among the variables with which the process began: a forked one has those of its parent.
    """
    name = f"{MARK}=".encode()
    try:
        # the address of the first variable (proc_pid_stat(5): env_start)
        start = int(stat_fields(_SELF)[47])
        before, found, rest = (_SELF / "environ").read_bytes().partition(name)
        place = start + len(before) + len(name)
        with (_SELF / "mem").open("rb", buffering=0) as memory:
            held = os.pread(memory.fileno(), _MARK_BYTES, place)
    except (OSError, ValueError, IndexError, OverflowError):
        return None
    mark = rest.partition(b"\0")[0]
    return place if found and len(mark) == _MARK_BYTES and held == mark else None


def write_mark(place: int, mark: str) -> None:
    """Give this process another mark. Raises OSError where its memory cannot be written."""
    with (_SELF / "mem").open("r+b", buffering=0) as memory:
        os.pwrite(memory.fileno(), mark.encode(), place)


def children_of(process: int, *, ended: bool = False) -> list[int]:
    """The visible processes with that parent; those that have ``ended`` only if asked for."""
    return [pid for pid, parent, _ in processes(ended=ended) if parent == process]
