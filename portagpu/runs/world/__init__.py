"""Worlds of ranks with hard time limits, for suites and gates.

Ranks fork from one helper process, which imports torch and runs nothing. So a world of eight starts
in a fraction of a second, and no rank inherits threads or an open device. The outcome names a rank
that raises, dies or hangs, and the place where it stopped. No process is left running.
"""

from __future__ import annotations

from portagpu.runs.world.client import RankOutcome, Ranks, RankState, WorldOutcome
from portagpu.runs.world.rank import Rank, load_function

__all__ = [
    "Rank",
    "RankOutcome",
    "RankState",
    "Ranks",
    "WorldOutcome",
    "load_function",
]
