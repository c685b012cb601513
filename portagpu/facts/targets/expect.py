"""Expectations from ``[[expectations]]``, each checked against the limit of its algorithm.

A limit is a wire, a memory or an arithmetic rate, with the traffic that the algorithm needs. It
knows nothing of latency, so it binds at large sizes and only bounds small ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import bounded, number, object_of, refuse, that, values_of, wrong
from portagpu.facts.targets.facts import source_ids
from portagpu.facts.targets.model import (
    CONTIGUOUS,
    DTYPE_BITS,
    OPERANDS,
    Authority,
    Expectation,
    peak_key,
)
from portagpu.facts.targets.toml import line, texts_of, word_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from portagpu.facts.targets.facts import Source
    from portagpu.facts.targets.model import Fact


_SPECIFIER: Final = re.compile(r"\s*(==|!=|>=|<=|>|<)\s*\d+(\.\d+)*(\.\*)?\s*")
_software: Final = that(
    "like '>=6.3,<6.5'",
    lambda value: (
        isinstance(value, str) and all(_SPECIFIER.fullmatch(each) for each in value.split(","))
    ),
    "version",
)

_MAX_SHARE: Final = 1.15
"""A reference above this share of its limit is refused: a rate with sparsity, both directions of a
link or bits for bytes. The margin is for clocks that boost past the one of the peak."""
_MIN_SHARE: Final = 0.15
"""A reference below this share has to name its source: it looks like a slip of unit."""


def read_expectation(
    data: Mapping[str, Any], path: str, facts: Mapping[str, Fact], sources: Mapping[str, Source]
) -> Expectation:
    """The expectation in the table ``data`` at ``path``. Raises DocumentError."""
    if (named := str(data.get("metric"))) in METRICS:
        path = f"{path}({named})"
    found = {"note": "", **_EXPECTATION.read(data, path)}
    metric = METRICS[found["metric"]]
    if found["unit"] != metric.unit:
        raise refuse(f"{path}.unit", metric.unit, found["unit"], "unit")
    if found["reference"] <= 0:
        raise wrong(f"{path}.reference", f"{found['reference']} must be positive", "range")
    _check_interval(found, path)
    most = _algorithm_limit(found, path, metric, facts)
    source = source_ids(found, sources, path)
    dates = [day for each in source if (day := sources[each].dated) is not None]
    _check_conditions(found, path, metric)
    _check_share(found["reference"], path, metric, most, source)
    if not source and found["authority"] is not Authority.OWN:
        words = f"is missing; only {Authority.OWN.value!r} may have none"
        raise wrong(f"{path}.source", words, "source")
    for key in ("reference", "lower", "upper"):
        found[key] = float(found[key]) if key in found else None
    for key in ("ranks", "size_bytes"):
        found.setdefault(key, None)
    found["software"] = tuple(sorted(found.get("software", {}).items()))
    found["source"] = source
    return Expectation(
        **found, dated=max(dates, default=None), limit=most.value, limit_rule=most.rule
    )


def _check_interval(found: Mapping[str, Any], path: str) -> None:
    lower, upper = found.get("lower"), found.get("upper")
    rule = "interval"
    if lower is None and upper is None:
        words = "state lower or upper: without both nothing is outside"
        raise wrong(f"{path}.lower", words, rule)
    if lower is not None and not -1 < lower <= 0:
        words = f"{lower} must be a fraction above -1 and at most 0"
        raise wrong(f"{path}.lower", words, rule)
    if upper is not None and upper < 0:
        raise wrong(f"{path}.upper", f"{upper} must be a fraction of at least 0", rule)


def _algorithm_limit(
    found: Mapping[str, Any], path: str, metric: Metric, facts: Mapping[str, Fact]
) -> Limit:
    algorithm = word_of(metric.algorithms).read(found["algorithm"], f"{path}.algorithm")
    ranks = found.get("ranks")
    if metric.ranks and ranks is None:
        raise wrong(f"{path}.ranks", "is missing: a collective has a number of ranks", "ranks")
    if not metric.ranks and ranks is not None:
        raise wrong(f"{path}.ranks", "belongs to collectives only", "ranks")
    try:
        return limit(facts, metric, algorithm, ranks)
    except NoLimit as error:
        raise wrong(f"{path}.reference", f"cannot be checked: {error}", "limit") from error


def _check_conditions(found: Mapping[str, Any], path: str, metric: Metric) -> None:
    """Check that what can fail says what it is about, and that products say it of products."""
    area = metric.name.partition("/")[0]
    rule = "conditions"
    for key in ("operands", "contiguous"):
        if key in found and area != "gemm":
            raise wrong(f"{path}.{key}", "belongs to products only", rule)
    if area == "gemm":
        if "dtype" in found:
            raise wrong(f"{path}.dtype", "is that of the metric", rule)
        return
    needed = ("size_bytes",) if area == "transfer" else ("size_bytes", "dtype")
    for key in needed:
        if found["authority"] is Authority.VENDOR and key not in found:
            words = "is missing: a vendor's figure judges only what it ran"
            raise wrong(f"{path}.{key}", words, rule)


def _check_share(
    reference: float, path: str, metric: Metric, most: Limit, source: tuple[str, ...]
) -> None:
    share = reference / most.value
    limit_text = f"the limit {most.value:g} {metric.unit} ({most.rule})"
    words = f"{reference:g} is {100 * share:.3g} % of {limit_text}; "
    if share > _MAX_SHARE:
        words += f"above {_MAX_SHARE:.0%} it is refused"
        raise wrong(f"{path}.reference", words, "above-limit")
    if share < _MIN_SHARE and not source:
        words += f"below {_MIN_SHARE:.0%} it needs a source"
        raise wrong(f"{path}.source", words, "below-limit")


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

_REQUIRED: Final = {
    "metric": word_of(METRICS),
    "reference": number,
    "unit": line,
    "statistic": word_of(("mean", "median", "min", "max", "p95", "p99")),
    "shape": line,
    "algorithm": line,
    "authority": word_of(Authority),
}
_OPTIONAL: Final = {
    "lower": number,
    "upper": number,
    "ranks": bounded("an integer from 2 to 2^20", 2, 2**20, integer=True),
    "size_bytes": bounded("an integer from 1 to 2^50", 1, 2**50, integer=True),
    "dtype": word_of(DTYPE_BITS),
    "operands": word_of(OPERANDS),
    "contiguous": word_of(CONTIGUOUS),
    "software": values_of(_software),
    "source": texts_of(),
    "note": line,
}
_EXPECTATION: Final = object_of({**_REQUIRED, **_OPTIONAL}, frozenset(_OPTIONAL))


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
