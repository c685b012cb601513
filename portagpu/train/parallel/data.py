"""Data parallelism: DDP, FSDP2, and gradients that accumulate without being reduced."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from portagpu.train.parallel.layout import layers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    from portagpu.devices.contract import Backend
    from portagpu.train.parallel.layout import Layers


_HELD: Final[WeakSet[Any]] = WeakSet()
"""The FSDP2 modules that are in a block of ``no_sync``: torch does not tell."""


def replicate(
    model: nn.Module, mesh: DeviceMesh, *, gpu: Backend | None = None
) -> DistributedDataParallel:
    """torch's DDP over ``mesh["dp"]``, with the arguments that ``gpu`` needs.

    Every rank keeps the whole model; gradients are averaged. Raises ValueError for a model on
    another type of device than ``mesh``, and for one that is wrapped, sharded or split already.
    """
    from torch.distributed.tensor import DTensor
    from torch.nn.parallel import DistributedDataParallel

    from portagpu.devices.registry import backend

    _check_not_parallel(model, [model])
    if any(isinstance(each, DTensor) for each in model.parameters()):
        raise ValueError("DDP takes no split tensors: take shard")
    kinds = {each.device.type for each in model.parameters()} - {mesh.device_type}
    if kinds:
        raise ValueError(
            f"the model is on {min(kinds)}, and the mesh on {mesh.device_type}: "
            "move it first, model.to(portagpu.device())"
        )
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
    parameters are other objects.

    Raises ValueError for a class of which the model has no layer, for a model that is wrapped or
    sharded already, for layers that share a parameter, and for ``offload`` where the device is the
    CPU.
    """
    import torch
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )

    if compute is not None and not isinstance(compute, torch.dtype):
        raise ValueError(f"compute is a dtype, as torch.bfloat16, not {compute!r}")
    if offload and mesh.device_type == "cpu":
        raise ValueError("the mesh is on the CPU, where nothing is to be offloaded")
    chosen = layers_of(model, layers)
    _check_not_parallel(model, chosen)
    _check_not_shared(model, chosen)
    reduced = torch.float32 if compute in (torch.bfloat16, torch.float16) else None
    mixed = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduced)
    # a layer inside another one comes first
    for each in [*reversed(chosen), model]:
        fully_shard(
            each,
            mesh=mesh["dp"],
            reshard_after_forward=reshard_after_forward,
            mp_policy=mixed,
            offload_policy=CPUOffloadPolicy() if offload else OffloadPolicy(),
        )
    return model  # type: ignore[return-value]  # fully_shard has made it one


def _check_not_parallel(model: nn.Module, layers: Sequence[nn.Module]) -> None:
    """Raise ValueError where torch would reduce gradients twice, or fail in its own words."""
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    if any(isinstance(each, DistributedDataParallel) for each in model.modules()):
        raise ValueError("the model is wrapped by DDP already: give the one inside, model.module")
    if any(isinstance(each, FSDPModule) for each in (model, *layers)):
        raise ValueError("the model is sharded by FSDP2 already")


def _check_not_shared(model: nn.Module, layers: Sequence[nn.Module]) -> None:
    """Raise ValueError where a parameter is in two layers, or in one and in the rest of the model.

    FSDP2 would gather and reduce it twice: torch 2.13 refuses it in the middle of its work, and
    older ones give wrong gradients (pytorch/pytorch#176076).
    """
    innermost = {id(inner): each for each in layers for inner in each.modules()}
    owners: dict[int, tuple[str, nn.Module]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        owner = innermost.get(id(module), model)
        for key, each in module.named_parameters(recurse=False, remove_duplicate=False):
            path = f"{name}.{key}".lstrip(".")
            first, other = owners.setdefault(id(each), (path, owner))
            if other is not owner:
                raise ValueError(
                    f"{first} and {path} are one parameter: give layers= the class of others, "
                    "so that both are in the rest of the model"
                )


@contextmanager
def no_sync(model: nn.Module, enabled: bool = True) -> Iterator[None]:
    """A block in which backward reduces no gradients of ``model``, be it DDP, FSDP2 or neither.

    For accumulation: all micro-batches but the last run in it, forward and backward::

        for index, (inputs, targets) in enumerate(parts):
            with pg.parallel.no_sync(model, enabled=index + 1 < len(parts)):
                (loss(model(inputs), targets) / len(parts)).backward()

    The result is the same as with a reduction for each, but for the order of additions. Under DDP
    ``.grad`` is the rank's own until then. Under FSDP2 it is None, and each rank holds gradients of
    the whole model meanwhile. A pipeline's schedule does all this itself. Blocks in one another are
    as one.
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
            elif isinstance(each, FSDPModule) and each not in _HELD:
                _HELD.add(each)
                stack.callback(_HELD.discard, each)
                stack.callback(each.set_requires_gradient_sync, True, recurse=False)
                each.set_requires_gradient_sync(False, recurse=False)
        yield
