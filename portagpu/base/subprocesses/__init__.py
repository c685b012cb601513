"""Child processes: a neutral environment, messages with a time limit, no process left behind.

``start`` starts a child, ``channel`` exchanges messages with it, ``call`` runs functions
in a child, and ``end`` ends processes. Imports errors alone.
"""

from __future__ import annotations

from portagpu.base.subprocesses.call import Caller, call, start_caller
from portagpu.base.subprocesses.channel import BrokenMessage, Channel, Subprocess, parent_channel
from portagpu.base.subprocesses.start import run_program

__all__ = [
    "BrokenMessage",
    "Caller",
    "Channel",
    "Subprocess",
    "call",
    "parent_channel",
    "run_program",
    "start_caller",
]
