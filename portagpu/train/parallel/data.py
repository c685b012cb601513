"""Replicated and sharded modules, and what scales and clips their gradients."""

from __future__ import annotations

import math
import warnings
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from portagpu.train.parallel.layout import layers_of, recompute

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ParallelStyle
    from torch.nn.parallel import DistributedDataParallel

    from portagpu.devices.contract import Backend
    from portagpu.train.parallel.layout import Layers
    from portagpu.train.planning import Recipe


_HELD: Final[WeakSet[Any]] = WeakSet()
"""The FSDP2 modules in a block of ``no_sync``: torch does not say which they are."""


def replicate(
    model: nn.Module, mesh: DeviceMesh, *, gpu: Backend | None = None
) -> DistributedDataParallel:
    """torch's DDP over ``mesh["dp"]``, with the arguments that ``gpu`` needs.

    Every rank keeps the whole model; gradients are averaged.

    :param model: a module on the mesh's type of device
    :param mesh: the mesh of :func:`~portagpu.parallel.mesh`
    :param gpu: the backend of the model's device; by default the current one
    :returns: the wrapped model
    :raises ValueError: for a model on another type of device than ``mesh``, and for one that is
        wrapped, sharded or split already
    """
    from torch.distributed.tensor import DTensor
    from torch.nn.parallel import DistributedDataParallel

    from portagpu.devices.registry import backend

    _check_not_parallel(model, [model])
    if any(isinstance(each, DTensor) for each in model.parameters()):
        raise ValueError("DDP does not take split tensors: use portagpu.parallel.shard")
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

    Split tensors (``parallelize_module``) and recompute before it. Make the optimiser after it: its
    parameters are other objects. Gradients are reduced in float32, and parameters keep their dtype.

    :param model: a module, or one stage of it
    :param mesh: the mesh of :func:`~portagpu.parallel.mesh`
    :param layers: the class of the layers that are gathered one at a time, or a tuple of classes;
        by default the model's children. Sharding only the whole model would gather all of it at
        once
    :param compute: the dtype of products, in which parameters are gathered; by default their own
    :param reshard_after_forward: as torch's
    :param offload: whether parameters, gradients and the optimiser's state are in the host's memory
    :returns: ``model``
    :raises ValueError: for a class of which the model has no layer, for a model that is wrapped or
        sharded already, for layers that share a parameter, and for ``offload`` on a CPU
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
    the whole model meanwhile. A pipeline's schedule does all this itself. Nested blocks are as one.

    :param model: the module, with all DDP and FSDP2 modules inside of it.
    :param enabled: False is a block that changes nothing.
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


APPLIED_SHARDINGS: Final = ("ddp", "fsdp2")
APPLIED_PRECISIONS: Final = ("fp32", "autocast-bf16")


def apply(
    recipe: Recipe,
    model: nn.Module,
    mesh: DeviceMesh,
    *,
    layers: Layers | None = None,
    tensor_plan: Mapping[str, ParallelStyle] | None = None,
    gpu: Backend | None = None,
) -> nn.Module:
    """``model``, or one stage of it, made parallel over ``mesh`` as ``recipe`` says.

    In the order that torch needs: tensors are split by ``tensor_plan`` (torch's
    ``parallelize_module``) over ``mesh["tp"]``, layers recompute, and the result is sharded by
    FSDP2 or wrapped by DDP over ``mesh["dp"]``. Under DDP "autocast-bf16" is left to
    ``gpu.autocast`` around forward. With a plan of :func:`portagpu.planning.plan`::

        found = pg.planning.plan(...).best
        mesh = pg.parallel.mesh(found.layout)
        model = pg.parallel.apply(found.recipe, model, mesh, layers=Block)

    :param recipe: the recipe of a plan, or one of your own
    :param model: a module, or one stage of it
    :param mesh: the mesh of :func:`~portagpu.parallel.mesh`
    :param layers: the class of the layers, or a tuple of classes; by default the model's children
    :param tensor_plan: torch's styles by the names of modules, where ``mesh`` splits tensors
    :param gpu: the backend of the model's device; by default the current one
    :returns: ``model``, or DDP around it
    :raises ValueError: for what torch's parts do not do: ZeRO by stages, fp8, 16-bit weights with a
        copy, an offloaded optimiser alone, DDP over split tensors; for a missing ``tensor_plan``,
        for a key of it that is not the name of a module (in a pipeline another stage may have it),
        and if it splits one of two shared parameters
    """
    _check(recipe, mesh, tensor_plan)
    layers_of(model, layers)
    if mesh["tp"].size() > 1:
        from torch.distributed.tensor.parallel import parallelize_module

        if mesh["pp"].size() == 1:
            _check_keys(model, tensor_plan or {})
        with warnings.catch_warnings():
            # of keys that one of the layers, or all of a stage's, do not have
            warnings.filterwarnings("ignore", "Parallelize plan key", UserWarning)
            shared = _sharing(model)
            model = parallelize_module(model, mesh["tp"], dict(tensor_plan or {}))
        if _sharing(model) != shared:
            raise ValueError("the tensor_plan splits one of two modules that share a parameter")
    recompute(model, layers, recipe.recompute)
    if recipe.sharding == "fsdp2":
        offload = recipe.offload == "parameters"
        return shard(model, mesh, layers, compute=_compute(recipe), offload=offload)  # type: ignore[return-value]
    return replicate(model, mesh, gpu=gpu) if mesh["dp"].size() > 1 else model


def _sharing(model: nn.Module) -> int:
    """How many names of parameters are second names."""
    names = [*model.named_parameters(remove_duplicate=False)]
    return len(names) - len({id(each) for _, each in names})


def _check_keys(model: nn.Module, tensor_plan: Mapping[str, object]) -> None:
    """Raise ValueError for a key that names no module, by which torch splits nothing."""
    names = [name.split(".") for name, _ in model.named_modules()]
    for key in tensor_plan:
        words = key.split(".")
        if not any(len(words) == len(name) and all(map(fnmatch, name, words)) for name in names):
            raise ValueError(f"the model has no module {key!r}, which the tensor_plan names")


def _compute(recipe: Recipe) -> torch.dtype | None:
    import torch

    return torch.bfloat16 if recipe.precision == "autocast-bf16" else None


def _check(recipe: Recipe, mesh: DeviceMesh, tensor_plan: object) -> None:
    if recipe.sharding not in APPLIED_SHARDINGS:
        known = " or ".join(APPLIED_SHARDINGS)
        raise ValueError(f"apply takes a recipe with sharding {known}, not {recipe.sharding}")
    if recipe.precision not in APPLIED_PRECISIONS:
        known = " or ".join(APPLIED_PRECISIONS)
        raise ValueError(f"apply takes a recipe with precision {known}, not {recipe.precision}")
    if recipe.offload == "optimizer" or (recipe.offload != "none" and recipe.sharding == "ddp"):
        raise ValueError(
            "only FSDP2 offloads, and it offloads parameters: plan with fsdp2 and parameters"
        )
    if mesh["tp"].size() > 1:
        if not tensor_plan:
            raise ValueError("the mesh splits tensors: give the tensor_plan of the model's layers")
        if recipe.sharding == "ddp" and mesh["dp"].size() > 1:
            raise ValueError("DDP does not take split tensors: use fsdp2, or dp=1")


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
