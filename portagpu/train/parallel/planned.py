"""A plan's settings, applied to a model with torch's parts."""

from __future__ import annotations

import warnings
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Final

from portagpu.train.parallel.data import replicate, shard
from portagpu.train.parallel.layout import layers_of
from portagpu.train.parallel.recompute import recompute

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

    from portagpu.devices.contract import Backend
    from portagpu.train.parallel.layout import Layers
    from portagpu.train.planning import Recipe

SHARDINGS: Final = ("ddp", "fsdp2")
PRECISIONS: Final = ("fp32", "autocast-bf16")


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
    ``gpu.autocast`` around forward. With a plan of :func:`portagpu.train.planning.plan`::

        found = pg.planning.plan(...).best
        mesh = pg.parallel.mesh(found.layout)
        model = pg.parallel.apply(found.recipe, model, mesh, layers=Block)

    Raises ValueError for what a plan may say and torch's parts here do not do: ZeRO by stages, fp8,
    16-bit weights with a copy, an offloaded optimiser alone, DDP over split tensors; where ``mesh``
    splits tensors and there is no ``tensor_plan``; and where a key of it is no module's name (with
    a pipeline another stage may have that module) or it would split one of two shared parameters.
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
    if recipe.sharding not in SHARDINGS:
        raise ValueError(f"torch shards by {' or '.join(SHARDINGS)}, not by {recipe.sharding}")
    if recipe.precision not in PRECISIONS:
        raise ValueError(f"precision is {' or '.join(PRECISIONS)} here, not {recipe.precision}")
    if recipe.offload == "optimizer" or (recipe.offload != "none" and recipe.sharding == "ddp"):
        raise ValueError("FSDP2 offloads parameters and all that is theirs, and nothing else does")
    if mesh["tp"].size() > 1:
        if not tensor_plan:
            raise ValueError("the mesh splits tensors: give the tensor_plan of the model's layers")
        if recipe.sharding == "ddp" and mesh["dp"].size() > 1:
            raise ValueError("DDP takes no split tensors: take fsdp2, or dp=1")
