"""The JSON of ``portagpu plan``: plain values of plans."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portagpu.train.planning import Plan, Plans, Rejected


def plans_document(plans: Plans) -> dict[str, Any]:
    """All plans of one cluster, and all that were rejected."""
    on = plans.cluster
    return {
        "target": on.target.id,
        "nodes": on.nodes,
        "ranks": on.world,
        "domain": on.domain,
        "memory_bytes": on.memory,
        "nic_gbs": on.nic_gbs,
        "batch": plans.batch,
        "remarks": list(on.remarks),
        "bases": list(plans.bases),
        "ranked": [_plan(each) for each in plans.ranked],
        "rejected": [_rejected(each) for each in plans.rejected],
        "nothing": None if plans.ranked else plans.nothing,
    }


def _plan(found: Plan) -> dict[str, Any]:
    memory = found.memory
    return {
        "layout": asdict(found.layout),
        "recipe": asdict(found.recipe),
        "fit": found.fit,
        "why": found.why,
        "timing": None if found.timing is None else asdict(found.timing),
        "memory": {
            "phase": memory.phase,
            "least": memory.least,
            "expected": memory.expected,
            "most": memory.most,
            "terms": [asdict(each) for each in memory.terms],
            "host": [asdict(each) for each in memory.host],
            "remarks": list(memory.remarks),
        },
    }


def _rejected(each: Rejected) -> dict[str, Any]:
    return {
        "layout": asdict(each.layout),
        "micro_batch": each.recipe.micro_batch,
        "recompute": each.recipe.recompute,
        "rule": each.rule,
        "why": each.why,
    }
