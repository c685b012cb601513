"""Runs a command under a profiler, and says what was captured. Importing it imports nothing heavy.

- ``command``: what a command starts, and which commands are refused.
- ``choice``: the profilers of all vendors and torch's, and which one runs.
- ``torch_profiler``, ``start``: torch's profiler, started inside the command's processes.
- ``notes``: what the command's processes say of themselves.
- ``judge``: whether each rank was captured, and why not.
- ``engine``: the run.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
