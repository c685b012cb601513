"""Pipelines: a model of layers cut into stages, and torch's schedules that run them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from portagpu.train.planning.recipe import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

    from portagpu.devices.contract import Backend

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
    parts = []
    for begin, end in pairwise(starts):
        part = nn.Sequential()
        for name, layer in layers[begin:end]:
            part.add_module(name, layer)
        parts.append(part)
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
