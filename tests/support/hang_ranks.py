"""Ranks whose collectives hang or do not fit, each of which dumps its flight recorder."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

NAP_S = 0.5


def plant(rank, *, kind, folder):
    """Two good collectives, then the fault ``kind``; writes ``folder``/rank_N and rank_N.json."""
    me, n = rank.rank, rank.world
    rank.broke_group = True
    groups = [dist.new_group([0, 1]), dist.new_group(list(range(n)))]
    for _ in range(2):
        dist.all_reduce(torch.ones(4))
    pending = _fault(kind, me, n, groups)
    # a collective that ends does so at once; one that hangs is dumped while it does
    time.sleep(NAP_S)  # allowed: it is slow
    target = Path(folder)
    (target / f"rank_{me}").write_bytes(c10d._dump_fr_trace())
    (target / f"rank_{me}.json").write_bytes(c10d._dump_fr_trace_json())
    return len(pending)


def _fault(kind, me, n, groups):
    last = me == n - 1
    if kind == "fine":
        dist.barrier()
        return []
    if kind == "missing":
        return [] if last else [dist.all_reduce(torch.ones(4), async_op=True)]
    if kind == "timeout":
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
        if not last:
            with contextlib.suppress(RuntimeError):
                dist.all_reduce(torch.ones(4))
        return []
    if kind == "subgroup":
        return [] if last else [dist.all_reduce(torch.ones(4), group=groups[1], async_op=True)]
    if kind == "op":
        if last:
            return [dist.broadcast(torch.ones(4), 0, async_op=True)]
        return [dist.all_reduce(torch.ones(4), async_op=True)]
    if kind == "shape":
        return [dist.all_reduce(torch.ones(5 if last else 4), async_op=True)]
    if kind == "dtype":
        # of one size: Gloo ends a rank that receives more bytes than it expects
        kinds = torch.int32 if last else torch.float32
        return [dist.all_reduce(torch.ones(4, dtype=kinds), async_op=True)]
    if kind == "root":
        return [dist.broadcast(torch.ones(4), 1 if last else 0, async_op=True)]
    if kind == "group":
        group = groups[1] if last else None
        return [dist.all_reduce(torch.ones(4), group=group, async_op=True)]
    if kind == "pair":
        if me < 2:
            return [dist.all_reduce(torch.ones(2), group=groups[0], async_op=True)] if me else []
        return []
    raise ValueError(kind)
