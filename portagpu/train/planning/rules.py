"""Why a layout cannot be: each rule has a name, which a rejected plan carries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from portagpu.train.planning.cluster import Cluster
    from portagpu.train.planning.model import Model
    from portagpu.train.planning.recipe import Layout, Recipe


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
    return None if at.world == on.world else f"{product}, not {on.world:,} ranks"


def _heads(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    return f"tp {at.tp} does not divide {m.heads} heads" if m.heads % at.tp else None


def _kv_heads(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    apart = m.kv_heads % at.tp and at.tp % m.kv_heads
    return f"tp {at.tp} and {m.kv_heads} kv heads divide neither way" if apart else None


def _inner(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    return f"tp {at.tp} does not divide the MLP's {m.inner}" if m.inner % at.tp else None


def _domain(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    if at.tp <= on.domain and on.domain % at.tp == 0:
        return None
    return f"tp {at.tp} does not fit in the fastest domain, of {on.domain}"


def _layers(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    chunks = f" x {at.chunks} chunks" if at.chunks > 1 else ""
    short = at.pp * at.chunks > m.layers
    return f"pp {at.pp}{chunks} is more than {m.layers} layers" if short else None


def _batch(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    at_once = at.dp * r.micro_batch
    if batch % at_once == 0:
        return None
    return f"dp {at.dp} x micro-batch {r.micro_batch} does not divide a batch of {batch}"


def _micro_batches(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    product = at.micro_batches * r.micro_batch * at.dp
    if product == batch:
        return None
    return f"{at.micro_batches} micro-batches x {r.micro_batch} x dp {at.dp} are not {batch}"


def _filled(m: Model, r: Recipe, at: Layout, on: Cluster, batch: int) -> str | None:
    if at.micro_batches >= at.pp:
        return None
    return f"{at.micro_batches} micro-batches do not fill a pipeline of {at.pp} stages"


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
