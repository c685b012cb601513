"""Device meshes, recomputation, and pipelines: where a model's layers run."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from portagpu.train.planning.recipe import RECOMPUTES, SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from portagpu.devices.contract import Backend
    from portagpu.train.planning import Layout

    Layers = type[nn.Module] | tuple[type[nn.Module], ...]
    from collections.abc import Callable, Sequence

    import torch
    from torch import nn
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle


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


_KINDS: Final[WeakKeyDictionary[nn.Module, frozenset[type]]] = WeakKeyDictionary()
"""The classes in all of a model's stages, by stage."""


def layers_of(model: nn.Module, layers: Layers | None) -> list[nn.Module]:
    """The modules of ``model`` of the class ``layers``; by default its children with parameters.

    An ``nn.ModuleList`` stands for what is in it, as it has no forward of its own. None for a stage
    whose model has such layers in other stages. Raises ValueError for a class of which the model
    has no layer, and for a value that is not a class of modules.
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
    # of a stage without such a layer the whole is one, where another stage has it
    elsewhere = _KINDS.get(model, frozenset())
    if not found and not any(issubclass(each, kinds) for each in elsewhere):
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


_CLASSES: Final = dict(
    zip(SCHEDULES, ("ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B"), strict=True)
)


def split(model: nn.Sequential, mesh: DeviceMesh, *, chunks: int = 1) -> list[nn.Sequential]:
    """The stages of this rank of ``mesh["pp"]``: the model's layers in order.

    Stage i is on rank i modulo the ranks. Stages have equally many layers, or the first ones one
    more. Layers keep the names that they have in ``model``, so that a checkpoint of all stages is
    one of the model and is loaded on any number of stages. They are the model's own objects; drop
    ``model`` to free the others.

    :param model: a sequence of layers
    :param mesh: the mesh of :func:`~portagpu.parallel.mesh`
    :param chunks: stages on each rank
    :returns: this rank's stages, in order
    :raises TypeError: for a model that is not an ``nn.Sequential`` or has a forward of its own
    :raises ValueError: for fewer layers than stages, and for stages that would share a parameter
    """
    from torch import nn

    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        raise TypeError(f"a {type(model).__name__} cannot be cut: give an nn.Sequential of layers")
    ranks, rank = mesh["pp"].size(), mesh["pp"].get_local_rank()
    # named_children() leaves out a layer that is there twice
    layers, stages = list(model._modules.items()), ranks * chunks
    if chunks < 1 or len(layers) < stages:
        raise ValueError(f"{len(layers)} layers do not make {stages} stages of at least one")
    each, more = divmod(len(layers), stages)
    starts = [stage * each + min(stage, more) for stage in range(stages + 1)]
    parts, kinds = [], frozenset(map(type, model.modules()))
    for begin, end in pairwise(starts):
        part = nn.Sequential()
        for name, layer in layers[begin:end]:
            part.add_module(name, layer)
        parts.append(part)
        _KINDS[part] = kinds
    _check_not_shared(parts)
    return parts[rank::ranks]


def _check_not_shared(stages: Sequence[nn.Module]) -> None:
    """Raise ValueError where two stages have one parameter: each would train a copy of its own."""
    owners: dict[int, tuple[int, str]] = {}
    for index, stage in enumerate(stages):
        for name, each in stage.named_parameters():
            other, first = owners.setdefault(id(each), (index, name))
            if other != index:
                raise ValueError(
                    f"stages {other} and {index} share a parameter, {first} and {name}: "
                    "torch's pipelines would train a copy on each"
                )


def schedule(
    parts: Sequence[nn.Module],
    mesh: DeviceMesh,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    micro_batches: int,
    kind: str = "1f1b",
    gpu: Backend | None = None,
) -> PipelineScheduleSingle | PipelineScheduleMulti:
    """torch's schedule of the stages that are this rank's ``parts`` of ``mesh["pp"]``.

    One call trains on one batch, whose length the micro-batches divide::

        losses = []
        if mesh["pp"].get_local_rank() == 0:
            schedule.step(inputs)
        elif mesh["pp"].get_local_rank() == mesh["pp"].size() - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()

    ``losses`` then add up to the mean over the batch. ``schedule.eval`` takes the same,
    targets too: without them torch fails, and the other stages wait. Each part has an optimiser of
    its own. The loss is divided by the micro-batches here, before backward. torch's own way divides
    all gradients afterwards, and those of earlier calls of ``step`` again.

    :param parts: the stages of :func:`split`
    :param mesh: the mesh of :func:`~portagpu.parallel.mesh`
    :param loss: of the last stage's output and the targets, a mean over a batch, shape ()
    :param micro_batches: parts of a batch
    :param kind: "gpipe", "1f1b" or "interleaved", of which the last takes two or more parts on a
        rank
    :param gpu: the backend of the stages' device; by default the current one
    :returns: torch's schedule
    :raises ValueError: for another kind, for parts or micro-batches that do not suit it, and for
        GPipe over DDP, which torch does not run
    """
    from torch.distributed import pipelining
    from torch.distributed.pipelining import PipelineStage
    from torch.nn.parallel import DistributedDataParallel

    from portagpu.devices.registry import backend

    if kind not in _CLASSES:
        raise ValueError(f"kind of schedule is one of {', '.join(_CLASSES)}, not {kind!r}")
    if not parts or (kind == "interleaved") != (len(parts) > 1):
        raise ValueError(f"{len(parts)} parts on a rank: interleaved takes 2 or more, others one")
    if kind == "gpipe" and any(isinstance(each, DistributedDataParallel) for each in parts):
        # torch 2.13 leaves DDP's reducer waiting after it has inferred shapes; the second step
        # then fails: "rebuilt parameter indices size is not same"
        raise ValueError("torch's GPipe does not run DDP: take 1f1b, or fsdp2")
    pipe = mesh["pp"]
    ranks, rank = pipe.size(), pipe.get_local_rank()
    if micro_batches < 1 or (kind != "gpipe" and micro_batches < ranks):
        raise ValueError(f"{micro_batches} micro-batches do not fill {ranks} stages: give more")
    if kind == "interleaved" and micro_batches % (micro_batches // ranks):
        raise ValueError(f"{micro_batches} micro-batches: give a multiple of {ranks}")
    device = (gpu or backend()).device
    stages = [
        PipelineStage(part, rank + turn * ranks, ranks * len(parts), device, group=pipe.get_group())
        for turn, part in enumerate(parts)
    ]

    def share(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return loss(output, target) / micro_batches

    made = getattr(pipelining, _CLASSES[kind])
    given = stages if kind == "interleaved" else stages[0]
    found: PipelineScheduleSingle | PipelineScheduleMulti = made(
        given, micro_batches, loss_fn=share, scale_grads=False
    )
    return found
