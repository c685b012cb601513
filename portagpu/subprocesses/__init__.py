"""Child processes: a neutral environment, messages with a time limit, no process left behind.

``start`` starts a child, ``channel`` exchanges messages with it, ``call`` runs one function in a
child, and ``end`` ends processes. Imports errors alone.
"""

from __future__ import annotations

from portagpu.subprocesses.call import call
from portagpu.subprocesses.channel import BrokenMessage, Channel, Subprocess, parent_channel
from portagpu.subprocesses.start import run_program

__all__ = ["BrokenMessage", "Channel", "Subprocess", "call", "parent_channel", "run_program"]
