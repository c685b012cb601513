"""Training on several ranks with torch's own parts, the same on every backend.

Each function configures what torch has and returns torch's objects: ``DeviceMesh``, DDP, FSDP2
modules, schedules of pipelines, ``ShardedGradScaler``. There is a function only where backends
differ, or where the plain call is easily made wrong. Each is a collective call: all ranks make it.
"""

from __future__ import annotations

from portagpu.parallel.checkpoint import Loaded, latest, load, save
from portagpu.parallel.clipping import clip_grad_norm_
from portagpu.parallel.data import no_sync, replicate, shard
from portagpu.parallel.layout import mesh
from portagpu.parallel.pipeline import schedule, split
from portagpu.parallel.planned import apply
from portagpu.parallel.recompute import recompute
from portagpu.parallel.scaling import grad_scaler

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
