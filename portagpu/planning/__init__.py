"""Planning a training: the memory of a rank, and which parallel layouts fit and how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.planning.cluster import Cluster as Cluster
    from portagpu.planning.cluster import cluster_of as cluster_of
    from portagpu.planning.memory import estimate as estimate
    from portagpu.planning.memory import kv_cache as kv_cache
    from portagpu.planning.model import MODELS as MODELS
    from portagpu.planning.model import Model as Model
    from portagpu.planning.model import find_model as find_model
    from portagpu.planning.model import read_model as read_model
    from portagpu.planning.plans import Plan as Plan
    from portagpu.planning.plans import Plans as Plans
    from portagpu.planning.plans import Rejected as Rejected
    from portagpu.planning.plans import plan as plan
    from portagpu.planning.recipe import Layout as Layout
    from portagpu.planning.recipe import Precision as Precision
    from portagpu.planning.recipe import Recipe as Recipe
    from portagpu.planning.terms import Estimate as Estimate
    from portagpu.planning.terms import Fit as Fit
    from portagpu.planning.terms import Phase as Phase
    from portagpu.planning.terms import Term as Term
    from portagpu.planning.trackers import Tracked as Tracked
    from portagpu.planning.trackers import track as track
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.planning.cluster": "Cluster cluster_of",
            "portagpu.planning.memory": "estimate kv_cache",
            "portagpu.planning.model": "MODELS Model find_model read_model",
            "portagpu.planning.plans": "Plan Plans Rejected plan",
            "portagpu.planning.recipe": "Layout Precision Recipe",
            "portagpu.planning.terms": "Estimate Fit Phase Term",
            "portagpu.planning.trackers": "Tracked track",
        },
    )
