"""How long a step takes: products of matrices at a rate, collectives by their model, the bubble.

Sources: operations, Chowdhery et al. 2022, arXiv:2204.02311, appendix B: 6 N + 12 L H Q T for each
token, of which forward is a third. Tensor parallelism, Shoeybi et al. 2019, arXiv:1909.08053: two
all-reduces of a layer's output in forward and two in backward; with sequence parallelism each is a
reduce-scatter and an all-gather (arXiv:2205.05198). Experts, Lepikhin et al. 2020,
arXiv:2006.16668: an all-to-all before and one after them, in forward and in backward. Bubble,
Narayanan et al. 2021, arXiv:2104.04473: (p - 1) / m of the work, and 1 / v of it if interleaved.
ZeRO, arXiv:1910.02054, section 7: up to stage 2 a step moves as much as an all-reduce of the
gradients, stage 3 half more; stage 2 for each micro-batch (DeepSpeed,
``reduce_ready_partitions_and_remove_grads``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from portagpu.train.planning.stages import stages
from portagpu.train.planning.states import share

if TYPE_CHECKING:
    from portagpu.facts.targets import Target
    from portagpu.train.planning.cluster import Cluster, Network
    from portagpu.train.planning.model import Model
    from portagpu.train.planning.recipe import Layout, Recipe


def rate_of(target: Target, dtype: str, efficiency: float | None) -> float | None:
    """Operations a second of one GPU in products: ``efficiency`` of the dense peak, or all of it.

    None if the peak is not known. Published rates of single products are no better bound: some are
    floors of acceptance tests, which trainings exceed.
    """
    peak = target.peak(dtype)
    if peak is None or not peak.unit.endswith("FLOPS"):
        return None
    return peak.value * 1e12 * (1.0 if efficiency is None else efficiency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one step, of the slowest stage where stages differ.

    ``data_s`` is hidden behind backward as far as that is long enough: ``step_s`` counts that
    overlap, and ``no_overlap_s`` none. ``bubble`` is the share of the pipeline's time in which the
    slowest stage is idle: of equal stages ``(p - 1) / (v m + p - 1)``.
    """

    compute_s: float
    bubble_s: float
    bubble: float
    tensor_s: float
    context_s: float
    expert_s: float
    pipeline_s: float
    data_s: float
    step_s: float
    no_overlap_s: float


@dataclass(frozen=True, slots=True)
class Flops:
    """Operations of one token's forward: a layer's products, its core of attention, the head."""

    products: float
    attention: float
    head: float


def forward_flops(model: Model, sequence: int) -> Flops:
    """Two for each weight that multiplies the token, and 4 H Q T for the scores and their sum."""
    head = 2.0 * (model.vocabulary * model.hidden + model.norm_parameters)
    return Flops(
        products=(2.0 * model.active_parameters - head) / model.layers,
        attention=4.0 * model.heads * model.head_size * sequence,
        head=head,
    )


def step_time(
    model: Model,
    recipe: Recipe,
    layout: Layout,
    cluster: Cluster,
    network: Network,
    efficiency: float | None = None,
) -> Timing | None:
    """The time of a step, None where the target's rate or a link is not known."""
    matrix = recipe.numbers.matrix
    rate = rate_of(cluster.target, matrix, efficiency)
    core = rate_of(cluster.target, "bf16" if matrix == "fp8" else matrix, efficiency)
    moved = _communication(model, recipe, layout, network)
    data = _data(model, recipe, layout, network)
    if rate is None or core is None or moved is None or data is None:
        return None
    tokens = recipe.micro_batch * recipe.sequence / layout.cp / layout.tp
    flops = forward_flops(model, recipe.sequence)
    again = {"none": (0.0, 0.0), "selective": (0.0, 1.0), "operators": (0.5, 0.0)}
    products_again, core_again = again.get(recipe.recompute, (1.0, 1.0))
    # backward multiplies for the gradients of inputs, and again for those of weights
    passes = 2 if recipe.frozen else 3
    attention = tokens * flops.attention / core
    products = tokens * flops.products * (passes + products_again) / rate
    layer = products + attention * (3 + core_again)
    head = tokens * flops.head * passes / rate
    # a ring's steps are hidden behind the attention of the block before
    context_shown = max(0.0, moved.context_s - attention * 3)
    shown = layer + moved.tensor_s + moved.expert_s + context_shown
    every = stages(model, layout)
    each = [stage.layers * shown + stage.last * head + moved.pass_s for stage in every]
    slowest = every[each.index(max(each))]
    compute = slowest.layers * layer + slowest.last * head
    count = layout.micro_batches
    # every stage fills and drains once, and the slowest one paces the rest
    bubble_s = (sum(each) - max(each)) / layout.chunks
    pipeline = max(each) * count + bubble_s
    hidden = min(data, compute * count * 2 / 3)
    return Timing(
        compute_s=compute * count,
        bubble_s=bubble_s,
        bubble=bubble_s / pipeline,
        tensor_s=moved.tensor_s * slowest.layers * count,
        context_s=moved.context_s * slowest.layers * count,
        expert_s=moved.expert_s * slowest.layers * count,
        pipeline_s=moved.pass_s * count,
        data_s=data,
        step_s=pipeline + data - hidden,
        no_overlap_s=pipeline + data + (moved.context_s - context_shown) * slowest.layers * count,
    )


@dataclass(frozen=True, slots=True)
class _Moved:
    """Seconds of collectives of one micro-batch: of one layer, and between two stages."""

    tensor_s: float
    context_s: float
    expert_s: float
    pass_s: float


def _communication(model: Model, recipe: Recipe, layout: Layout, network: Network) -> _Moved | None:
    item = recipe.numbers.activation
    tokens = recipe.micro_batch * recipe.sequence / layout.cp
    output = int(tokens * model.hidden * item)
    once = ("reduce_scatter", "all_gather") if layout.sequence_parallel else ("all_reduce",)
    tensor = [network.seconds(each, output, layout.tp, 1) for each in once]
    keys = int(tokens * 2 * max(model.kv_heads / layout.tp, 1) * model.head_size * item)
    ring = network.seconds("sendrecv", keys, layout.cp, layout.tp)
    # a token goes to each of its experts, wherever they are
    routed = int(tokens * model.hidden * item * max(model.active_experts, 1) / layout.tp)
    exchange = network.seconds("all_to_all", routed, layout.ep, layout.tp)
    split = layout.tp if layout.sequence_parallel else 1
    inner = layout.tp * layout.cp * layout.dp
    passed = network.seconds("sendrecv", output // split, layout.pp, inner)
    if None in tensor or ring is None or exchange is None or passed is None:
        return None
    # two in forward, two in backward, and those of forward again
    calls = 4 + (2 if recipe.recompute == "full" else 0)
    return _Moved(
        tensor_s=sum(each or 0.0 for each in tensor) * calls,
        # each rank passes on keys and values in forward, and them and their gradients in backward
        context_s=ring * (layout.cp - 1) * 3,
        expert_s=exchange * calls,
        pass_s=passed * 2 * layout.chunks,
    )


def _data(model: Model, recipe: Recipe, layout: Layout, network: Network) -> float | None:
    """Seconds of data-parallel collectives of one step, of the stage with most parameters.

    Sharded parameters move layer by layer, so that each layer pays the latency of a call. Experts
    have fewer copies, which are further apart.
    """
    parts = [share(model, layout, each) for each in stages(model, layout)]
    part = max(parts, key=lambda each: each.all)
    layer_by_layer = recipe.sharding in ("zero3", "fsdp2")
    calls = max(part.all / part.layer, 1.0) if layer_by_layer else 1.0

    def seconds(operation: str, each: float) -> float | None:
        apart = max(1, part.dense_ranks // part.expert_ranks)
        found = [
            network.seconds(operation, int(size / calls * each), ranks, inner)
            for size, ranks, inner in (
                (part.dense, part.dense_ranks, layout.tp),
                (part.experts, part.expert_ranks, layout.tp * apart),
            )
        ]
        return None if None in found else sum(each or 0.0 for each in found) * calls

    gathered = seconds("all_gather", recipe.numbers.gathered)
    reduced = seconds("reduce_scatter", recipe.numbers.gradient)
    if gathered is None or reduced is None:
        return None
    # whole layers are gathered for forward and again for backward; in a pipeline once
    gathers = (1 if layout.pp > 1 else 2 * layout.micro_batches) if layer_by_layer else 1
    if recipe.frozen:
        return gathered * gathers if layer_by_layer else 0.0
    if recipe.sharding == "ddp":
        return seconds("all_reduce", recipe.numbers.gradient)
    # ranks that keep a share of the gradients reduce those of every micro-batch
    every = layout.pp == 1 and (layer_by_layer or recipe.sharding == "zero2")
    return reduced * (layout.micro_batches if every else 1) + gathered * gathers
