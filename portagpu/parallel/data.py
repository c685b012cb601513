"""Data parallelism: DDP, FSDP2, and gradients that accumulate without being reduced."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from portagpu.parallel.layout import layers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    from portagpu.contract import Backend
    from portagpu.parallel.layout import Layers


def replicate(
    model: nn.Module, mesh: DeviceMesh, *, gpu: Backend | None = None
) -> DistributedDataParallel:
    """torch's DDP over ``mesh["dp"]``, with the arguments that ``gpu`` needs.

    Every rank keeps the whole model; gradients are averaged.
    """
    from torch.nn.parallel import DistributedDataParallel

    from portagpu.registry import backend

    comm = (gpu or backend()).comm
    return DistributedDataParallel(
        model, device_ids=comm.device_ids, process_group=mesh["dp"].get_group()
    )


def shard(
    model: nn.Module,
    mesh: DeviceMesh,
    layers: Layers | None = None,
    *,
    compute: torch.dtype | None = None,
    reshard_after_forward: bool | None = None,
    offload: bool = False,
) -> FSDPModule:
    """``model`` itself, sharded by torch's FSDP2 over ``mesh["dp"]``: each layer, then the rest.

    ``layers`` is the class of the layers that are gathered one at a time, by default the model's
    children: sharding only the whole model would gather all of it at once. ``compute`` is the dtype
    of products, in which parameters are gathered; gradients are reduced in float32, and parameters
    keep their own dtype. ``reshard_after_forward`` is torch's. ``offload`` keeps parameters,
    gradients and the optimiser's state in the host's memory.

    Split tensors (``parallelize_module``) and recompute before it. Make the optimiser after it: its
    parameters are other objects. Raises ValueError for a class of which the model has no layer.
    """
    import torch
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )

    reduced = torch.float32 if compute in (torch.bfloat16, torch.float16) else None
    mixed = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduced)
    for each in [*layers_of(model, layers), model]:
        fully_shard(
            each,
            mesh=mesh["dp"],
            reshard_after_forward=reshard_after_forward,
            mp_policy=mixed,
            offload_policy=CPUOffloadPolicy() if offload else OffloadPolicy(),
        )
    return model  # type: ignore[return-value]  # fully_shard has made it one


@contextmanager
def no_sync(model: nn.Module, enabled: bool = True) -> Iterator[None]:
    """A block in which backward reduces no gradients of ``model``, be it DDP, FSDP2 or neither.

    For accumulation: all micro-batches but the last run in it, forward and backward::

        for index, (inputs, targets) in enumerate(parts):
            with pg.parallel.no_sync(model, enabled=index + 1 < len(parts)):
                (loss(model(inputs), targets) / len(parts)).backward()

    The result is the same as with a reduction for each, but for the order of additions. Under DDP
    ``.grad`` is the rank's own until then. Under FSDP2 it is None, and each rank holds gradients of
    the whole model meanwhile. A pipeline's schedule does all this itself.
    """
    if not enabled:
        yield
        return
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    with ExitStack() as stack:
        for each in model.modules():
            if isinstance(each, DistributedDataParallel):
                stack.enter_context(each.no_sync())
            elif isinstance(each, FSDPModule):
                stack.callback(each.set_requires_gradient_sync, True, recurse=False)
                each.set_requires_gradient_sync(False, recurse=False)
        yield
