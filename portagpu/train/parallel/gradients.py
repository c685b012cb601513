"""Clipping and loss scaling of gradients whose shards are on several ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
    from torch.distributed.tensor import DTensor

    from portagpu.devices.contract import Backend


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
    over tensor-parallel ones too, and others be plain. Call it after ``scaler.unscale_``. Stages
    may differ in dtype, and one may have no gradient at all: norms are added in float64, which the
    result then is.

    :param parameters: one parameter, or several
    :param max_norm: the norm to which the gradients are scaled down, 0 or more
    :param norm_type: the p of the p-norm, which may be ``inf`` and not 0
    :param mesh: the mesh, so that the stages of ``mesh["pp"]`` count as one model; without it each
        stage clips by a norm of its own
    :param error_if_nonfinite: whether a norm that is not finite is an error
    :returns: the norm before clipping, shape (), the same on every rank; NaN if a gradient has NaN
    :raises ValueError: for ``max_norm`` below 0 and ``norm_type`` 0
    :raises RuntimeError: on every rank, with ``error_if_nonfinite``
    """
    import torch
    from torch.distributed.tensor import DTensor
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    kind = float(norm_type)
    if not max_norm >= 0 or math.isnan(kind) or kind == 0:
        raise ValueError(
            f"max_norm is 0 or more and norm_type not 0, not {max_norm!r} and {norm_type!r}"
        )
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    groups: dict[DeviceMesh | None, list[torch.Tensor]] = {}
    for each in given:
        if each.grad is not None:
            on = each.grad.device_mesh if isinstance(each.grad, DTensor) else None
            groups.setdefault(on, []).append(each)
    with torch.no_grad():
        norms: list[torch.Tensor] = []
        for on, group in groups.items():
            grads: Any = [each.grad for each in group]
            if on is not None and math.isinf(kind):
                norms.append(_extreme(grads, kind, on))
                continue
            norm: Any = get_total_norm(grads, kind)
            norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        total: torch.Tensor
        if norms:
            total = torch.linalg.vector_norm(torch.stack(norms), kind)
        else:
            device = given[0].device if given else None
            total = torch.zeros((), device=device)
        if mesh is not None and mesh["pp"].size() > 1:
            total = _over_stages(total.to(mesh.device_type), kind, mesh["pp"])
        if error_if_nonfinite and not total.isfinite():
            raise RuntimeError(f"the norm of the gradients is {total.item()}: nothing is clipped")
        for group in groups.values():
            clip_grads_with_norm_(group, max_norm, total)
    return total


def _extreme(grads: list[DTensor], kind: float, mesh: DeviceMesh) -> torch.Tensor:
    """The greatest absolute number of shards, or the least where ``kind`` is -inf.

    torch's own fails on the rank whose shards are empty while the others wait for it, and loses
    NaN of another rank.
    """
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate
    from torch.nn.utils import get_total_norm

    from portagpu.devices.collectives.helpers import all_reduce_with_nan

    shards = []
    for each in grads:
        summed = [Replicate() if place.is_partial() else place for place in each.placements]
        shards.append(each.redistribute(placements=summed).to_local())
    some = [each for each in shards if each.numel()]
    none = 0.0 if kind > 0 else math.inf
    norm = get_total_norm(some, kind) if some else shards[0].new_full((), none)
    op = dist.ReduceOp.MAX if kind > 0 else dist.ReduceOp.MIN
    for dimension in range(mesh.ndim):
        all_reduce_with_nan(norm, op, mesh.get_group(dimension))
    return norm


def _over_stages(norm: torch.Tensor, kind: float, stages: DeviceMesh) -> torch.Tensor:
    """The norm of the norms of all stages.

    In float64 on every rank: a collective of two dtypes ends the process under Gloo, and squares of
    16 bits overflow.
    """
    import torch
    import torch.distributed as dist

    from portagpu.devices.collectives.helpers import all_reduce_with_nan

    share = norm.to(torch.float64, copy=True)
    if math.isinf(kind):
        op = dist.ReduceOp.MAX if kind > 0 else dist.ReduceOp.MIN
        all_reduce_with_nan(share, op, stages.get_group())
        return share
    share = share.pow(kind)
    dist.all_reduce(share, group=stages.get_group())
    return share.pow(1 / kind)


def grad_scaler(
    gpu: Backend | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    init_scale: float = 2.0**16,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
    enabled: bool = True,
) -> ShardedGradScaler:
    """torch's ``ShardedGradScaler``, with ``GradScaler``'s options, for ``gpu``'s device.

    A rank that finds an infinity makes all ranks of ``group`` skip the step and shrink the scale. A
    plain ``GradScaler`` looks at this rank's stage of a pipeline alone: the stages would then be of
    different steps, with no error. Split tensors next to whole ones need FSDP2 around them (``dp``
    may be 1): torch does not take a list of both.

    :param gpu: the backend of the gradients' device; by default the current one
    :param group: the ranks that skip together; by default all
    :param init_scale: the first scale
    :param growth_factor: what the scale is multiplied by after ``growth_interval`` good steps
    :param backoff_factor: what the scale is multiplied by after a step that is skipped
    :param growth_interval: good steps in a row before the scale grows
    :param enabled: whether it scales at all
    :returns: a scaler, used as torch's
    :raises Unsupported: for a device that does not claim autocast, if ``enabled``
    """
    import torch.distributed as dist
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    from portagpu.devices.registry import backend

    gpu = gpu or backend()
    gpu.GradScaler(enabled=enabled)
    return ShardedGradScaler(
        gpu.device.type,
        init_scale=init_scale,
        backoff_factor=backoff_factor,
        growth_factor=growth_factor,
        growth_interval=growth_interval,
        enabled=enabled,
        process_group=dist.group.WORLD if group is None else group,
    )
