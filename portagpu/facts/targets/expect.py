"""Expectations from ``[[expectations]]``, each checked against the limit of its algorithm."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.targets.facts import source_ids
from portagpu.facts.targets.limits import METRICS, Limit, Metric, NoLimit, limit
from portagpu.facts.targets.model import CONTIGUOUS, DTYPE_BITS, OPERANDS, Authority, Expectation
from portagpu.facts.targets.table import Table, short_repr

if TYPE_CHECKING:
    from collections.abc import Mapping

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

_MOST_SHARE: Final = 1.15
"""A reference above this share of its limit is refused: a rate with sparsity, both directions of a
link or bits for bytes. The margin is for clocks that boost past the one of the peak."""
_LEAST_SHARE: Final = 0.15
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
    if share > _MOST_SHARE:
        table.fail("reference", "above-limit", f"{share_text}above {_MOST_SHARE:.0%} it is refused")
    if share < _LEAST_SHARE and not source:
        table.fail(
            "source", "below-limit", f"{share_text}below {_LEAST_SHARE:.0%} it needs a source"
        )


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
