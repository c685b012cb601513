"""Worlds of ranks that run collectives: verify, tune, and the judgement of recorded outputs.

``docs/collectives.md`` explains the results. Importing this package does not import torch.
"""

from __future__ import annotations

from portagpu.commbench.replay import judge_recordings
from portagpu.commbench.sweep import SUITE
from portagpu.commbench.tables import tables_of
from portagpu.commbench.tune import TuneOptions, profile_of, tune
from portagpu.commbench.verify import VerifyOptions, verify

__all__ = [
    "SUITE",
    "TuneOptions",
    "VerifyOptions",
    "judge_recordings",
    "profile_of",
    "tables_of",
    "tune",
    "verify",
]
