"""The mesh of a run, the layers of a model, and which of them backward computes again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.train.planning.recipe import RECOMPUTES

if TYPE_CHECKING:
    from torch import nn


if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from portagpu.devices.contract import Backend
    from portagpu.train.planning import Layout

    Layers = type[nn.Module] | tuple[type[nn.Module], ...]

DIMENSIONS: Final = ("pp", "dp", "tp")
"""Outermost first: ranks of a tensor-parallel group are neighbours, so they share a machine."""


def mesh(
    layout: Layout | None = None,
    *,
    dp: int | None = None,
    tp: int = 1,
    pp: int = 1,
    gpu: Backend | None = None,
) -> DeviceMesh:
    """torch's mesh of all ranks, [pp, dp, tp], with these names.

    Join the ranks first: ``gpu.comm.init()``. ``mesh["dp"]`` is what the functions of one dimension
    take. Each dimension is there, also where its size is 1.

    :param layout: a plan's layout, in place of the sizes
    :param dp: ranks of data parallelism; by default what ``tp`` and ``pp`` leave of the world
    :param tp: ranks of tensor parallelism
    :param pp: stages of a pipeline
    :param gpu: the backend whose type of device the mesh is on; by default the current one
    :returns: a mesh of three dimensions
    :raises ValueError: for sizes that do not make the world, and for a layout with cp or ep, which
        need a model of their own
    :raises RuntimeError: without a process group
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from portagpu.train.planning import Layout

    if layout is not None:
        if not isinstance(layout, Layout):
            raise ValueError(f"a layout is a plan's, not {layout!r}: give sizes by name, as tp=2")
        if (dp, tp, pp) != (None, 1, 1):
            raise ValueError("give a layout, or dp, tp and pp")
        if layout.cp > 1 or layout.ep > 1:
            raise ValueError(f"{layout}: cp and ep are for the model's own code; plan without them")
        dp, tp, pp = layout.dp, layout.tp, layout.pp
    if not dist.is_initialized():
        raise RuntimeError(
            "there is no process group yet: call portagpu.backend().comm.init() first"
        )
    world = dist.get_world_size()
    sizes = (pp, tp, 1 if dp is None else dp)
    if not all(type(size) is int and size >= 1 for size in sizes):
        raise ValueError("dp, tp and pp are whole numbers of at least 1")
    if dp is None:
        dp = max(1, world // (pp * tp))
    if pp * dp * tp != world:
        raise ValueError(
            f"pp={pp} dp={dp} tp={tp} needs {pp * dp * tp} ranks, and the world has {world}"
        )
    from portagpu.devices.registry import backend

    kind = (gpu or backend()).device.type
    made = init_device_mesh(kind, (pp, dp, tp), mesh_dim_names=DIMENSIONS)
    if dp > 1 and tp > 1:
        # so that a norm over both is one collective; torch warns of two
        made["dp", "tp"]._flatten()
    return made


def layers_of(model: nn.Module, layers: Layers | None) -> list[nn.Module]:
    """The modules of ``model`` of the class ``layers``; by default its children with parameters.

    An ``nn.ModuleList`` stands for what is in it, as it has no forward of its own. Raises
    ValueError for a class of which the model has no layer, and for a value that is not a class of
    modules.
    """
    from torch import nn

    if layers is None:
        return [each for each in _children(model) if any(True for _ in each.parameters())]
    kinds = layers if isinstance(layers, tuple) else (layers,)
    if not kinds or not all(
        isinstance(each, type) and issubclass(each, nn.Module) for each in kinds
    ):
        raise ValueError(f"layers is a class of modules, or a tuple of some, not {layers!r}")
    found = [each for each in model.modules() if isinstance(each, kinds) and each is not model]
    names = " or ".join(each.__name__ for each in kinds)
    if not found:
        raise ValueError(f"the model has no layer of {names}")
    if any(_is_container(each) for each in found):
        raise ValueError(f"{names} has no forward: give the class of the layers that are in it")
    return found


def _children(model: nn.Module) -> Iterator[nn.Module]:
    for each in model.children():
        if _is_container(each):
            yield from _children(each)
        else:
            yield each


def _is_container(module: nn.Module) -> bool:
    """Whether it is a list or dictionary of modules, which is never called."""
    from torch import nn

    return type(module).forward is nn.Module.forward


_PRODUCTS: Final = ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear")


def recompute(model: nn.Module, layers: Layers | None = None, kind: str = "full") -> nn.Module:
    """``model`` itself, whose ``layers`` keep less for backward: torch's ``checkpoint_wrapper``.

    Call it before :func:`~portagpu.parallel.shard`. Names in state dicts stay as they were. torch
    raises in backward if a layer changes in place a result that is kept.

    :param model: a module, or one stage of it
    :param layers: the class of the layers, or a tuple of classes; by default the children with
        parameters
    :param kind: "full" (a layer keeps its input), "operators" (and results of attention and of
        every other product of matrices, as torchtitan does), "selective" (of every product, not of
        attention) or "none". All but "none" compute norms and activations again, so "selective"
        keeps less than a plan counts for it
    :returns: ``model``
    :raises ValueError: for another kind, for a class of which the model has no layer, and for
        layers that recompute already
    """
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointWrapper,
        apply_activation_checkpointing,
        checkpoint_wrapper,
    )
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    if kind not in RECOMPUTES:
        raise ValueError(f"kind of recomputation is one of {', '.join(RECOMPUTES)}, not {kind!r}")
    if kind == "none":
        return model
    chosen = {id(each) for each in layers_of(model, layers)}
    for each in model.modules():
        inside = [each, *each.children()] if isinstance(each, CheckpointWrapper) else []
        if any(id(one) in chosen for one in inside):
            raise ValueError("these layers recompute already, and would do it twice")
    options: dict[str, Any] = {}
    if kind != "full":

        def contexts() -> Any:
            return create_selective_checkpoint_contexts(
                _Kept(every=1 if kind == "selective" else 2, attention=kind == "operators")
            )

        options["context_fn"] = contexts
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=partial(checkpoint_wrapper, **options),
        check_fn=lambda each: id(each) in chosen,
    )
    return model


class _Kept:
    """Keeps every n-th product, and attention or not; forward and its repetition count apart."""

    def __init__(self, *, every: int, attention: bool) -> None:
        self.every = every
        self.attention = attention
        self.products = {False: 0, True: 0}

    def __call__(self, context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        from torch.utils.checkpoint import CheckpointPolicy

        name = str(operator.name()).partition(".")[0]
        keep = self.attention and "scaled_dot_product" in name
        if name in _PRODUCTS:
            keep = self.products[context.is_recompute] % self.every == 0
            self.products[context.is_recompute] += 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE
