"""How a model is trained: precision, optimiser, sharding, recomputation, layout and stages.

Stages of a pipeline hold layers, the embedding and the head, and activations in flight.
Layers that do not divide are spread as torchtitan does (``_generate_llm_fqn_per_model_part``): the
embedding and the head count as a layer each, and the first parts take what is left over.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from portagpu.base.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from portagpu.train.planning.model import Model


MAX_COUNT: Final = 1 << 32
"""Of sequences and tokens; a greater number is a mistake."""
SHARDINGS: Final = ("ddp", "zero1", "zero2", "zero3", "fsdp2")
"""What data-parallel ranks share out: nothing; the optimiser's state; gradients too; parameters
too, by DeepSpeed or by torch's ``fully_shard``. Source: Rajbhandari et al. 2020, arXiv:1910.02054,
section 5."""
RECOMPUTES: Final = ("none", "selective", "operators", "full")
"""What backward computes again: nothing; the core of attention (Korthikanti et al. 2022,
arXiv:2205.05198, section 5); all but attention's result and every other product of matrices
(torchtitan's ``selective_ac_option = "op"``); whole layers from their input."""
OFFLOADS: Final = ("none", "optimizer", "parameters")
"""What is in the host's memory: nothing; the optimiser's state and step (and gradients, which it
reads); parameters too (ZeRO-Infinity, arXiv:2104.07857; FSDP2's ``CPUOffloadPolicy``)."""
SCHEDULES: Final = ("gpipe", "1f1b", "interleaved")
ADAPTED: Final = ("queries-values", "attention", "all")
"""Products that low-rank adapters are added to; "all" has those of the MLP too. Experts that tokens
choose from have none."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes of one parameter in each role, and of one activation.

    ``weight`` is what forward reads, ``master`` a copy for the optimiser (0: the weight itself).
    ``cast`` is a temporary copy for products (autocast's cache, or fp8 and its transpose): the most
    that it takes. ``gathered`` is what sharded parameters are gathered in.
    """

    name: str
    weight: float
    gradient: float
    master: float
    activation: float
    cast: float
    gathered: float
    matrix: str
    source: str


# name, bytes of weight, gradient, master, activation, cast, gathered; products in; source
PRECISIONS: Final[Mapping[str, Precision]] = {
    each.name: each
    for each in (
        Precision("fp32", 4, 4, 0, 4, 0, 4, "fp32", "every tensor is float32"),
        Precision(
            *("bf16", 2, 2, 0, 2, 0, 2, "bf16"),
            "every tensor is bfloat16, the optimiser's state too if it is adam-bf16",
        ),
        Precision(
            *("autocast-bf16", 4, 4, 0, 2, 2, 2, "bf16"),
            "float32 weights, products in bfloat16: torch.autocast, MixedPrecisionPolicy",
        ),
        Precision(
            *("mixed-bf16", 2, 2, 4, 2, 0, 2, "bf16"),
            "arXiv:1910.02054, section 3.1: 2 + 2 + K",
        ),
        Precision(
            *("mixed-bf16-fp32-grads", 2, 4, 4, 2, 0, 2, "bf16"),
            "Megatron-LM docs, distributed optimizer: bf16 parameters, fp32 gradients",
        ),
        Precision(
            *("mixed-fp8", 2, 4, 4, 2, 2, 2, "fp8"),
            "mixed-bf16-fp32-grads, with fp8 products of bf16 weights (Transformer Engine)",
        ),
        Precision(
            *("autocast-fp8", 4, 4, 0, 2, 2, 2, "fp8"),
            "autocast-bf16, with fp8 products (torchao's float8 training)",
        ),
    )
}
OPTIMIZERS: Final[Mapping[str, tuple[float, str]]] = {
    "adam": (8.0, "two float32 moments: arXiv:1412.6980"),
    "adam-bf16": (4.0, "two moments in bfloat16"),
    "adam-8bit": (2.03125, "two moments of 1 B and a float32 scale for each 256: arXiv:2110.02861"),
    "momentum": (4.0, "one float32 moment"),
    "sgd": (0.0, "no state"),
}
"""Name -> bytes of state for each parameter, and which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A training step on each data-parallel rank. Raises ValueError for an unknown word.

    ``micro_batch`` sequences of ``sequence`` tokens go through the model at once. ``fused`` means
    attention that keeps no scores (FlashAttention), ``fused_loss`` a loss that makes no float32
    copies of the logits (compiled, or in chunks). ``graphs`` is for steps captured as graphs, and
    ``foreach`` for an optimiser that steps all parameters at once, torch's default on a GPU. Not
    ``training`` is a forward alone. ``frozen`` weights get no gradients; adapters of ``lora_rank``
    are trained in their place (LoRA, arXiv:2106.09685), of the products that ``adapted`` says: a
    word of ``ADAPTED``; with ``lora_dropout`` what they read is kept again, with a mask.
    ``keep_gathered`` says whether tensor parallelism keeps the whole inputs that it gathered; by
    default torch's does, and Megatron-LM's gathers again. A KV cache holds ``kv_tokens`` tokens of
    sequences that are ``sequence`` long, each number in ``kv_bytes``.
    """

    micro_batch: int = 1
    sequence: int = 2048
    precision: str = "mixed-bf16"
    optimizer: str = "adam"
    sharding: str = "ddp"
    recompute: str = "none"
    offload: str = "none"
    fused: bool = True
    fused_loss: bool = False
    graphs: bool = False
    foreach: bool = True
    training: bool = True
    frozen: bool = False
    lora_rank: int = 0
    adapted: str = "all"
    lora_dropout: bool = False
    keep_gathered: bool | None = None
    kv_tokens: int = 0
    kv_bytes: float = 2
    fragmentation: float = 0.3
    """The most that is lost: arXiv:1910.02054, section 3.2, saw out-of-memory with over 30% free
    "in some extreme cases"."""

    def __post_init__(self) -> None:
        for kind, word, known in (
            ("precision", self.precision, PRECISIONS),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("sharding", self.sharding, SHARDINGS),
            ("recompute", self.recompute, RECOMPUTES),
            ("offload", self.offload, OFFLOADS),
            ("adapted", self.adapted, ADAPTED),
        ):
            _known(kind, word, known)
        if not (0 < self.micro_batch <= MAX_COUNT and 0 < self.sequence <= MAX_COUNT):
            raise ValueError(
                f"micro_batch and sequence are from 1 to {MAX_COUNT:,}, "
                f"not {self.micro_batch:,} and {self.sequence:,}"
            )
        if not 0 <= self.kv_tokens <= MAX_COUNT or not 0 < self.kv_bytes <= 8:
            raise ValueError(
                f"kv_tokens are from 0 to {MAX_COUNT:,}, and kv_bytes above 0 and at most 8"
            )
        if not 0 <= self.lora_rank <= MAX_COUNT or (self.lora_rank and not self.frozen):
            raise ValueError(
                f"lora_rank is from 0 to {MAX_COUNT:,}, and above 0 for frozen weights alone"
            )
        if not 0 <= self.fragmentation < 1:
            raise ValueError(f"fragmentation is at least 0 and below 1, not {self.fragmentation!r}")

    @property
    def numbers(self) -> Precision:
        """The bytes of its precision."""
        return PRECISIONS[self.precision]

    @property
    def keeps_gathered(self) -> bool:
        """``keep_gathered``, or what is usual."""
        return self.by_torch if self.keep_gathered is None else self.keep_gathered

    @property
    def by_torch(self) -> bool:
        """Whether torch's own tensor parallelism and pipelines are meant, or else Megatron-LM's."""
        return self.sharding == "fsdp2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Ranks of a tensor-, pipeline-, data-, context- and expert-parallel group.

    The world is ``tp * pp * dp * cp``; expert groups are made of data-parallel ones. ``chunks`` is
    the model's parts on each stage of an interleaved pipeline.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    chunks: int = 1
    micro_batches: int = 1

    def __post_init__(self) -> None:
        sizes = (self.tp, self.pp, self.dp, self.cp, self.ep, self.chunks, self.micro_batches)
        if min(sizes) < 1:
            raise ValueError(
                f"tp, pp, dp, cp, ep, chunks and micro_batches are at least 1, not {min(sizes)}"
            )
        _known("schedule", self.schedule, SCHEDULES)
        if (self.schedule == "interleaved") != (self.chunks > 1):
            raise ValueError(
                "the schedule interleaved has 2 or more chunks a stage, any other has 1"
            )

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.tp * self.pp * self.dp * self.cp

    def __str__(self) -> str:
        degrees = {name: getattr(self, name) for name in ("tp", "pp", "dp", "cp", "ep")}
        shown = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
        if self.sequence_parallel:
            shown.append("sp")
        if self.pp > 1:
            shown.append(self.schedule + (f"x{self.chunks}" if self.chunks > 1 else ""))
        return " ".join(shown) or "one rank"


def _known(kind: str, word: str, known: Iterable[str]) -> None:
    names = list(known)
    if word not in names:
        offer = did_you_mean(word, names, f"there is {', '.join(names)}", 1)
        raise ValueError(f"unknown {kind} {word!r}; {offer}")


@dataclass(frozen=True, slots=True)
class Stage:
    """One rank of a pipeline: its layers in all chunks, and what is in flight.

    ``in_flight`` counts layers times micro-batches whose activations it holds at once. ``plain`` of
    its layers have an MLP in a model with experts. The first stage has the embedding, and the last
    one the head.
    """

    index: int
    layers: int
    in_flight: float
    first: bool
    last: bool
    plain: int = 0


def layers_of_parts(layers: int, parts: int) -> tuple[int, ...]:
    """Layers of each part of a model that is cut into ``parts``; all equal if they divide."""
    if layers % parts == 0:
        return (layers // parts,) * parts
    each, more = divmod(layers + 2, parts)
    found = [each + (index < more) for index in range(parts)]
    found[0] -= 1
    found[-1] -= 1
    return tuple(found)


def stages(model: Model, layout: Layout) -> tuple[Stage, ...]:
    """All stages. Chunk c of stage r is part c p + r of the model.

    In 1F1B stage r holds p - r micro-batches at once. Interleaved, it starts with (v - 1) p +
    2 (p - r) - 1 chunks, which is 1 + (p - 1) / (p v) of all layers on the first one
    (arXiv:2205.05198, section 4.2.3). GPipe holds all m micro-batches, and nothing holds more.
    """
    parts = layers_of_parts(model.layers, layout.pp * layout.chunks)
    begins = [0, *accumulate(parts)][:-1]
    found = []
    for index in range(layout.pp):
        layers = sum(parts[index :: layout.pp])
        held: float = layout.micro_batches
        if layout.schedule == "1f1b":
            held = min(held, layout.pp - index)
        elif layout.schedule == "interleaved":
            started = (layout.chunks - 1) * layout.pp + 2 * (layout.pp - index) - 1
            held = min(held, started / layout.chunks)
        plain = sum(
            begin <= each < begin + size
            for begin, size in zip(
                begins[index :: layout.pp], parts[index :: layout.pp], strict=True
            )
            for each in model.plain_layers
        )
        last = index == layout.pp - 1
        found.append(Stage(index, layers, layers * held, index == 0, last, plain))
    return tuple(found)
