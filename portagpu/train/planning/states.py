"""Terms of an estimate of memory, and those of the states: parameters, gradients, the optimiser.
DeepSpeed's own estimator is a second definition of the states next to the paper's.

Sources: Rajbhandari et al. 2020, arXiv:1910.02054 (ZeRO), sections 3.1 and 5; DeepSpeed's
documentation of ``zero_optimization`` (defaults of bucket sizes); torch's documentation of
``fully_shard`` and ``DistributedDataParallel``.

The paper (arXiv:1910.02054) keeps 16-bit gradients and no more than a share of them from stage 2
on. The estimator counts 32-bit gradients in addition, and for stage 3 what is gathered at once.
Source: DeepSpeed, ``runtime/zero/stage_1_and_2.py`` and ``stage3.py``, functions
``estimate_zero2_model_states_mem_needs`` and ``estimate_zero3_model_states_mem_needs``. Its
documentation (``memory.rst``) still shows stage 2 as it was before: 4 P + 16 P / GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from portagpu.train.planning.recipe import OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.train.planning.model import Model
    from portagpu.train.planning.recipe import Layout, Recipe, Stage


class Phase(StrEnum):
    """Moments of a step that may be its peak: which parts are there at once differs."""

    LOSS = "loss"
    """Forward has ended: all activations, logits and loss."""
    BACKWARD = "backward"
    """In the first layer of backward: all activations, and what this layer makes again."""
    STEP = "step"
    """The optimiser's step: all gradients, no activations."""


ALWAYS: Final = tuple(Phase)


class Fit(StrEnum):
    """Whether an estimate fits: at its upper bound, only at its lower bound, or not at all."""

    YES = "fits"
    MAYBE = "may fit"
    NO = "does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Bytes of one rank: ``expected``, between ``least`` and ``most``, with formula and source.

    ``expected`` is what eager torch takes, as far as the source says.
    """

    name: str
    expected: float
    formula: str
    source: str
    least: float
    most: float
    phases: tuple[Phase, ...] = ALWAYS


def exact(
    name: str, size: float, formula: str, source: str, phases: tuple[Phase, ...] = ALWAYS
) -> Term:
    """A term without a range."""
    return ranged(name, (size, size, size), formula, source, phases)


def ranged(
    name: str,
    sizes: tuple[float, float, float],
    formula: str,
    source: str,
    phases: tuple[Phase, ...] = ALWAYS,
) -> Term:
    """A term of (expected, least, most) bytes."""
    expected, least, most = sizes
    return Term(
        name=name,
        expected=expected,
        least=least,
        most=most,
        formula=formula,
        source=source,
        phases=phases,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The memory of the rank that needs most: its terms, and the peak of their sum.

    ``host`` has what is offloaded to the host's memory. ``remarks`` are sentences about what the
    terms leave out. ``others`` are ranks of other stages, whose ranges may be wider.
    """

    terms: tuple[Term, ...]
    host: tuple[Term, ...] = ()
    remarks: tuple[str, ...] = ()
    others: tuple[Estimate, ...] = ()

    def at(self, phase: Phase, kind: str = "expected") -> float:
        """Bytes of all terms in a phase.

        :param phase: the moment of a step.
        :param kind: "expected", or a bound: "least" or "most".
        """
        return float(sum(getattr(each, kind) for each in self.terms if phase in each.phases))

    @property
    def phase(self) -> Phase:
        """The phase of the expected peak."""
        return max(Phase, key=self.at)

    @property
    def expected(self) -> float:
        """Bytes of the expected peak."""
        return self.at(self.phase)

    @property
    def least(self) -> float:
        """Bytes of the peak if every range is at its least, of the rank that has most then."""
        return self._peak("least")

    @property
    def most(self) -> float:
        """Bytes of the peak if every range is at its most, of the rank that has most then."""
        return self._peak("most")

    def _peak(self, kind: str) -> float:
        return max(rank.at(phase, kind) for rank in (self, *self.others) for phase in Phase)

    def of(self, name: str) -> Term | None:
        """The term of that name, None if there is none."""
        return next((each for each in self.terms if each.name == name), None)

    def fits(self, capacity: float) -> Fit:
        """Whether it fits ``capacity`` bytes."""
        if self.most <= capacity:
            return Fit.YES
        return Fit.MAYBE if self.least <= capacity else Fit.NO


_STAGE_OF: Final = {"ddp": 0, "zero1": 1, "zero2": 2}
"""Of what is shared out less than everything."""
_ZERO: Final = "ZeRO, arXiv:1910.02054, section 5"
_DEEPSPEED: Final = "DeepSpeed documentation, zero_optimization"
_BUCKET: Final = 500_000_000
"""Elements of ``reduce_bucket_size`` and ``allgather_bucket_size``."""
_OVERLAP: Final = 4.5
"""Buckets that ``overlap_comm`` takes: transformers' documentation of DeepSpeed."""
_PREFETCH: Final = 50_000_000
"""Elements of ``stage3_prefetch_bucket_size``."""
_LIVE: Final = 1_000_000_000
"""Elements of ``stage3_max_live_parameters``."""
_FORWARD: Final = (Phase.LOSS, Phase.BACKWARD)
_LATE: Final = (Phase.BACKWARD, Phase.STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Parameters of one rank before sharding over data-parallel ranks, and over how many.

    ``layer`` is one layer, experts included, ``outside`` the embedding and the head, ``largest``
    one matrix. The experts' parameters have fewer copies, so they are sharded over fewer ranks.
    """

    dense: float
    experts: float
    layer: float
    outside: float
    dense_ranks: int
    expert_ranks: int
    largest: float = 0.0

    @property
    def all(self) -> float:
        """Dense ones and experts."""
        return self.dense + self.experts

    @property
    def sharded(self) -> float:
        """What is left of all after sharding."""
        return self.dense / self.dense_ranks + self.experts / self.expert_ranks


def share(model: Model, layout: Layout, stage: Stage) -> Share:
    """Parameters of one rank of a stage."""
    outside = model.embedding_parameters if stage.first else 0
    if stage.last:
        # a tied head is a copy, unless the embedding is on the same rank
        copied = model.tied and not stage.first
        outside += model.head_parameters + (model.vocabulary * model.hidden if copied else 0)
    dense, experts = model.dense_layer_parameters, model.expert_layer_parameters
    plain = stage.plain * model.plain_layer_parameters if stage.plain else 0
    routed = stage.layers - stage.plain
    largest = (dense + experts / layout.ep) if routed else model.plain_layer_parameters
    return Share(
        dense=(routed * dense + plain + outside) / layout.tp,
        experts=routed * experts / layout.tp / layout.ep,
        layer=largest / layout.tp,
        outside=outside / layout.tp,
        dense_ranks=layout.dp * layout.cp,
        expert_ranks=max(1, layout.dp * layout.cp // layout.ep),
        largest=model.hidden
        * max(model.inner, model.plain_inner, model.vocabulary if outside else 0)
        / layout.tp,
    )


def adapter_term(model: Model, recipe: Recipe, layout: Layout, part: Share, stage: Stage) -> Term:
    """Low-rank adapters with their gradients, master weights and optimiser state."""
    numbers = recipe.numbers
    all_layers = model.adapter_parameters(recipe.lora_rank, recipe.adapted)
    adapters = all_layers * stage.layers / model.layers / layout.tp
    shared = _STAGE_OF.get(recipe.sharding, 3)
    roles = (
        (numbers.weight, 3),
        (numbers.gradient, 2),
        (numbers.master + OPTIMIZERS[recipe.optimizer][0], 1),
    )
    each = sum(size / (part.dense_ranks if shared >= least else 1) for size, least in roles)
    formula = f"{each:g} B x {adapters:,.0f} of rank {recipe.lora_rank}, {recipe.adapted}"
    return exact("adapters and their states", adapters * each, formula, "arXiv:2106.09685")


def state_terms(part: Share, recipe: Recipe, layout: Layout) -> Iterator[tuple[Term, bool]]:
    """Terms of the states; True says that offloading moves it to the host."""
    numbers = recipe.numbers
    stage = _STAGE_OF.get(recipe.sharding, 3)

    def held(
        name: str,
        each: float,
        least_stage: int,
        source: str = _ZERO,
        phases: tuple[Phase, ...] = ALWAYS,
    ) -> Term:
        sharded = stage >= least_stage
        over = f" / {part.dense_ranks} data-parallel ranks" if sharded else ""
        words = f"{each:g} B x {part.all:,.0f} parameters{over}"
        return exact(name, each * (part.sharded if sharded else part.all), words, source, phases)

    yield held("parameters", numbers.weight, 3), recipe.offload == "parameters"
    if not recipe.training or recipe.frozen:
        return
    gone = recipe.offload != "none"
    # gradients that were freed are not there when the loss is computed; buckets keep them
    freed = recipe.sharding == "fsdp2" or (recipe.sharding == "ddp" and part.dense_ranks == 1)
    late = freed and (layout.micro_batches == 1 or layout.pp > 1)
    phases = (Phase.STEP,) if late else ALWAYS
    yield held("gradients", numbers.gradient, 2, phases=phases), gone
    if numbers.master:
        yield held("master weights", numbers.master, 1), gone
    state, source = OPTIMIZERS[recipe.optimizer]
    if state:
        yield held("optimiser state", state, 1, source), gone
    if gone:
        return
    if recipe.foreach:
        stepped = held("", numbers.master or numbers.weight, 1).expected
        formula = "one more copy of what is stepped, if all parameters are stepped at once"
    else:
        over = part.dense_ranks if stage >= 1 else 1
        stepped = 3 * part.largest * (numbers.master or numbers.weight) / over if state else 0.0
        formula = "two for the largest parameter, and the denominator of the one before"
    source = "torch documentation, torch.optim: foreach"
    sizes = (stepped, 0, stepped)
    yield ranged("optimiser temporaries", sizes, formula, source, (Phase.STEP,)), False


def buffer_terms(part: Share, recipe: Recipe, layout: Layout) -> Iterator[Term]:
    """What data parallelism and casts buffer."""
    numbers = recipe.numbers
    if numbers.cast:
        layers = part.layer if recipe.sharding in ("zero3", "fsdp2") else part.all - part.outside
        usual = layers * numbers.cast if recipe.sharding not in ("zero3", "fsdp2") else 0
        yield ranged(
            "casts of weights",
            (usual, 0, layers * numbers.cast),
            f"up to {numbers.cast:g} B x {layers:,.0f} parameters",
            numbers.source,
            (Phase.LOSS, Phase.BACKWARD),
        )
    if part.dense_ranks == 1:
        return
    trained = recipe.training and not recipe.frozen
    gathered, gradient = numbers.gathered, numbers.gradient
    if recipe.sharding == "ddp" and trained:
        most = part.all * gradient
        yield ranged(
            "gradient buckets",
            (most, 0, most),
            "a copy of all gradients, none with gradient_as_bucket_view=True",
            "torch documentation, DistributedDataParallel",
        )
    elif recipe.sharding in ("zero1", "zero2") and trained:
        bucket = min(_BUCKET, part.all)
        yield ranged(
            "communication buckets",
            (bucket * gradient, bucket * gradient, bucket * _OVERLAP * gradient),
            f"reduce_bucket_size of {_BUCKET:.0e} elements or all; {_OVERLAP:g} with overlap_comm",
            _DEEPSPEED,
            _LATE,
        )
    elif recipe.sharding == "zero3":
        least = min(2 * part.layer, part.all)
        usual = min(part.layer + max(part.layer, _PREFETCH) + part.outside, part.all)
        most = min(_LIVE + part.layer, part.all)
        yield ranged(
            "gathered parameters",
            (usual * gathered, least * gathered, max(usual, most) * gathered),
            "a layer, a prefetched one and what is outside of layers; at most "
            "stage3_max_live_parameters",
            _DEEPSPEED,
        )
    elif recipe.sharding == "fsdp2" and layout.pp > 1:
        source = "torch.distributed.pipelining.stage: backward_maybe_with_nosync"
        kept = "of the whole stage, until the last micro-batch's backward"
        yield exact("gathered parameters", part.all * gathered, kept, source, _FORWARD)
        if trained:
            # interleaved, one chunk's backward ends before the next one's begins if m is at most p
            apart = layout.chunks if layout.micro_batches <= layout.pp else 1
            size = part.all / apart * gradient
            kept = "of a chunk, until its last micro-batch's backward" if apart > 1 else kept
            yield exact("gradients to reduce", size, kept, source, _FORWARD)
    elif recipe.sharding == "fsdp2":
        two = 2 * part.layer + part.outside
        reduced = max(part.layer, part.outside) * gradient if trained else 0.0
        yield ranged(
            "gathered parameters",
            (
                (two + part.layer) * gathered,
                (part.layer + part.outside) * gathered,
                (two + 2 * part.layer) * gathered,
            ),
            "a layer, a prefetched one, a buffer to copy into, and the root's own parameters",
            "torch documentation, fully_shard",
        )
        yield ranged(
            "gradients to reduce",
            (reduced, part.layer * gradient if reduced else 0.0, 2 * reduced),
            "whole gradients of the group that is being reduced",
            "torch documentation, fully_shard",
            (Phase.BACKWARD,),
        )


_BUFFERS = 1.5
"""``additional_buffer_factor`` of the host's memory."""


@dataclass(frozen=True, slots=True)
class DeepSpeedNeeds:
    """Bytes of states that DeepSpeed's estimator gives: of one GPU, and of one machine's host."""

    gpu: int
    host: int


def deepspeed_needs(
    parameters: int,
    *,
    stage: int,
    gpus: int,
    nodes: int = 1,
    offload: str = "none",
    largest: int = 0,
    zero_init: bool = True,
) -> DeepSpeedNeeds:
    """What DeepSpeed's estimator says of parameters, gradients and Adam's states in 16 bits.

    :param parameters: of the model.
    :param stage: of ZeRO: 2 or 3; the estimator has no other.
    :param gpus: of one machine.
    :param nodes: machines.
    :param offload: "none", "optimizer", or "parameters" (stage 3).
    :param largest: parameters of the largest module, for stage 3.
    :param zero_init: whether ``zero.Init`` makes the model sharded (stage 3).
    :returns: bytes of a GPU and of a host.
    :raises ValueError: for another stage, and for parameters that stage 2 cannot offload.
    """
    if stage not in (2, 3) or (stage == 2 and offload == "parameters"):
        raise ValueError("DeepSpeed estimates ZeRO 2 and 3, and offloads parameters with 3 alone")
    world = gpus * nodes
    made = 4 * gpus
    if stage == 2:
        if offload == "none":
            return _needs(2 * parameters + 18 * parameters // world, parameters * made)
        return _needs(2 * parameters, parameters * max(4 * world, 16))
    gathered = 4 * largest
    if offload == "none":
        on_host = (largest if zero_init else parameters) * made
        return _needs(gathered + 18 * parameters // world, on_host)
    each = (18 if offload == "parameters" else 16) / nodes
    gpu = gathered + (0 if offload == "parameters" else 2 * parameters // world)
    return _needs(gpu, parameters * (each if zero_init else max(made, each)))


def _needs(gpu: int, host: float) -> DeepSpeedNeeds:
    return DeepSpeedNeeds(gpu=int(gpu), host=int(host * _BUFFERS))
