"""The memory of a training step on one rank, in closed form: every term with formula and source.

The rank is the one that needs most: of a pipeline, the first stage holds most activations, a stage
between may have more layers, and the last one has the logits.

Source of what forward keeps for backward: Korthikanti et al. 2022, arXiv:2205.05198, sections 4
and 5, whose 34 s b h + 5 a s^2 b bytes for a layer are the sum of the pieces here for a GPT in 16
bits. The pieces are counted one by one, so that grouped queries, gated MLPs, experts and other
widths have theirs. With sequence parallelism the paper's Megatron gathers the inputs of products
again for backward (section 4.2.2); torch's ``ColwiseParallel`` keeps them whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from portagpu.base.units import count
from portagpu.train.planning.recipe import Layout, stages
from portagpu.train.planning.states import (
    Estimate,
    Phase,
    Term,
    buffer_terms,
    exact,
    ranged,
    share,
    state_terms,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.facts.targets import Target
    from portagpu.train.planning.model import Model
    from portagpu.train.planning.recipe import Recipe, Stage


_MASK: Final = 1
"""Bytes of an element of a dropout mask."""
_FLOAT32: Final = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """Bytes that one layer keeps for one micro-batch on one rank.

    ``entrance`` is its input, which full recomputation keeps alone; ``norm`` is what a norm keeps
    in addition. ``scores`` are the core of attention, ``outputs`` what torchtitan's selective
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


_MIB: Final = 1 << 20
_CONTEXT: Final = (781e6, 781e6, 1343 * _MIB)
"""A device's context and loaded code, in a process with one small tensor."""
_CONTEXT_SOURCE: Final = (
    "observed: pytorch/pytorch#34323 (781 MB); transformers documentation, model memory anatomy "
    "(1343 MB)"
)
_BLOCK: Final = 512
"""Bytes that torch's caching allocator rounds to (kMinBlockSize)."""
_SEGMENT: Final = 20 * _MIB
"""A segment for requests of 1 to 10 MiB, the last of which may be nearly empty (kLargeBuffer)."""
_CHANNEL: Final = 4 * _MIB
"""A library's buffer for one channel and direction (NCCL's documentation: NCCL_BUFFSIZE)."""
_CHANNELS: Final = 32
"""The most channels of one group (the same: NCCL_MAX_NCHANNELS up to 2.20)."""
_FORWARD: Final = (Phase.LOSS, Phase.BACKWARD)
_PAPER: Final = "arXiv:2205.05198, section 4"
_HEAD: Final = "arXiv:2205.05198, section 4.3"


def estimate(
    model: Model, recipe: Recipe, layout: Layout | None = None, *, target: Target | None = None
) -> Estimate:
    """The memory of the rank that needs most, in bytes.

    It judges no layout: :func:`portagpu.planning.plan` does.

    :param model: the sizes of the model
    :param recipe: how it is trained
    :param layout: the parallel layout; by default one rank
    :param target: decides whether a device's context and caching allocator count: not on a CPU;
        without a target they do
    :returns: the terms and their sum
    """
    layout = layout or Layout()
    every = stages(model, layout)
    # of those between, the second has as many layers as any, and more of them in flight
    asked = {0, min(1, layout.pp - 1), layout.pp - 1}
    on_gpu = target is None or target.arch.warp_size > 1
    found = [_of_stage(model, recipe, layout, every[index], on_gpu) for index in sorted(asked)]
    *others, largest = sorted(found, key=lambda each: each.expected)
    return replace(largest, others=tuple(others))


def _of_stage(model: Model, recipe: Recipe, layout: Layout, stage: Stage, on_gpu: bool) -> Estimate:
    part = share(model, layout, stage)
    terms: list[Term] = []
    host: list[Term] = []
    for term, leaves in state_terms(part, recipe, layout):
        (host if leaves else terms).append(term)
    terms += buffer_terms(part, recipe, layout)
    terms += activation_terms(model, recipe, layout, stage, on_gpu=on_gpu)
    if recipe.offload == "parameters" and part.dense_ranks == 1:
        resident = (2 * part.layer + part.outside) * recipe.numbers.weight
        source = "FSDP2's CPUOffloadPolicy"
        terms.append(exact("parameters in use", resident, "two layers and the rest", source))
    if recipe.kv_tokens:
        terms.append(kv_cache(model, recipe, layout))
    if on_gpu:
        terms += _device_terms(terms, recipe, layout, part.dense_ranks)
    remarks = []
    if model.experts:
        remarks.append(
            "tokens are taken to be spread evenly over the experts: a popular expert needs more"
        )
    if layout.pp > 1:
        remarks.append(
            f"memory of stage {stage.index + 1} of {layout.pp}, which needs most: "
            f"{stage.layers} of {count(model.layers, 'layer')}"
        )
    return Estimate(terms=tuple(terms), host=tuple(host), remarks=tuple(remarks))


def kv_cache(model: Model, recipe: Recipe, layout: Layout) -> Term:
    """The KV cache of a rank: 2 (key and value) x layers x kv heads x head size x bytes a token.

    Llama 2 7B has 524,288 B a token in 16 bits; with grouped queries it is less.

    :param model: the sizes of the model
    :param recipe: its ``kv_tokens``, and ``kv_bytes`` of each number
    :param layout: the parallel layout
    :returns: one term, in bytes
    """
    # a head cannot be split: with more ranks than heads each rank has a whole one
    heads = max(model.kv_heads / layout.tp, 1)
    token = 2 * model.layers / layout.pp * heads * model.head_size * recipe.kv_bytes
    formula = (
        f"2 x {count(model.layers, 'layer')} x {count(model.kv_heads, 'kv head')} x "
        f"{model.head_size} x {recipe.kv_bytes:g} B x {recipe.kv_tokens:,} tokens / tp / pp"
    )
    return exact("KV cache", token * recipe.kv_tokens, formula, "arXiv:2309.06180, section 3")


def activation_terms(
    model: Model, recipe: Recipe, layout: Layout, stage: Stage, *, on_gpu: bool
) -> Iterator[Term]:
    """What forward keeps, the logits, and what backward holds in addition."""
    one = layer(model, recipe, layout, on_gpu=on_gpu)
    if not recipe.training:
        forward = one.kept + one.scores
        yield exact("activations", forward, "one layer's, without gradients", _PAPER, _FORWARD)
        return
    kept = kept_per_layer(one, recipe)
    # the inputs of fp8 products may be kept in 8 bits
    low = 0.5 if recipe.numbers.matrix == "fp8" else 1.0
    layers = f"{stage.in_flight:g} layer{'' if stage.in_flight == 1 else 's'} in flight"
    yield ranged(
        "activations",
        (kept * stage.in_flight, kept * stage.in_flight * low, kept * stage.in_flight),
        f"{layers} x {kept:,.0f} B, recompute {recipe.recompute}",
        f"{_PAPER}; {layout.schedule}" if layout.pp > 1 else _PAPER,
        _FORWARD,
    )
    item = recipe.numbers.activation
    tokens = recipe.micro_batch * recipe.sequence / layout.cp
    # what all ranks of a tensor-parallel group gather is as large as without sequence parallelism
    gathered = tokens * model.hidden * item
    if stage.last:
        inputs = one.entrance + one.norm + (gathered if recipe.by_torch else one.entrance)
        note = "of the last norm and of the head"
        yield exact("inputs of the head", inputs, note, _HEAD, (Phase.LOSS,))
        yield ranged(
            "logits and loss",
            logits(model, recipe, layout),
            "tokens x vocabulary / tp x (logits, log-softmax and the gradients of both)",
            f"{_HEAD}; torch.nn.functional.cross_entropy",
            (Phase.LOSS,),
        )
        if recipe.by_torch and layout.pp > 1:
            others = (layout.micro_batches - 1) * tokens * model.vocabulary / layout.tp * item
            yield ranged(
                "outputs",
                (0, 0, others),
                "logits of all micro-batches, with return_outputs, which torchtitan turns off",
                "torch.distributed.pipelining.stage",
                _FORWARD,
            )
    again = recomputed(one, recipe)
    if again:
        note = "of one layer, made again from what was kept"
        yield exact("recomputed activations", again, note, _PAPER, (Phase.BACKWARD,))
    yield ranged(
        "gradients of activations",
        (one.working, 0, one.working),
        "of one layer's MLP, while backward is in it",
        "the inputs of its products",
        (Phase.BACKWARD,),
    )
    if layout.sequence_parallel:
        # torch gathers the first dimension, and copies where the sequence is another one
        copies = 2 if recipe.by_torch else 1
        yield ranged(
            "tensor-parallel buffers",
            (copies * gathered, 0, 2 * copies * gathered),
            f"{copies} x all tokens x hidden, and again while a stream still uses the last one",
            "torch.distributed._functional_collectives; torchtitan, docs/composability.md",
            (Phase.BACKWARD,),
        )
    if layout.pp > 1:
        yield exact(
            "pipeline buffers",
            2 * one.entrance * layout.chunks,
            "an input to receive and an output to send, for each chunk",
            "arXiv:2104.04473, section 2.2",
        )


def _device_terms(
    terms: list[Term], recipe: Recipe, layout: Layout, dense_ranks: int
) -> Iterator[Term]:
    yield ranged("device context", _CONTEXT, "context and kernels of a process", _CONTEXT_SOURCE)
    groups = sum(each > 1 for each in (layout.tp, layout.pp, dense_ranks, layout.cp, layout.ep))
    if groups:
        yield ranged(
            "collective library",
            (2 * groups * _CHANNEL, 2 * groups * _CHANNEL, 2 * groups * _CHANNEL * _CHANNELS),
            f"{count(groups, 'group')} x 2 directions x 4 MiB x 1 to {_CHANNELS} channels",
            "the library's documentation of its buffer size",
        )
    reduced = next((each for each in terms if each.name == "gradients"), None)
    if reduced is not None and reduced.phases == (Phase.STEP,) and dense_ranks > 1:
        yield ranged(
            "reserved for gradients",
            (reduced.expected, 0, reduced.most),
            "fully_shard reduces into them on a stream of its own, which keeps what was freed",
            "torch documentation, Tensor.record_stream: memory belongs to the stream that made it",
            _FORWARD,
        )
    if recipe.graphs:
        once = sum(each.expected for each in terms if each.phases in (_FORWARD, (Phase.LOSS,)))
        yield ranged(
            "graphs",
            (0, 0, once),
            "a private pool that shares nothing with eager steps: up to the activations again",
            "torch documentation, graph memory management",
        )
    most = {phase: sum(each.most for each in terms if phase in each.phases) for phase in Phase}
    peak = max(most.values())
    lost = peak * recipe.fragmentation / (1 - recipe.fragmentation)
    yield ranged(
        "fragmentation and rounding",
        (_SEGMENT, _BLOCK, max(lost, _SEGMENT)),
        f"0 to {recipe.fragmentation:.0%} of what is reserved; {_BLOCK} B blocks, 20 MiB segments",
        "arXiv:1910.02054, section 3.2; torch's caching allocator",
    )
