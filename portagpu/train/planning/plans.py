"""Every layout of a world that keeps the rules, ranked; and every other with the rule it breaks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Final

from portagpu.base.units import count, number, size
from portagpu.train.planning.cluster import Cluster, Network, step_time
from portagpu.train.planning.memory import estimate
from portagpu.train.planning.model import Model
from portagpu.train.planning.recipe import MAX_COUNT, Layout
from portagpu.train.planning.states import Fit
from portagpu.train.planning.utilisation import published_utilisation, seconds_between

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from portagpu.train.planning.cluster import Timing
    from portagpu.train.planning.recipe import Recipe
    from portagpu.train.planning.states import Estimate
    from portagpu.train.planning.utilisation import Utilisation


def broken_rule(
    model: Model, recipe: Recipe, layout: Layout, cluster: Cluster, batch: int
) -> tuple[str, str] | None:
    """(name, why) of the first rule that the layout breaks, None if it keeps all.

    ``batch`` is the global batch, in sequences.
    """
    for name, rule in RULES.items():
        if (why := rule(model, recipe, layout, cluster, batch)) is not None:
            return name, why
    return None


def _world(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    product = f"tp {at.tp} x pp {at.pp} x dp {at.dp} x cp {at.cp} = {at.world:,}"
    return (
        None
        if at.world == on.world
        else f"{product}, not {on.world:,} {'rank' if on.world == 1 else 'ranks'}"
    )


def _heads(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    return f"tp {at.tp} does not divide {m.heads} heads" if m.heads % at.tp else None


def _kv_heads(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    apart = m.kv_heads % at.tp and at.tp % m.kv_heads
    return f"tp {at.tp} and {m.kv_heads} kv heads divide neither way" if apart else None


def _inner(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    widths = [each for each in (m.inner, m.shared_inner, m.plain_inner) if each % at.tp]
    return f"tp {at.tp} does not divide the MLP's {widths[0]}" if widths else None


def _domain(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    if at.tp <= on.domain and on.domain % at.tp == 0:
        return None
    return f"tp {at.tp} does not fit in the fastest domain, of {on.domain}"


def _layers(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    chunks = f" x {at.chunks} chunks" if at.chunks > 1 else ""
    short = at.pp * at.chunks > m.layers
    return f"pp {at.pp}{chunks} is more than {count(m.layers, 'layer')}" if short else None


def _batch(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    at_once = at.dp * r.micro_batch
    if batch % at_once == 0:
        return None
    return f"dp {at.dp} x micro-batch {r.micro_batch} does not divide a batch of {batch}"


def _micro_batches(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    product = at.micro_batches * r.micro_batch * at.dp
    if product == batch:
        return None
    parts = count(at.micro_batches, "micro-batch", "micro-batches")
    return f"{parts} x {r.micro_batch} x dp {at.dp} are not {batch}"


def _filled(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    if at.micro_batches >= at.pp:
        return None
    return f"a pipeline of {at.pp} stages needs as many micro-batches, not {at.micro_batches}"


def _interleaved(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    if at.chunks == 1:
        return None
    if at.pp == 1:
        return "interleaving needs a pipeline"
    return (
        f"interleaving needs micro-batches ({at.micro_batches}) in multiples of pp {at.pp}"
        if at.micro_batches % at.pp
        else None
    )


def _context(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    if at.cp == 1 or r.sequence % (2 * at.cp) == 0:
        return None
    return f"2 x cp {at.cp} does not divide {r.sequence} tokens"


def _sequence(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    if not at.sequence_parallel:
        return None
    if at.tp == 1:
        return "sequence parallelism needs tp above 1"
    rest = r.sequence // at.cp % at.tp
    return f"tp {at.tp} does not divide {r.sequence // at.cp} tokens of a rank" if rest else None


def _experts(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    if at.ep == 1:
        return None
    if not m.experts:
        return "ep above 1 needs a model with experts"
    if m.experts % at.ep:
        return f"ep {at.ep} does not divide {m.experts} experts"
    ranks = at.dp * at.cp
    return f"ep {at.ep} does not divide dp x cp = {ranks}" if ranks % at.ep else None


def _sharding(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    if at.pp == 1 or r.sharding not in ("zero2", "zero3"):
        return None
    return f"{r.sharding} and a pipeline: DeepSpeed's pipeline engine takes ZeRO 0 and 1"


RULES: Final[Mapping[str, Callable[[Model, Recipe, Layout, Cluster, int], str | None]]] = {
    "world": _world,
    "heads": _heads,
    "kv-heads": _kv_heads,
    "mlp": _inner,
    "tp-in-domain": _domain,
    "layers": _layers,
    "batch": _batch,
    "micro-batches": _micro_batches,
    "pipeline-filled": _filled,
    "interleaved": _interleaved,
    "context": _context,
    "sequence": _sequence,
    "experts": _experts,
    "sharding-with-pipeline": _sharding,
}
"""By name, in the order in which they are asked. ``memory`` comes last, after an estimate: a plan
that does not fit even if every range is at its least."""
MEMORY: Final = "memory"


AUTO: Final = "auto"
SEARCHED: Final = ("none", "selective", "operators", "full")
"""Recomputations that a search tries."""
MICRO_BATCHES: Final = (1, 2, 4, 8)
"""Sequences at once that a search tries."""
_CHUNKS: Final = (1, 2, 4)
_DEGREES: Final = ("tp", "pp", "dp", "cp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A layout that keeps every rule, with its recipe, its memory and its time.

    ``timing`` is None where a rate or a link is not known. ``why`` says what decides its time.
    ``between_s`` is the shortest and longest step with the share of the peak that published
    trainings reach, None where none is published and where an efficiency was given.
    """

    layout: Layout
    recipe: Recipe
    memory: Estimate
    fit: Fit
    timing: Timing | None
    why: str
    between_s: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A layout that breaks a rule; ``needs`` has the least bytes if the rule is "memory"."""

    layout: Layout
    recipe: Recipe
    rule: str
    why: str
    needs: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """All plans, the fastest first, and all that were rejected."""

    cluster: Cluster
    batch: int
    ranked: tuple[Plan, ...]
    rejected: tuple[Rejected, ...]
    bases: tuple[str, ...] = ()
    efficiency: float | None = None
    utilisation: Utilisation | None = None

    @property
    def best(self) -> Plan:
        """The first; raises ValueError, in one line, where nothing fits."""
        if self.ranked:
            return self.ranked[0]
        raise ValueError(self.nothing)

    @property
    def nothing(self) -> str:
        """Why there is no plan."""
        short = [each for each in self.rejected if each.needs is not None]
        if short:
            least = min(short, key=lambda each: each.needs or 0.0)
            return (
                f"nothing fits: the smallest layout ({least.layout}, recompute "
                f"{least.recipe.recompute}) needs at least {size(least.needs)} of "
                f"{size(self.cluster.memory)} a GPU; take more GPUs, more sharding or offload"
            )
        if not self.rejected:
            return (
                f"no layout of these degrees makes a world of {count(self.cluster.world, 'rank')}"
            )
        order = [*RULES]
        last = max(self.rejected, key=lambda each: order.index(each.rule))
        return f"no layout keeps every rule: the closest breaks {last.rule}: {last.why}"


def plan(
    model: Model,
    cluster: Cluster,
    recipe: Recipe,
    *,
    batch: int,
    strategy: str | Layout = AUTO,
    micro_batches: Sequence[int] = MICRO_BATCHES,
    recomputes: Sequence[str] = SEARCHED,
    longest_context: int = 1,
    efficiency: float | None = None,
) -> Plans:
    """The layouts of the cluster's ranks, ranked by time.

    Plans that are expected not to fit come last.

    :param model: the sizes of the model
    :param cluster: the machines
    :param recipe: how the model is trained
    :param batch: the global batch, in sequences
    :param strategy: "auto" tries every split into tp, pp, dp, ep and, up to ``longest_context``,
        cp; "tp=8,pp=2" fixes some, and a :class:`Layout` all
    :param micro_batches: sequences at once, each of which is tried in place of the recipe's
    :param recomputes: kinds of recomputation, each of which is tried in place of the recipe's
    :param longest_context: the greatest cp that is tried
    :param efficiency: the share of the peak that products of matrices reach; by default all of it
    :returns: the plans, and the layouts that break a rule
    :raises TypeError: for another model or cluster, such as a name
    :raises ValueError: for an unknown word of ``strategy``, and for an impossible batch
    """
    for name, given, kind in (("model", model, Model), ("cluster", cluster, Cluster)):
        if not isinstance(given, kind):
            hint = ': planning.find_model("name") has the known ones' if kind is Model else ""
            raise TypeError(f"{name} is a planning.{kind.__name__}, not {given!r}{hint}")
    if not 0 < batch <= MAX_COUNT:
        raise ValueError(f"batch is from 1 to {MAX_COUNT:,} sequences, not {batch:,}")
    if efficiency is not None and not 0.001 <= efficiency <= 1:
        raise ValueError(f"efficiency is a share of the peak from 0.001 to 1, not {efficiency!r}")
    network = Network(cluster)
    ranked, rejected = [], []
    shares = published_utilisation(cluster.target, recipe.numbers.matrix, model.active_parameters)
    shares = shares if efficiency is None and recipe.training and not recipe.frozen else None
    recipes = [
        replace(recipe, micro_batch=micro, recompute=again)
        for micro, again in product(micro_batches, recomputes)
        # without scores there is no core of attention to make again
        if not (recipe.fused and again == "selective" and "none" in recomputes)
    ]
    for layout, each in _candidates(model, cluster, recipes, batch, strategy, longest_context):
        broken = broken_rule(model, each, layout, cluster, batch)
        if broken is not None:
            rejected.append(Rejected(layout=layout, recipe=each, rule=broken[0], why=broken[1]))
            continue
        memory = estimate(model, each, layout, target=cluster.target)
        fit = memory.fits(cluster.memory)
        if fit is Fit.NO:
            why = f"needs at least {size(memory.least)} of {size(cluster.memory)}"
            needs = memory.least
            rejected.append(Rejected(layout=layout, recipe=each, rule=MEMORY, why=why, needs=needs))
            continue
        timing = step_time(model, each, layout, cluster, network, efficiency)
        ranked.append(
            Plan(
                layout=layout,
                recipe=each,
                memory=memory,
                fit=fit,
                timing=timing,
                why=_why(timing, layout),
                between_s=None
                if timing is None or shares is None
                else seconds_between(shares, model, each, layout, cluster.target, timing.step_s),
            )
        )
    ranked.sort(key=lambda each: _order(each, cluster.memory))
    return Plans(
        cluster=cluster,
        batch=batch,
        ranked=tuple(ranked),
        rejected=tuple(rejected),
        bases=tuple(network.bases),
        efficiency=efficiency,
        utilisation=shares,
    )


def _order(found: Plan, memory: float) -> tuple[bool, float, float]:
    """What is expected not to fit comes last; then time, then memory."""
    time = 0.0 if found.timing is None else found.timing.step_s
    return found.memory.expected > memory, time, found.memory.expected


def _why(timing: Timing | None, layout: Layout) -> str:
    if timing is None:
        return "no time: the target's rate or a link is not known"
    parts = {
        "products of matrices": timing.compute_s,
        "bubble": timing.bubble_s,
        "tensor-parallel collectives": timing.tensor_s,
        "expert exchange": timing.expert_s,
        "pipeline transfers": timing.pipeline_s,
        "collectives that are not hidden": timing.step_s
        - (timing.compute_s + timing.bubble_s + timing.tensor_s + timing.expert_s
           + timing.pipeline_s),
    }  # fmt: skip
    shown = sorted(parts.items(), key=lambda each: -each[1])[:2]
    shares = {name: part / timing.step_s for name, part in shown}
    return ", ".join(f"{name} {number(100 * s, 2)}%" for name, s in shares.items() if s > 0.001)


def _candidates(
    model: Model,
    cluster: Cluster,
    recipes: Sequence[Recipe],
    batch: int,
    strategy: str | Layout,
    longest_context: int,
) -> Iterator[tuple[Layout, Recipe]]:
    if isinstance(strategy, Layout):
        yield from ((strategy, each) for each in recipes)
        return
    fixed, world = parse_strategy(strategy), cluster.world
    most = {
        # one size more than fits, so that its rule is named
        "tp": 2 * cluster.domain,
        "pp": world,
        "cp": longest_context,
        "ep": model.experts or 1,
    }
    divisors = [each for each in range(1, world + 1) if world % each == 0]
    tries = {
        name: [fixed[name]] if name in fixed else [each for each in divisors if each <= limit]
        for name, limit in most.items()
    }
    free = {*_DEGREES} - {"ep", *fixed}
    stated = prod(degree for name, degree in fixed.items() if name != "ep")
    for tp, pp, cp, ep in product(*tries.values()):
        inner = tp * pp * cp
        dp = fixed.get("dp") or max(world // inner, 1)
        if dp * inner != world and free and world % stated == 0:
            # some other value of what is free makes a world of it
            continue
        for recipe, chunks in product(recipes, _CHUNKS if pp > 1 else (1,)):
            yield (
                Layout(
                    tp=tp,
                    pp=pp,
                    dp=dp,
                    cp=cp,
                    ep=ep,
                    sequence_parallel=tp > 1,
                    schedule="1f1b" if chunks == 1 else "interleaved",
                    chunks=chunks,
                    micro_batches=max(1, batch // (dp * recipe.micro_batch)),
                ),
                recipe,
            )


def parse_strategy(text: str) -> dict[str, int]:
    """The degrees of "tp=8,pp=2"; empty for "auto". Raises ValueError for anything else."""
    fixed: dict[str, int] = {}
    if text == AUTO:
        return fixed
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        if name in fixed:
            raise ValueError(f"{name} is there twice in {text!r}: give each degree once")
        if name not in _DEGREES or not value.isdecimal() or not 0 < int(value) <= 1 << 16:
            raise ValueError(
                f"unknown degree of parallelism {word.strip()!r}: write auto, or tp=8,pp=2 with "
                f"{', '.join(_DEGREES)}"
            )
        fixed[name] = int(value)
    return fixed
