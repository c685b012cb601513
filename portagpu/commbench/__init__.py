"""Worlds of ranks that run collectives: verify, and the judgement of recorded outputs.

``docs/collectives.md`` explains the results. Importing this package does not import torch.
"""

from __future__ import annotations

from portagpu.commbench.replay import judge_recordings
from portagpu.commbench.tables import tables_of
from portagpu.commbench.verify import SUITE, VerifyOptions, verify

__all__ = ["SUITE", "VerifyOptions", "judge_recordings", "tables_of", "verify"]
