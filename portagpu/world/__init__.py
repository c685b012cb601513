"""Worlds of ranks with hard time limits, for suites and gates.

Ranks fork from one helper process that imported torch and ran nothing, so that a world of eight
starts in a fraction of a second and no rank inherits threads or an open device. A rank that raises,
dies or hangs is named, with the place where it stood; nothing is left running afterwards.
"""

from __future__ import annotations

from portagpu.world.client import RankOutcome, Ranks, RankState, WorldOutcome
from portagpu.world.rank import Rank, load_function

__all__ = [
    "Rank",
    "RankOutcome",
    "RankState",
    "Ranks",
    "WorldOutcome",
    "load_function",
]
