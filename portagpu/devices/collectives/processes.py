"""What a rank sees of the process of another rank: whether it has ended, is stopped or goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from portagpu.base.patience import stat_fields

_PROC: Final = Path("/proc")
_STATE: Final = 0
_START: Final = 19
"""Field 22 of ``/proc/PID/stat``, in ticks since the boot."""


def own_process(proc: Path = _PROC) -> tuple[str, int]:
    """(pid namespace, start time) of this process. Raises OSError where ``/proc`` has it not."""
    if (proc / "self").readlink().name != str(os.getpid()):
        raise FileNotFoundError(f"{proc} shows the processes of another namespace")
    return str((proc / "self/ns/pid").readlink()), int(stat_fields(proc / "self")[_START])


def is_lost(pid: int, started: int, proc: Path = _PROC) -> bool | None:
    """Whether a process of this pid namespace has ended or is stopped; None if that is not known.

    ``started`` is its start time: a later process may have its number.
    """
    try:
        fields = stat_fields(proc / str(pid))
        return int(fields[_START]) != started or fields[_STATE] in "ZXxTt"
    except (FileNotFoundError, ProcessLookupError):
        # /proc may hide the processes of other users (hidepid)
        return True if not _exists(pid) else None
    except (OSError, ValueError, IndexError):
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
