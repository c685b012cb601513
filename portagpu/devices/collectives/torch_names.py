"""Calls that have new names since torch 2.13, which warns of the old ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    import torch


def all_gather_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - torch's name
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """``all_gather_single``, which is ``all_gather_into_tensor`` before torch 2.13."""
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return call(output, input, group=group, async_op=async_op)


def reduce_scatter_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - torch's name
    op: Any = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """``reduce_scatter_single``, which is ``reduce_scatter_tensor`` before torch 2.13."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return call(output, input, op=op, group=group, async_op=async_op)
