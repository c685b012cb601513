"""From ``[[expectations]]`` to expectations, each held against the limit of its algorithm."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from portagpu.target.facts import named_sources
from portagpu.target.limits import METRICS, Limit, Metric, NoLimit, limit
from portagpu.target.model import Authority, Expectation
from portagpu.target.table import Table, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.target.facts import Source
    from portagpu.target.model import Fact

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
    "software",
    "source",
    "authority",
    "note",
)
_STATISTICS: Final = ("mean", "median", "min", "max", "p95", "p99")
_SPECIFIER: Final = re.compile(r"(==|!=|>=|<=|>|<)\s*\d+(\.\d+)*(\.\*)?")

_ABOVE: Final = 1.15
"""A reference above this share of its limit is refused: a rate with sparsity, both directions of a
link or bits for bytes. The margin is for clocks that boost past the one of the peak."""
_BELOW: Final = 0.15
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
        table.fail("unit", "unit", f"must be {metric.unit}, not {shown(data['unit'])}")
    reference = table.number("reference")
    if not 0 < reference < float("inf"):
        table.fail("reference", "range", f"{reference} must be positive")
    lower, upper = _interval(table)
    algorithm, ranks, most = _limit(table, metric, facts)
    authority = table.word("authority", Authority)
    source = named_sources(table, sources)
    _share(table, reference, metric, most, source)
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


def _limit(
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


def _share(
    table: Table, reference: float, metric: Metric, most: Limit, source: tuple[str, ...]
) -> None:
    share = reference / most.value
    most_said = f"the limit {most.value:g} {metric.unit} ({most.rule})"
    said = f"{reference:g} is {100 * share:.3g} % of {most_said}; "
    if share > _ABOVE:
        table.fail("reference", "above-limit", f"{said}above {_ABOVE:.0%} it is refused")
    if share < _BELOW and not source:
        table.fail("source", "below-limit", f"{said}below {_BELOW:.0%} it needs a source")


def _software(table: Table) -> tuple[tuple[str, str], ...]:
    software = table.table("software")
    for name, specifier in software.items():
        parts = specifier.split(",") if isinstance(specifier, str) else [""]
        if not all(_SPECIFIER.fullmatch(part.strip()) for part in parts):
            table.fail(
                f"software.{name}", "version", f"must be like '>=6.3,<6.5', not {shown(specifier)}"
            )
    return tuple(sorted(software.items()))
