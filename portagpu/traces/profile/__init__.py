"""Runs a command under a profiler, and says what was captured. Importing it imports nothing heavy.

- ``choice``: the profilers of all vendors and torch's, and which one runs.
- ``start``: torch's profiler and notes, started inside the processes of the command.
- ``judge``: what the processes noted, whether each rank was captured, and why not.
- ``engine``: which commands can be profiled, and the run.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
