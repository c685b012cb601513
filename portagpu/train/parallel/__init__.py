"""Training on several ranks with torch's own parts, the same on every backend.

Each function configures what torch has and returns torch's objects: ``DeviceMesh``, DDP, FSDP2
modules, schedules of pipelines, ``ShardedGradScaler``. There is a function only where backends
differ, or where the plain call is easily made wrong. Each is a collective call: all ranks make it.
"""

from __future__ import annotations

from portagpu.train.parallel.checkpoint import Loaded, latest, load, save
from portagpu.train.parallel.data import (
    apply,
    clip_grad_norm_,
    grad_scaler,
    no_sync,
    replicate,
    shard,
)
from portagpu.train.parallel.layout import mesh, recompute, schedule, split

__all__ = [
    "Loaded",
    "apply",
    "clip_grad_norm_",
    "grad_scaler",
    "latest",
    "load",
    "mesh",
    "no_sync",
    "recompute",
    "replicate",
    "save",
    "schedule",
    "shard",
    "split",
]
