"""How long a step takes: products of matrices at a rate, collectives by their model, the bubble.

Sources: operations, Chowdhery et al. 2022, arXiv:2204.02311, appendix B: 6 N + 12 L H Q T for each
token, of which forward is a third. Tensor parallelism, Shoeybi et al. 2019, arXiv:1909.08053: two
all-reduces of a layer's output in forward and two in backward; with sequence parallelism each is a
reduce-scatter and an all-gather (arXiv:2205.05198). Bubble, Narayanan et al. 2021,
arXiv:2104.04473: (p - 1) / m of the work, and 1 / v of it if interleaved. ZeRO, arXiv:1910.02054,
section 7: up to stage 2 a step moves as much as an all-reduce of the gradients, stage 3 half more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from portagpu.planning.states import share

if TYPE_CHECKING:
    from portagpu.planning.cluster import Cluster, Network
    from portagpu.planning.model import Model
    from portagpu.planning.recipe import Layout, Recipe
    from portagpu.target import Target


@dataclass(frozen=True, slots=True)
class Rate:
    """Operations a second of one GPU in products of matrices, and where the number is from."""

    flops: float
    words: str


def rate_of(target: Target, dtype: str, efficiency: float | None) -> Rate | None:
    """``efficiency`` of the dense peak; without it, the best published product; None if not known.

    A published measurement of one product is more than a whole model reaches.
    """
    peak = target.peak(dtype)
    if peak is None or not peak.unit.endswith("FLOPS"):
        return None
    if efficiency is not None:
        return Rate(efficiency * peak.value * 1e12, f"{efficiency:.0%} of the dense {dtype} peak")
    # a floor says nothing of what is usual: its lower bound is the reference itself
    found = [each for each in target.expectations(f"gemm/{dtype}") if each.reference and each.lower]
    if found:
        best = max(found, key=lambda each: each.reference or 0.0)
        words = f"published measurement of one product ({', '.join(best.source)})"
        return Rate((best.reference or 0.0) * 1e12, words)
    return Rate(peak.value * 1e12, f"the dense {dtype} peak, which no model reaches")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one step. ``data_s`` is hidden behind backward as far as that is long enough.

    ``step_s`` counts that overlap, and ``no_overlap_s`` none. ``bubble`` is the share of the
    pipeline's time in which a stage is idle.
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


def bubble_share(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """The idle share: ``(p - 1) / (m + p - 1)``; interleaved ``(p - 1) / (v m + p - 1)``."""
    return (stages - 1) / (chunks * micro_batches + stages - 1)


def forward_flops(model: Model, sequence: int) -> tuple[float, float]:
    """Operations of one token's forward: of products with weights, and of attention's core."""
    attention = 4 * model.layers * model.heads * model.head_size * sequence
    return 2.0 * model.active_parameters, float(attention)


def step_time(
    model: Model,
    recipe: Recipe,
    layout: Layout,
    cluster: Cluster,
    network: Network,
    efficiency: float | None = None,
) -> Timing | None:
    """The time of a step, None where the target's rate or a link is not known."""
    rate = rate_of(cluster.target, recipe.numbers.matrix, efficiency)
    core = rate_of(cluster.target, "bf16" if recipe.numbers.matrix == "fp8" else
                   recipe.numbers.matrix, efficiency)  # fmt: skip
    if rate is None or core is None:
        return None
    tokens = recipe.micro_batch * recipe.sequence / layout.cp / (layout.tp * layout.pp)
    products, attention = forward_flops(model, recipe.sequence)
    again = {"none": (0.0, 0.0), "selective": (0.0, 1.0), "operators": (0.5, 0.0)}
    more = again.get(recipe.recompute, (1.0, 1.0))
    # backward multiplies for the gradients of inputs, and again for those of weights
    passes = 2 if recipe.frozen else 3
    compute = tokens * products * (passes + more[0]) / rate.flops
    compute += tokens * attention * (3 + more[1]) / core.flops
    micro = _communication(model, recipe, layout, network)
    data = _data(model, recipe, layout, network)
    if micro is None or data is None:
        return None
    tensor, context, expert, pipeline = micro
    # a ring's steps are hidden behind the attention of the block before
    context_shown = max(0.0, context - tokens * attention * 3 / core.flops)
    one = compute + tensor + expert + context_shown + pipeline
    count = layout.micro_batches
    bubble_s = one * (layout.pp - 1) / layout.chunks
    hidden = min(data, compute * count * 2 / 3)
    step = one * count + bubble_s + data - hidden
    return Timing(
        compute_s=compute * count,
        bubble_s=bubble_s,
        bubble=bubble_share(layout.pp, count, layout.chunks),
        tensor_s=tensor * count,
        context_s=context * count,
        expert_s=expert * count,
        pipeline_s=pipeline * count,
        data_s=data,
        step_s=step,
        no_overlap_s=step + hidden + (context - context_shown) * count,
    )


def _communication(
    model: Model, recipe: Recipe, layout: Layout, network: Network
) -> tuple[float, float, float, float] | None:
    """Seconds of one micro-batch on one stage: tensor, context, expert, pipeline."""
    item = recipe.numbers.activation
    tokens = recipe.micro_batch * recipe.sequence / layout.cp
    layers = model.layers / layout.pp
    output = int(tokens * model.hidden * item)
    if layout.sequence_parallel:
        parts = [network.seconds(each, output, layout.tp, 1)
                 for each in ("reduce_scatter", "all_gather")]  # fmt: skip
    else:
        parts = [network.seconds("all_reduce", output, layout.tp, 1)]
    calls = 4 + (2 if recipe.recompute == "full" else 0)
    keys = int(tokens * 2 * model.kv_heads / layout.tp * model.head_size * item)
    # each rank passes on keys and values in forward, and them and their gradients in backward
    ring = network.seconds("sendrecv", keys, layout.cp, layout.tp)
    routed = int(tokens * model.hidden * item * max(model.active_experts, 1) / layout.tp)
    exchange = network.seconds("all_to_all", routed, layout.ep, layout.tp * layout.cp)
    inner = layout.tp * layout.cp * layout.dp
    split = layout.tp if layout.sequence_parallel else 1
    passed = network.seconds("sendrecv", output // split, layout.pp, inner)
    found = [*parts, ring, exchange, passed]
    if any(each is None for each in found):
        return None
    times = [each or 0.0 for each in found]
    ring_s, exchange_s, passed_s = times[-3:]
    tensor_s = sum(times[:-3]) * calls * layers
    return (
        tensor_s,
        ring_s * (layout.cp - 1) * 3 * layers,
        exchange_s * 4 * layers,
        passed_s * 2 * layout.chunks,
    )


def _data(model: Model, recipe: Recipe, layout: Layout, network: Network) -> float | None:
    """Seconds of data-parallel collectives of one step.

    Sharded parameters move layer by layer, so that each layer pays the latency of a call.
    """
    part = share(model, layout)
    layer_by_layer = recipe.sharding in ("zero3", "fsdp2")
    calls = max(part.all / part.layer, 1.0) if layer_by_layer else 1.0
    inner, ranks = layout.tp, part.dense_ranks

    def seconds(operation: str, each: float) -> float | None:
        once = network.seconds(operation, int(part.all / calls * each), ranks, inner)
        return None if once is None else once * calls

    gathered = seconds("all_gather", recipe.numbers.gathered)
    # whole layers are gathered for forward and again for backward; in a pipeline once
    gathers = (1 if layout.pp > 1 else 2 * layout.micro_batches) if layer_by_layer else 1
    if gathered is None:
        return None
    if recipe.frozen:
        return gathered * gathers if layer_by_layer else 0.0
    if recipe.sharding == "ddp":
        return seconds("all_reduce", recipe.numbers.gradient)
    reduced = seconds("reduce_scatter", recipe.numbers.gradient)
    if reduced is None:
        return None
    reductions = layout.micro_batches if layer_by_layer and layout.pp == 1 else 1
    return reduced * reductions + gathered * gathers
