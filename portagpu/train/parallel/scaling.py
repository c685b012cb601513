"""Loss scaling where gradients are in shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    from portagpu.devices.contract import Backend


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

    A rank that finds an infinity makes all ranks of ``group`` (default: all of them) skip the step
    and shrink the scale. A plain ``GradScaler`` looks at this rank's stage of a pipeline alone: the
    stages would then be of different steps, with no error. Split tensors beside whole ones need
    FSDP2 around them (``dp`` may be 1): torch takes no list of both.

    Raises Unsupported where the device does not claim autocast, unless it is not ``enabled``.
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
