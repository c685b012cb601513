"""Expectations from ``[[expectations]]``, each checked against the limit of its algorithm.

A limit is a wire, a memory or an arithmetic rate, with the traffic that the algorithm needs. It
knows nothing of latency, so it binds at large sizes and only bounds small ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import short_repr
from portagpu.facts.targets.facts import source_ids
from portagpu.facts.targets.model import (
    CONTIGUOUS,
    DTYPE_BITS,
    OPERANDS,
    Authority,
    Expectation,
    peak_key,
)
from portagpu.facts.targets.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from portagpu.facts.targets.facts import Source
    from portagpu.facts.targets.model import Fact


_KEYS: Final = (
    "metric",
    "reference",
    "lower",
    "upper",
    "unit",
    "statistic",
    "shape",
    "algorithm",
    "ranks",
    "size_bytes",
    "dtype",
    "operands",
    "contiguous",
    "software",
    "source",
    "authority",
    "note",
)
_STATISTICS: Final = ("mean", "median", "min", "max", "p95", "p99")
_SPECIFIER: Final = re.compile(r"(==|!=|>=|<=|>|<)\s*\d+(\.\d+)*(\.\*)?")

_MAX_SHARE: Final = 1.15
"""A reference above this share of its limit is refused: a rate with sparsity, both directions of a
link or bits for bytes. The margin is for clocks that boost past the one of the peak."""
_MIN_SHARE: Final = 0.15
"""A reference below this share has to name its source: it looks like a slip of unit."""


def read_expectation(
    file: str,
    path: str,
    data: dict[str, Any],
    facts: Mapping[str, Fact],
    sources: Mapping[str, Source],
) -> Expectation:
    """The expectation in ``data``, the table ``path`` of ``file``."""
    table = Table(file, path, data, _KEYS)
    metric = METRICS[table.choice("metric", tuple(METRICS))]
    table.path = f"{path}({metric.name})"
    if table.text("unit") != metric.unit:
        table.fail("unit", "unit", f"must be {metric.unit}, not {short_repr(data['unit'])}")
    reference = table.number("reference")
    if not 0 < reference < float("inf"):
        table.fail("reference", "range", f"{reference} must be positive")
    lower, upper = _interval(table)
    algorithm, ranks, most = _algorithm_limit(table, metric, facts)
    authority = table.word("authority", Authority)
    source = source_ids(table, sources)
    dates = [day for each in source if (day := sources[each].dated) is not None]
    _check_conditions(table, metric, authority)
    _check_share(table, reference, metric, most, source)
    if not source and authority is not Authority.OWN:
        table.fail("source", "source", f"is missing; only {Authority.OWN.value!r} may have none")
    return Expectation(
        metric=metric.name,
        reference=reference,
        lower=lower,
        upper=upper,
        unit=metric.unit,
        statistic=table.choice("statistic", _STATISTICS),
        shape=table.text("shape"),
        algorithm=algorithm,
        ranks=ranks,
        size_bytes=table.integer("size_bytes", 1, 2**50),
        dtype=_word_of(table, "dtype", tuple(DTYPE_BITS)),
        operands=_word_of(table, "operands", OPERANDS),
        contiguous=_word_of(table, "contiguous", CONTIGUOUS),
        dated=max(dates, default=None),
        software=_software(table),
        source=source,
        authority=authority,
        note=table.text("note", ""),
        limit=most.value,
        limit_rule=most.rule,
    )


def _interval(table: Table) -> tuple[float | None, float | None]:
    lower = table.number("lower") if "lower" in table.data else None
    upper = table.number("upper") if "upper" in table.data else None
    if lower is None and upper is None:
        table.fail("lower", "interval", "state lower or upper: without both nothing is outside")
    if lower is not None and not -1 < lower <= 0:
        table.fail("lower", "interval", f"{lower} must be a fraction above -1 and at most 0")
    if upper is not None and not 0 <= upper < float("inf"):
        table.fail("upper", "interval", f"{upper} must be a fraction of at least 0")
    return lower, upper


def _algorithm_limit(
    table: Table, metric: Metric, facts: Mapping[str, Fact]
) -> tuple[str, int | None, Limit]:
    algorithm = table.choice("algorithm", metric.algorithms)
    ranks = table.integer("ranks", 2, 2**20)
    if metric.ranks and ranks is None:
        table.fail("ranks", "ranks", "is missing: a collective has a number of ranks")
    if not metric.ranks and ranks is not None:
        table.fail("ranks", "ranks", "belongs to collectives only")
    try:
        return algorithm, ranks, limit(facts, metric, algorithm, ranks)
    except NoLimit as error:
        table.fail("reference", "limit", f"cannot be checked: {error}")


def _word_of(table: Table, key: str, allowed: tuple[str, ...]) -> str | None:
    return table.choice(key, allowed) if key in table.data else None


def _check_conditions(table: Table, metric: Metric, authority: Authority) -> None:
    """Check that what can fail says what it is about, and that products say it of products."""
    area = metric.name.partition("/")[0]
    for key in ("operands", "contiguous"):
        if key in table.data and area != "gemm":
            table.fail(key, "conditions", "belongs to products only")
    if area == "gemm":
        if "dtype" in table.data:
            table.fail("dtype", "conditions", "is that of the metric")
        return
    needed = ("size_bytes",) if area == "transfer" else ("size_bytes", "dtype")
    for key in needed:
        if authority is Authority.VENDOR and key not in table.data:
            table.fail(key, "conditions", "is missing: a vendor's figure judges only what it ran")


def _check_share(
    table: Table, reference: float, metric: Metric, most: Limit, source: tuple[str, ...]
) -> None:
    share = reference / most.value
    limit_text = f"the limit {most.value:g} {metric.unit} ({most.rule})"
    share_text = f"{reference:g} is {100 * share:.3g} % of {limit_text}; "
    if share > _MAX_SHARE:
        table.fail("reference", "above-limit", f"{share_text}above {_MAX_SHARE:.0%} it is refused")
    if share < _MIN_SHARE and not source:
        table.fail("source", "below-limit", f"{share_text}below {_MIN_SHARE:.0%} it needs a source")


def _software(table: Table) -> tuple[tuple[str, str], ...]:
    software = table.table("software")
    for name, specifier in software.items():
        parts = specifier.split(",") if isinstance(specifier, str) else [""]
        if not all(_SPECIFIER.fullmatch(part.strip()) for part in parts):
            table.fail(
                f"software.{name}",
                "version",
                f"must be like '>=6.3,<6.5', not {short_repr(specifier)}",
            )
    return tuple(sorted(software.items()))


@dataclass(frozen=True, slots=True)
class Limit:
    """``value`` in the metric's unit; ``rule`` is the formula in words."""

    value: float
    rule: str


@dataclass(frozen=True, slots=True)
class Metric:
    """A measure that can be expected of a target: its unit and the algorithms it is measured by."""

    name: str
    unit: str
    algorithms: tuple[str, ...]
    ranks: bool = False
    """Whether the number of ranks belongs to the measure."""


class NoLimit(Exception):
    """The limit cannot be computed; the message says which fact is missing."""


_UNSTATED: Final = "unstated"

METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric
    for metric in (
        *(
            Metric(f"gemm/{dtype}", "TOPS" if dtype.startswith("int") else "TFLOPS", ("dense",))
            for dtype in DTYPE_BITS
        ),
        *(
            Metric(f"memory/{kernel}", "GB/s", ("stream",))
            for kernel in ("read", "write", "copy", "mul", "scale", "add", "triad", "dot")
        ),
        Metric("transfer/h2d", "GB/s", ("pinned", "pageable")),
        Metric("transfer/d2h", "GB/s", ("pinned", "pageable")),
        Metric("transfer/both", "GB/s", ("pinned", "pageable")),
        Metric("transfer/p2p", "GB/s", ("copy", "kernel", "dma")),
        Metric("collectives/all_reduce", "GB/s", ("ring", "tree", "nvls", _UNSTATED), ranks=True),
        *(
            Metric(f"collectives/{name}", "GB/s", ("ring", _UNSTATED), ranks=True)
            for name in ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
        ),
    )
}
"""Collectives are in bus bandwidth (algorithm bandwidth times 2(n-1)/n, (n-1)/n or 1)."""


def _fact_number(facts: Mapping[str, Fact], key: str) -> float:
    fact = facts.get(key)
    if fact is None or isinstance(fact.value, bool) or not isinstance(fact.value, int | float):
        raise NoLimit(f"the target has no fact {key}")
    return float(fact.value)


def _link_rate(facts: Mapping[str, Fact], ranks: int) -> tuple[float, str]:
    """What one rank can send, GB/s: all links to a switch, or one link to each mesh peer."""
    topology = facts.get("link.topology")
    if topology is None:
        raise NoLimit("the target has no fact link.topology")
    if topology.value == "switched":
        return _fact_number(facts, "link.total_per_direction"), "link.total_per_direction"
    peers = min(ranks - 1, int(_fact_number(facts, "link.count")))
    each = _fact_number(facts, "link.per_link_per_direction")
    return peers * each, f"{peers} peers x link.per_link_per_direction"


def _gemm(facts: Mapping[str, Fact], metric: Metric) -> Limit:
    dtype = metric.name.removeprefix("gemm/")
    for matrix in (True, False):
        key = peak_key(dtype, sparse=False, matrix=matrix)
        if key in facts:
            return Limit(_fact_number(facts, key), key)
    raise NoLimit(f"the target has no dense peak in {dtype}")


def _collective(facts: Mapping[str, Fact], algorithm: str, ranks: int) -> Limit:
    """Bus bandwidth where each of n ranks can send B and receive B GB/s.

    Ring: every byte of the bus formula crosses the wire, so B. Double binary tree: an inner rank
    sends twice the buffer (once up, twice half down, half up), so algorithm bandwidth B/2 and bus
    bandwidth B(n-1)/n. In-switch reduction (NVLS): a rank sends its buffer once, and a reduced
    n-th of it, so algorithm bandwidth B n/(n+1) and bus bandwidth 2B(n-1)/(n+1).
    """
    link_rate, rule = _link_rate(facts, ranks)
    topology = facts["link.topology"].value
    if algorithm == "nvls":
        if topology != "switched":
            raise NoLimit("nvls reduces in a switch, and link.topology is not switched")
        return Limit(
            link_rate * 2 * (ranks - 1) / (ranks + 1), f"{rule} x 2(n-1)/(n+1), n = {ranks}"
        )
    if algorithm == "tree":
        return Limit(link_rate * (ranks - 1) / ranks, f"{rule} x (n-1)/n, n = {ranks}")
    if algorithm == _UNSTATED and topology == "switched":
        raise NoLimit("with a switch the limit depends on the algorithm: state which one ran")
    return Limit(link_rate, rule)


def limit(facts: Mapping[str, Fact], metric: Metric, algorithm: str, ranks: int | None) -> Limit:
    """The limit of ``metric`` measured by ``algorithm`` over ``ranks``.

    Raises NoLimit when a fact that it needs is missing.
    """
    area = metric.name.split("/", 1)[0]
    if area == "collectives":
        return _collective(facts, algorithm, ranks or 0)
    by_area: dict[str, Callable[[], Limit]] = {
        "gemm": lambda: _gemm(facts, metric),
        "memory": lambda: Limit(_fact_number(facts, "memory.bandwidth"), "memory.bandwidth"),
        "transfer": lambda: Limit(
            _fact_number(facts, "host_link.per_direction"), "host_link.per_direction"
        ),
    }
    if metric.name == "transfer/both":
        rate = _fact_number(facts, "host_link.per_direction")
        return Limit(2 * rate, "2 x host_link.per_direction")
    if metric.name == "transfer/p2p":
        return Limit(*_link_rate(facts, 2))
    return by_area[area]()
