"""The machines that a plan is for, their network, and the time of a training step on them.

How long a step takes: products of matrices at a rate, collectives by their model, the bubble.

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

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import Unsupported
from portagpu.base.units import count
from portagpu.devices.collectives.choice import choose
from portagpu.devices.collectives.cost import MAX_GBS, MIN_GBS, Hardware, Question
from portagpu.devices.discovery import cost_model_for
from portagpu.facts.nccl_tests.model import bus_factor
from portagpu.train.planning.recipe import stages
from portagpu.train.planning.states import share

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.devices.collectives.cost import CostModel
    from portagpu.facts.targets import Target
    from portagpu.train.planning.model import Model
    from portagpu.train.planning.recipe import Layout, Recipe


MAX_RANKS: Final = 1 << 16
_MAX_BYTES: Final = 1 << 50
_GB: Final = 1e9
_BOARD: Final = 8
"""GPUs of a machine by default: those of the usual boards (OAM, SXM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``nodes`` machines of ``local`` GPUs of one target.

    ``domain`` is how many GPUs the fastest links of a machine join. ``nic_gbs`` is what one GPU
    can send to the network, in GB/s. ``memory`` has the bytes of one GPU. ``remarks`` say what was
    assumed. Raises ValueError for impossible sizes.
    """

    target: Target
    nodes: int
    local: int
    domain: int
    memory: float
    nic_gbs: float | None = None
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if min(self.nodes, self.local, self.domain) < 1 or self.domain > self.local:
            raise ValueError("nodes, local and domain are at least 1, and domain at most local")
        if self.world > MAX_RANKS:
            raise ValueError(f"{self.world:,} ranks: a plan has at most {MAX_RANKS:,}")
        if not 0 < self.memory <= _MAX_BYTES:
            raise ValueError(
                f"a GPU has above 0 bytes and at most 1 PiB, not {self.memory:g} bytes"
            )
        if self.nic_gbs is not None and not MIN_GBS <= self.nic_gbs <= MAX_GBS:
            raise ValueError(
                f"nic_gbs is from {MIN_GBS:g} to {MAX_GBS:,.0f} GB/s, not {self.nic_gbs:g}"
            )
        if self.nodes > 1 and self.nic_gbs is None:
            raise ValueError(
                f"{self.nodes} machines need a network: give what one GPU can send, in GB/s "
                "(--nic-gbs 50 for 400 Gb/s)"
            )

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.nodes * self.local


def cluster_of(
    target: Target,
    world: int,
    *,
    nodes: int | None = None,
    domain: int | None = None,
    nic_gbs: float | None = None,
    memory: float | None = None,
) -> Cluster:
    """``world`` GPUs of a target; what is None follows from the target's facts, or is assumed.

    :param target: the product
    :param world: the number of GPUs
    :param nodes: machines; by default of 8 GPUs
    :param domain: GPUs of a machine that the fastest links join
    :param nic_gbs: what one GPU can send to the network, GB/s
    :param memory: bytes of one GPU
    :returns: the cluster, whose remarks say what was assumed
    :raises ValueError: for a world that the machines do not divide, and if the memory of a GPU is
        not known
    """
    if not 0 < world <= MAX_RANKS:
        raise ValueError(f"a world has at least 1 rank and at most {MAX_RANKS:,}, not {world:,}")
    remarks = []
    if nodes is None:
        nodes = -(-world // _BOARD)
        if nodes > 1:
            remarks.append(f"machines of {count(world // nodes, 'GPU')} are assumed")
    if nodes < 1 or world % nodes:
        raise ValueError(
            f"{count(world, 'rank')} cannot be spread evenly over {count(nodes, 'machine')}: "
            "give a number of machines (--nodes) that divides the ranks"
        )
    if memory is None:
        memory = target.value("memory.reported")
        if memory is None and (sold := target.value("memory.size")) is not None:
            memory = sold * _GB
    if memory is None:
        raise ValueError(f"the target {target.id} has no memory size: give a GPU's (--memory)")
    local = world // nodes
    if domain is None:
        topology, links = target.value("link.topology"), target.value("link.count")
        domain = 1 if topology is None else local
        if topology is None and local > 1:
            remarks.append(f"no fact joins the GPUs of {target.id}: separate GPUs are assumed")
        elif topology == "mesh" and links:
            # each link leads to one other GPU
            domain = min(local, links + 1)
    return Cluster(
        target=target,
        nodes=nodes,
        local=local,
        domain=min(domain, local),
        memory=float(memory),
        nic_gbs=nic_gbs,
        remarks=tuple(remarks),
    )


class Network:
    """Times of collectives on a cluster, by the model of ``portagpu collectives choose``.

    What that model does not cover is a wire's time: bytes through the slowest link. ``bases`` has
    what the answers were based on.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.bases: dict[str, None] = {}
        self._hardware = Hardware.of_target(cluster.target)
        self._model: CostModel | None = cost_model_for(cluster.target.vendor)
        # a search asks the same again and again
        self.seconds: Callable[[str, int, int, int], float | None] = cache(self._seconds)

    def _seconds(self, operation: str, size: int, ranks: int, inner: int) -> float | None:
        """Seconds of one call over ``ranks`` that are ``inner`` ranks apart; None if not known."""
        if ranks == 1 or size < 1:
            return 0.0
        local = math.gcd(ranks, max(1, self.cluster.local // inner))
        nodes = ranks // local
        question = Question(
            operation=operation,
            size_bytes=size,
            ranks=ranks,
            nodes=nodes,
            hardware=self._hardware,
            nics=local if nodes > 1 else None,
            nic_gbs=self.cluster.nic_gbs if nodes > 1 else None,
        )
        try:
            found = choose(question, self._model)
        except (Unsupported, ValueError):
            return self._wire(operation, size, ranks, nodes)
        self.bases[str(found.basis)] = None
        return found.best.time_us / 1e6

    def _wire(self, operation: str, size: int, ranks: int, nodes: int) -> float | None:
        """Bytes through the slowest link; those of an all-to-all leave a machine in part only."""
        local, nic = ranks // nodes, self.cluster.nic_gbs
        link = self._link(local) if local > 1 else None
        if (nodes > 1 and nic is None) or (local > 1 and link is None):
            return None
        self.bases["wire: bytes through the slowest link, without latency"] = None
        if operation == "all_to_all":
            inside = size * (local - 1) / ranks / link if link else 0.0
            outside = size * (ranks - local) / ranks / nic if nodes > 1 and nic else 0.0
            return max(inside, outside) / _GB
        slowest = nic if nodes > 1 else link
        return size * (bus_factor(operation, ranks) or 0.0) / ((slowest or math.inf) * _GB)

    def _link(self, ranks: int) -> float | None:
        """GB/s of one GPU to the others of its machine, in one direction."""
        of, value = self._hardware, self.cluster.target.value
        if value("link.topology") == "mesh" and of.links and of.link_gbs:
            return of.link_gbs * min(ranks - 1, of.links)
        found = of.all_links_gbs or value("host_link.per_direction")
        return None if found is None else float(found)


def rate_of(target: Target, dtype: str, efficiency: float | None) -> float | None:
    """Operations a second of one GPU in products: ``efficiency`` of the dense peak, or all of it.

    None if the peak is not known. Published rates of single products are not a better bound: some
    are floors of acceptance tests, which trainings exceed.
    """
    peak = target.peak(dtype)
    if peak is None or not peak.unit.endswith("FLOPS"):
        return None
    return peak.value * 1e12 * (1.0 if efficiency is None else efficiency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one step, of the slowest stage where stages differ.

    ``data_s`` overlaps with backward as far as that is long enough: ``step_s`` counts the overlap,
    and ``no_overlap_s`` does not. ``bubble`` is the share of the pipeline's time in which the
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
    """Two for each weight that multiplies the token, and 4 H Q T for the scores and their sum.

    Values may have another size than queries, and windows make T smaller.
    """
    head = 2.0 * (model.vocabulary * model.hidden + model.norm_parameters)
    return Flops(
        products=(2.0 * model.active_parameters - head) / model.layers,
        attention=2.0 * model.heads * (model.head_size + model.value_size) * model.span(sequence),
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
    # a ring's steps overlap with the attention of the previous block
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
