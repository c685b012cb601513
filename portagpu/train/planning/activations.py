"""What forward keeps for backward, in closed form.

Source: Korthikanti et al. 2022, arXiv:2205.05198, sections 4 and 5, whose 34 s b h + 5 a s^2 b
bytes for a layer are the sum of the pieces here for a GPT in 16 bits. The pieces are counted one by
one, so that grouped queries, gated MLPs, experts and other widths have theirs. With sequence
parallelism the paper's Megatron gathers the inputs of products again for backward (section 4.2.2);
torch's ``ColwiseParallel`` keeps them whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from portagpu.train.planning.model import Model
    from portagpu.train.planning.recipe import Layout, Recipe

_MASK: Final = 1
"""Bytes of an element of a dropout mask."""
_FLOAT32: Final = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """Bytes that one layer keeps for one micro-batch on one rank.

    ``entrance`` is its input, which full recomputation keeps alone; ``norm`` is what a norm keeps
    beside its input. ``scores`` are the core of attention, ``outputs`` what torchtitan's selective
    operators keep, ``working`` the gradients that backward holds at once in the layer.
    """

    entrance: float
    norm: float
    kept: float
    scores: float
    outputs: float
    working: float


def layer(model: Model, recipe: Recipe, layout: Layout, *, on_gpu: bool = True) -> Layer:
    """One layer's bytes. Tokens are split by cp; tp splits the inner sizes, and sp the rest.

    On a CPU torch computes RMSNorm in steps, and each keeps what is not yet multiplied with the
    weight.
    """
    item = recipe.numbers.activation
    tokens = recipe.micro_batch * recipe.sequence / layout.cp
    split = tokens / layout.tp
    whole = split if layout.sequence_parallel else tokens
    one = whole * model.hidden * item
    query = split * item * model.heads * model.head_size
    # with more ranks than key heads each rank has a whole one
    key = split * item * max(model.kv_heads, layout.tp) * model.head_size
    # of each expert that a token takes, as are the inputs that a router copies
    copies = model.active_experts or 1
    inner = split * item * model.inner * copies
    routed = 2 * copies * one if model.experts else 0
    mask = _MASK if model.dropout else 0
    norm = 0 if on_gpu or model.norm_biases else one
    # torch's tensor parallelism keeps the whole input that a product gathered
    gathered = 2 * (tokens - whole) * model.hidden * item if recipe.by_torch else 0
    # twice: the inputs of a norm and of the products after it, and the mask of what is added
    outside = 4 * one + 2 * norm + 2 * whole * model.hidden * mask + gathered
    if recipe.fused:
        scores = split * model.heads * _FLOAT32
    else:
        pairs = split * model.heads * recipe.sequence
        scores = pairs * (2 * item + _MASK if model.dropout else item)
    return Layer(
        entrance=one,
        norm=norm,
        kept=outside + 2 * query + 2 * key + (4 if model.gated else 2) * inner + routed,
        scores=scores,
        outputs=2 * one + 2 * query + key + inner,
        working=(3 if model.gated else 2) * inner + one,
    )


def kept_per_layer(one: Layer, recipe: Recipe) -> float:
    """Bytes of one layer that stay until its backward."""
    if recipe.recompute == "full":
        return one.entrance
    if recipe.recompute == "operators":
        return min(one.outputs + (one.scores if recipe.fused else 0), one.kept + one.scores)
    return one.kept + (0 if recipe.recompute == "selective" else one.scores)


def recomputed(one: Layer, recipe: Recipe) -> float:
    """Bytes that backward makes again for one layer, while it is in it."""
    return max(one.kept + one.scores - kept_per_layer(one, recipe), 0.0)


def logits(model: Model, recipe: Recipe, layout: Layout) -> tuple[float, float, float]:
    """(expected, least, most) bytes of logits and loss at the start of backward.

    Eager torch holds three float32 tensors: the log-softmax, and the gradients of it and of the
    logits. Its loss over a split vocabulary makes a fourth
    (``torch.distributed.tensor.parallel.loss``, ``_nll_loss_and_log_softmax_backward``). The block
    of the 16-bit logits, which are freed before, is too small for any of them and stays reserved.
    A fused loss keeps the logits and their gradient alone. The least is one float32 tensor
    (arXiv:2205.05198, section 4.3: 4 s b v); at most the caller keeps its logits too.
    """
    item = recipe.numbers.activation
    count = recipe.micro_batch * recipe.sequence / layout.cp * model.vocabulary / layout.tp
    if recipe.fused_loss:
        return (count * 2 * item,) * 3
    tensors = (4 if layout.tp > 1 else 3) * _FLOAT32
    freed = item if item < _FLOAT32 else 0
    return count * (tensors + freed), count * _FLOAT32, count * (tensors + _FLOAT32 + item)
