"""Planning a training: the memory of a rank, and which parallel layouts fit and how fast."""

from __future__ import annotations

from portagpu.planning.cluster import Cluster, cluster_of
from portagpu.planning.memory import estimate, kv_cache
from portagpu.planning.model import MODELS, Model, find_model, read_model
from portagpu.planning.plans import Plan, Plans, Rejected, plan
from portagpu.planning.recipe import Layout, Precision, Recipe
from portagpu.planning.terms import Estimate, Fit, Phase, Term
from portagpu.planning.trackers import Tracked, track

__all__ = [
    "MODELS",
    "Cluster",
    "Estimate",
    "Fit",
    "Layout",
    "Model",
    "Phase",
    "Plan",
    "Plans",
    "Precision",
    "Recipe",
    "Rejected",
    "Term",
    "Tracked",
    "cluster_of",
    "estimate",
    "find_model",
    "kv_cache",
    "plan",
    "read_model",
    "track",
]
