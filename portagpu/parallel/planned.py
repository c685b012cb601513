"""A plan's settings, applied to a model with torch's parts."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

from portagpu.parallel.data import replicate, shard
from portagpu.parallel.recompute import recompute

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

    from portagpu.contract import Backend
    from portagpu.parallel.layout import Layers
    from portagpu.planning import Recipe

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
    ``gpu.autocast`` around forward. With a plan of :func:`portagpu.planning.plan`::

        found = pg.planning.plan(...).best
        mesh = pg.parallel.mesh(found.layout)
        model = pg.parallel.apply(found.recipe, model, mesh, layers=Block)

    Raises ValueError for what a plan may say and torch's parts here do not do: ZeRO by stages, fp8,
    16-bit weights with a copy, an offloaded optimiser alone, DDP over split tensors; and where
    ``mesh`` splits tensors and there is no ``tensor_plan``.
    """
    _check(recipe, mesh, tensor_plan)
    if mesh["tp"].size() > 1:
        from torch.distributed.tensor.parallel import parallelize_module

        with warnings.catch_warnings():
            # of keys that one of the layers, or all of a stage's, do not have
            warnings.filterwarnings("ignore", "Parallelize plan key", UserWarning)
            model = parallelize_module(model, mesh["tp"], dict(tensor_plan or {}))
    recompute(model, layers, recipe.recompute)
    if recipe.sharding == "fsdp2":
        offload = recipe.offload == "parameters"
        return shard(model, mesh, layers, compute=_compute(recipe), offload=offload)  # type: ignore[return-value]
    return replicate(model, mesh, gpu=gpu) if mesh["dp"].size() > 1 else model


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
