"""The norm of all gradients, wherever their shards are, and gradients scaled to it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch.distributed.device_mesh import DeviceMesh


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    mesh: DeviceMesh | None = None,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """As ``torch.nn.utils.clip_grad_norm_``, over every shard of every gradient.

    torch's own takes shards of one mesh. Here some may be sharded over data-parallel ranks, others
    over tensor-parallel ones too, and others be plain. With ``mesh`` the stages of ``mesh["pp"]``
    count as one model; without it each stage would clip by a norm of its own. Call it after
    ``scaler.unscale_``. Returns the norm before clipping, a scalar, the same on every rank; NaN
    wherever a gradient has NaN.

    Stages must have gradients of one dtype. Raises RuntimeError on every rank with
    ``error_if_nonfinite`` for a norm that is not finite.
    """
    import torch
    from torch.distributed.tensor import DTensor
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    groups: dict[DeviceMesh | None, list[torch.Tensor]] = {}
    for each in given:
        if each.grad is not None:
            on = each.grad.device_mesh if isinstance(each.grad, DTensor) else None
            groups.setdefault(on, []).append(each)
    with torch.no_grad():
        norms = []
        for group in groups.values():
            norm: Any = get_total_norm([each.grad for each in group], norm_type)  # type: ignore[misc]
            norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        total: torch.Tensor
        if norms:
            total = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        else:
            device = given[0].device if given else None
            total = torch.zeros((), device=device)
        if mesh is not None and mesh["pp"].size() > 1:
            total = _over_stages(total.to(mesh.device_type), norm_type, mesh["pp"])
        if error_if_nonfinite and not total.isfinite():
            raise RuntimeError(f"the norm of the gradients is {total.item()}: nothing is clipped")
        for group in groups.values():
            clip_grads_with_norm_(group, max_norm, total)
    return total


def _over_stages(norm: torch.Tensor, kind: float, stages: DeviceMesh) -> torch.Tensor:
    """The norm of the norms of all stages."""
    import torch.distributed as dist

    from portagpu.collectives.helpers import all_reduce_with_nan

    if math.isinf(kind):
        op = dist.ReduceOp.MAX if kind > 0 else dist.ReduceOp.MIN
        all_reduce_with_nan(norm, op, stages.get_group())
        return norm
    share = norm.pow(kind)
    dist.all_reduce(share, group=stages.get_group())
    return share.pow(1 / kind)
