"""The mesh of a run: pipeline, data and tensor parallelism over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
    """torch's mesh of all ranks, [pp, dp, tp], with these names, on ``gpu``'s type of device.

    ``mesh["dp"]`` is what one dimension's functions take. Each is there, also where it is 1.
    ``dp`` is by default what tp and pp leave of the world. ``layout`` is a plan's, in place of the
    sizes. ``gpu`` is the current backend. Join the ranks first: ``gpu.comm.init()``.

    Raises ValueError where the sizes do not make the world, and for a layout with cp or ep, which
    need a model of their own. RuntimeError without a process group.
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
        raise RuntimeError("there is no process group: call portagpu.backend().comm.init() first")
    world = dist.get_world_size()
    sizes = (pp, tp, 1 if dp is None else dp)
    if not all(type(size) is int and size >= 1 for size in sizes):
        raise ValueError("dp, tp and pp are whole numbers of at least 1")
    if dp is None:
        dp = max(1, world // (pp * tp))
    if pp * dp * tp != world:
        raise ValueError(f"pp={pp} dp={dp} tp={tp} is {pp * dp * tp} ranks, and here are {world}")
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
    ValueError where there is none of that class, and for what is no class of modules.
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
