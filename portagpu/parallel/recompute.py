"""Activation checkpointing: what backward computes again instead of keeping it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from portagpu.parallel.layout import layers_of
from portagpu.planning.recipe import RECOMPUTES

if TYPE_CHECKING:
    from torch import nn

    from portagpu.parallel.layout import Layers


def recompute(model: nn.Module, layers: Layers | None = None, kind: str = "full") -> nn.Module:
    """``model`` itself, whose ``layers`` keep less for backward: torch's ``checkpoint_wrapper``.

    ``kind`` is "full" (a layer keeps its input), "operators" (and results of attention and of every
    other product of matrices, as torchtitan does), "selective" (all but those of attention) or
    "none". ``layers`` is their class, by default the children with parameters. Names in state dicts
    stay as they were. Call it before :func:`~portagpu.parallel.data.shard`.

    Raises ValueError for another kind, and for a class of which the model has no layer.
    """
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
        checkpoint_wrapper,
    )
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    if kind not in RECOMPUTES:
        raise ValueError(f"there is no recomputation {kind!r}: there is {', '.join(RECOMPUTES)}")
    if kind == "none":
        return model
    chosen = {id(each) for each in layers_of(model, layers)}
    options: dict[str, Any] = {}
    if kind != "full":

        def contexts() -> Any:
            return create_selective_checkpoint_contexts(
                _without_attention if kind == "selective" else _EverySecondProduct()
            )

        options["context_fn"] = contexts
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=partial(checkpoint_wrapper, **options),
        check_fn=lambda each: id(each) in chosen,
    )
    return model


def _name(operator: Any) -> str:
    """The operator's name without its overload: "aten::mm"."""
    return str(operator.name()).partition(".")[0]


def _is_attention(name: str) -> bool:
    return "scaled_dot_product" in name or name == "aten::_softmax"


def _without_attention(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    from torch.utils.checkpoint import CheckpointPolicy

    again = _is_attention(_name(operator))
    return CheckpointPolicy.PREFER_RECOMPUTE if again else CheckpointPolicy.MUST_SAVE


class _EverySecondProduct:
    """Keeps attention and every second product; forward and its repetition count apart."""

    def __init__(self) -> None:
        self.products = {False: 0, True: 0}

    def __call__(self, context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        from torch.utils.checkpoint import CheckpointPolicy

        name = _name(operator)
        keep = _is_attention(name)
        if name in ("aten::mm", "aten::addmm", "aten::bmm"):
            self.products[context.is_recompute] += 1
            keep = self.products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE
