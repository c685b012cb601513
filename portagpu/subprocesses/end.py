"""Ending processes and what they left behind (Linux: ``prctl(2)``, ``waitid(2)``, ``proc(5)``)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def die_with_parent() -> None:
    """Have this process killed when the thread that forked it ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def wake_at_parents_end() -> None:
    """Have this process continue, where it is stopped, when the thread that forked it ends.

    It can then see the end of its input; on one that is not stopped it has no effect.
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


def end_strays(limit_s: float = 2.0) -> None:
    """End what ranks started and left behind: the server is their subreaper, so it is its child."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            for stray in children_of(os.getpid()):
                signal_process(stray, signal.SIGKILL)
            time.sleep(0.01)


def end_session(session: int) -> None:
    """End what is left of the session of a process that did not end it itself."""
    for pid, _, its_session in _processes():
        if its_session == session:
            signal_process(pid, signal.SIGKILL)


def children_of(process: int) -> list[int]:
    """The processes whose parent that one is, as far as they show themselves."""
    return [pid for pid, parent, _ in _processes() if parent == process]


def _processes() -> Iterator[tuple[int, int, int]]:
    """(process, parent, session) of every process that shows itself."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text(errors="replace")
            # the name stands in parentheses and may hold spaces; state, parent, group and session
            # follow it
            fields = text.rpartition(")")[2].split()
            found = int(folder.name), int(fields[1]), int(fields[3])
        except (OSError, ValueError, IndexError):
            continue
        yield found
