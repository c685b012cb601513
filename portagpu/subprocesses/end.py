"""Ending processes and what they left behind (Linux: ``prctl(2)``, ``waitid(2)``, ``proc(5)``)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
MARK: Final = "PORTAGPU_PROCESS"
"""The variable by which what a child started is found after it left the child's session."""
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


def end_strays(limit_s: float = 2.0) -> None:
    """End processes that ranks left behind. The server is their subreaper, so their parent."""
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


def new_mark() -> str:
    """The value of ``MARK`` for a child: what it starts inherits it, in whatever session."""
    return secrets.token_hex(16)


def end_marked(mark: str, session: int | None = None) -> None:
    """End every process with that mark in its environment, and those of a session.

    One that is blocked in the kernel, or that emptied its environment and left the session, stays.
    """
    for _ in range(_PASSES):
        # what it starts meanwhile has the mark as well
        found = [
            pid for pid, _, its in _processes() if its == session or mark in _environment_of(pid)
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


def children_of(process: int) -> list[int]:
    """The visible processes with that parent."""
    return [pid for pid, parent, _ in _processes() if parent == process]


def stat_fields(folder: Path) -> list[str]:
    """What ``/proc/PID/stat`` states after the name: state, parent, group, session and so on."""
    # the name stands in parentheses and may hold spaces
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _processes() -> Iterator[tuple[int, int, int]]:
    """(process, parent, session) of every visible process that has not ended."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = stat_fields(folder)
            found = int(folder.name), int(fields[1]), int(fields[3])
        except (OSError, ValueError, IndexError):
            continue
        if fields[0] not in "ZX":
            yield found
