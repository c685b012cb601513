"""Runs a command under a profiler, and says what was captured. Importing it imports nothing heavy.

- ``command``: what a command starts, and which commands are refused.
- ``choice``: the profilers of all vendors and torch's, and which one runs.
- ``torch_profiler``, ``start``: torch's profiler, started inside the command's processes.
- ``notes``: what the command's processes say of themselves.
- ``judge``: whether each rank was captured, and why not.
- ``engine``: the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.profile.engine import Plan as Plan
    from portagpu.profile.engine import ProfileOptions as ProfileOptions
    from portagpu.profile.engine import make_plan as make_plan
    from portagpu.profile.engine import profile as profile
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.profile.engine": "Plan ProfileOptions make_plan profile",
        },
    )
