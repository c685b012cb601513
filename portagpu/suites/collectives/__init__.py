"""Worlds of ranks that run collectives: verify, tune, and the judgement of recorded outputs.

``docs/collectives.md`` explains the results. Importing this package does not import torch.
"""

from __future__ import annotations

from portagpu.suites.collectives.replay import judge_recordings, tables_of
from portagpu.suites.collectives.tune import TuneOptions, profile_of, tune
from portagpu.suites.collectives.verify import SUITE, VerifyOptions, verify

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
