"""Runs a command under a profiler, and says what was captured. Importing it imports nothing heavy.

- ``command``: what a command starts, and which commands are refused.
- ``choice``: the profilers of all vendors and torch's, and which one runs.
- ``torch_profiler``, ``start``: torch's profiler, started inside the command's processes.
- ``notes``: what the command's processes say of themselves.
- ``judge``: whether each rank was captured, and why not.
- ``engine``: the run.
"""

from __future__ import annotations

from portagpu.profile.engine import Plan, ProfileOptions, make_plan, profile

__all__ = ["Plan", "ProfileOptions", "make_plan", "profile"]
