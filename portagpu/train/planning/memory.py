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

from portagpu.base.units import count, size
from portagpu.train.planning.recipe import Layout, stages
from portagpu.train.planning.states import (
    Estimate,
    Phase,
    Term,
    adapter_term,
    buffer_terms,
    deepspeed_needs,
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
    operators keep, ``working`` the gradients that backward holds at once in the layer. ``spared``
    is of ``kept`` what weights' gradients alone read, which frozen products do not keep.
    """

    entrance: float
    norm: float
    kept: float
    scores: float
    outputs: float
    working: float
    spared: float = 0.0


def layer(
    model: Model, recipe: Recipe, layout: Layout, *, on_gpu: bool = True, plain: bool = False
) -> Layer:
    """One layer's bytes. Tokens are split by cp; tp splits the inner sizes, and sp the rest.

    ``plain`` is one of the model's ``plain_layers``.

    On a CPU torch computes RMSNorm in steps, and each keeps what is not yet multiplied with the
    weight.
    """
    item = recipe.numbers.activation
    tokens = recipe.micro_batch * recipe.sequence / layout.cp
    split = tokens / layout.tp
    whole = split if layout.sequence_parallel else tokens
    one = whole * model.hidden * item
    query = split * item * model.heads * model.head_size
    result = split * item * model.heads * model.value_size
    # with more ranks than key heads each rank has a whole one
    keys = split * item * max(model.kv_heads, layout.tp)
    core = query + result + keys * (model.head_size + model.value_size)
    if model.head_norms:
        core += query + keys * model.head_size
    if model.latent is not None:
        # compressed, before and after their norms; the part with positions has none
        short = 2 * (model.latent.query_rank + model.latent.key_rank) + model.latent.rotary
        core += whole * item * short
    # of each expert that a token takes, as are the inputs that a router copies
    copies = 0 if plain or not model.experts else model.active_experts
    width = model.inner * copies + model.shared_inner if copies else model.inner
    inner = split * item * (model.plain_inner if plain else width)
    routed = 2 * copies * one
    mask = _MASK if model.dropout else 0
    norm = 0 if on_gpu or model.norm_biases else one
    # attention and the MLP read one input, or one each; norms of results read two more
    reads = model.norms if model.parallel else 2
    normed = 1 if model.parallel else model.norms
    # torch's tensor parallelism keeps the whole input that a product gathered
    gathered = reads * (tokens - whole) * model.hidden * item if recipe.keeps_gathered else 0
    # the inputs of norms and of the products after them, and the masks of what is added
    outside = (normed + reads) * one + model.norms * norm
    outside += 2 * whole * model.hidden * mask + gathered
    spared = again = 0.0
    if recipe.frozen and not (recipe.lora_rank and recipe.adapted == "all"):
        # the input of the MLP's last product, and its normed input, which an RMSNorm in steps
        # keeps in float32 instead
        normed_input = one if model.norm_biases and reads == 2 else 0
        spared = inner + normed_input + routed / 2
    if recipe.lora_rank and recipe.lora_dropout:
        again = whole * model.hidden * (item + _MASK) * (2 if recipe.adapted == "all" else 1)
    if recipe.fused:
        scores = split * model.heads * _FLOAT32
    else:
        pairs = split * model.heads * recipe.sequence
        scores = pairs * (2 * item + _MASK if model.dropout else item)
    return Layer(
        entrance=one,
        norm=norm,
        kept=outside + core + (4 if model.gated else 2) * inner + routed + again,
        scores=scores,
        outputs=2 * one + query + result + keys * model.head_size + inner,
        working=(3 if model.gated else 2) * inner + one,
        spared=spared,
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
    A fused loss keeps the logits and their gradient alone, in chunks those of one chunk
    (arXiv:2410.10989). The least is one float32 tensor
    (arXiv:2205.05198, section 4.3: 4 s b v); at most the caller keeps its logits too.
    """
    item = recipe.numbers.activation
    count = recipe.micro_batch * recipe.sequence / layout.cp * model.vocabulary / layout.tp
    if recipe.fused_loss:
        return count * 2 * item, 0.0, count * 2 * item
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
_LOST: Final = 0.02
"""What is reserved and not allocated, of what is allocated: the median of nine peaks that nanotron
published (huggingface.co/nanotron/old_bench, llama-1B: 1 to 16%)."""
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
    if recipe.lora_rank and recipe.training:
        terms.append(adapter_term(model, recipe, layout, part, stage))
    if recipe.kv_tokens:
        terms.append(kv_cache(model, recipe, layout))
    if on_gpu:
        terms += _device_terms(terms, recipe, layout, part.dense_ranks)
    remarks: list[str] = []
    if recipe.sharding in ("zero2", "zero3") and recipe.training and not recipe.frozen:
        remarks += _deepspeed_remarks(model, recipe, layout)
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


def _deepspeed_remarks(model: Model, recipe: Recipe, layout: Layout) -> Iterator[str]:
    """What DeepSpeed's own estimator says, for a layout that it knows."""
    if layout.tp * layout.pp * layout.cp * layout.ep > 1:
        return
    largest = model.hidden * max(model.vocabulary, model.inner, model.plain_inner)
    stage = int(recipe.sharding[-1])
    if stage == 2 and recipe.offload == "parameters":
        return
    found = deepspeed_needs(
        model.parameters, stage=stage, gpus=layout.dp, offload=recipe.offload, largest=largest
    )
    yield (
        f"DeepSpeed's estimator (estimate_zero{stage}_model_states_mem_needs) gives "
        f"{size(found.gpu)} a GPU and {size(found.host)} a host for the states, on one machine; "
        "the parts above are by the paper"
    )


def kv_cache(model: Model, recipe: Recipe, layout: Layout) -> Term:
    """The KV cache of a rank: 2 (key and value) x layers x kv heads x head size x bytes a token.

    Llama 2 7B has 524,288 B a token in 16 bits; with grouped queries it is less. Latent attention
    caches the short vector and the part with positions, which no split makes smaller. A layer with
    a window needs no more than the window of each sequence; at most it keeps all tokens.

    :param model: the sizes of the model
    :param recipe: its ``kv_tokens``, and ``kv_bytes`` of each number
    :param layout: the parallel layout
    :returns: one term, in bytes
    """
    # a head cannot be split: with more ranks than heads each rank has a whole one
    heads = max(model.kv_heads / layout.tp, 1)
    numbers, words = 2 * heads * model.head_size, "2 x {} x {} x {}"
    words = words.format(
        count(model.layers, "layer"), count(model.kv_heads, "kv head"), model.head_size
    )
    ends, source = "tp / pp", "arXiv:2309.06180, section 3"
    if model.latent is not None:
        numbers = model.latent.key_rank + model.latent.rotary
        words = f"{count(model.layers, 'layer')} x {numbers} of the latent"
        ends, source = "pp", "arXiv:2405.04434, section 2.1"
    whole = model.layers / layout.pp * numbers * recipe.kv_bytes * recipe.kv_tokens
    length = min(recipe.sequence, recipe.kv_tokens or 1)
    expected = whole * model.span(length) / length
    if expected < whole:
        windowed = count(len(model.windowed_layers), "layer")
        words += f", {windowed} of them with {model.window:,} tokens of each sequence"
    formula = f"{words} x {recipe.kv_bytes:g} B x {recipe.kv_tokens:,} tokens / {ends}"
    return ranged("KV cache", (expected, expected, whole), formula, source)


def activation_terms(
    model: Model, recipe: Recipe, layout: Layout, stage: Stage, *, on_gpu: bool
) -> Iterator[Term]:
    """What forward keeps, the logits, and what backward holds in addition."""
    kinds = (stage.layers - stage.plain, False), (stage.plain, True)
    found = [
        (times, layer(model, recipe, layout, on_gpu=on_gpu, plain=plain))
        for times, plain in kinds
        if times or not stage.layers
    ]
    # the layer that needs most is the one that is recomputed, and whose gradients are held
    one = max((each for _, each in found), key=lambda each: each.kept)
    if not recipe.training:
        forward = one.kept + one.scores
        yield exact("activations", forward, "one layer's, without gradients", _PAPER, _FORWARD)
        return
    over = max(stage.layers, 1)
    most = sum(times * kept_per_layer(each, recipe) for times, each in found) / over
    kept = most
    if recipe.recompute in ("none", "selective"):
        kept -= sum(times * each.spared for times, each in found) / over
    # the inputs of fp8 products may be kept in 8 bits
    low = 0.5 if recipe.numbers.matrix == "fp8" else 1.0
    layers = f"{stage.in_flight:g} layer{'' if stage.in_flight == 1 else 's'} in flight"
    yield ranged(
        "activations",
        (kept * stage.in_flight, kept * stage.in_flight * low, most * stage.in_flight),
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
    usual = max(sum(each.expected for each in terms if phase in each.phases) for phase in Phase)
    usual = min(usual * _LOST, lost)
    yield ranged(
        "fragmentation and rounding",
        (max(usual, _SEGMENT), _BLOCK, max(lost, _SEGMENT)),
        f"0 to {recipe.fragmentation:.0%} of what is reserved, mostly {_LOST:.0%}; {_BLOCK} B "
        "blocks, 20 MiB segments",
        "arXiv:1910.02054, section 3.2; nanotron/old_bench; torch's caching allocator",
    )
