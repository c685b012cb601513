"""The most that a measure can reach on a target, by algorithm. Expectations are checked against it.

A limit is a wire, a memory or an arithmetic rate, with the traffic that the algorithm needs. It
knows nothing of latency, so it binds at large sizes and only bounds small ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.facts.targets.model import DTYPE_BITS, peak_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from portagpu.facts.targets.model import Fact


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
        raise NoLimit("behind a switch the limit depends on the algorithm: state which one ran")
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
