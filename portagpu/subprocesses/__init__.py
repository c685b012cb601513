"""Child processes: started with a neutral environment, asked with a time limit, ended in full.

``start`` says how a child is started, ``channel`` what parent and child say to each other, ``call``
runs one function in a child, and ``end`` leaves no process behind. Imports errors alone.
"""

from __future__ import annotations

from portagpu.subprocesses.call import call
from portagpu.subprocesses.channel import Channel, Subprocess, parent_channel
from portagpu.subprocesses.start import run_program

__all__ = ["Channel", "Subprocess", "call", "parent_channel", "run_program"]
