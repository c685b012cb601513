"""Activation checkpointing: what backward computes again instead of keeping it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.train.parallel.layout import layers_of
from portagpu.train.planning.recipe import RECOMPUTES

if TYPE_CHECKING:
    from torch import nn

    from portagpu.train.parallel.layout import Layers


_PRODUCTS: Final = ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear")


def recompute(model: nn.Module, layers: Layers | None = None, kind: str = "full") -> nn.Module:
    """``model`` itself, whose ``layers`` keep less for backward: torch's ``checkpoint_wrapper``.

    ``kind`` is "full" (a layer keeps its input), "operators" (and results of attention and of every
    other product of matrices, as torchtitan does), "selective" (of every product, not of attention)
    or "none". Norms and activations are computed again by all but "none", so that "selective" keeps
    less than a plan counts for it. ``layers`` is their class, by default the children with
    parameters. Names in state dicts stay as they were. Call it before
    :func:`~portagpu.train.parallel.data.shard`. torch raises in backward where a layer changes a
    result in place that is kept.

    Raises ValueError for another kind, for a class of which the model has no layer, and for layers
    that recompute already.
    """
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointWrapper,
        apply_activation_checkpointing,
        checkpoint_wrapper,
    )
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    if kind not in RECOMPUTES:
        raise ValueError(f"there is no recomputation {kind!r}: there is {', '.join(RECOMPUTES)}")
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
