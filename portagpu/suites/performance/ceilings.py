"""What was reached at most in a run, and the share of it that each measure reached.

The ceiling of arithmetic, of training steps too, is the fastest product of the same dtype, that of
memory the fastest of STREAM's four operations, both in this run. Arrays that a cache may hold
neither set that of memory nor have a share of it: a cache is faster. Where a datasheet states no
peak, as for CPUs, they are the only ceilings there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.runs.results.verdicts import FAILING
from portagpu.suites.performance.cases import SCALES, beyond_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.runs.results.run import Result
    from portagpu.suites.performance.device import MeasuredDevice

_STREAM: Final = frozenset(f"memory/{name}" for name in ("copy", "scale", "add", "triad"))

_NO_SHARE: Final = "no share of the memory's bandwidth is told, because a cache may hold the arrays"


def with_shares(results: Sequence[Result], device: MeasuredDevice) -> list[Result]:
    """``results`` with ``extra.ceiling`` and ``extra.of_ceiling`` where the run has a ceiling.

    Where arrays are not beyond the caches of ``device``, ``extra.beyond_cache`` is False instead.
    """
    results = [_if_cached(each, device) for each in results]
    highest: dict[str, Result] = {}
    for result in results:
        kind = _ceiling_of(result)
        sets = result.id in _STREAM or str(result.extra.get("metric")) == kind
        if kind and sets and _number(result) > _number(highest.get(kind)):
            highest[kind] = result
    return [_with_share(each, highest.get(_ceiling_of(each))) for each in results]


def _if_cached(result: Result, device: MeasuredDevice) -> Result:
    """``result``, which says so where it would have a share and a cache may hold its arrays."""
    if _ceiling_of(result) != "memory" or not isinstance(result.shape, Mapping):
        return result
    if beyond_cache(device, int(result.shape["array_bytes"])):
        return result
    limits = "; ".join(each for each in (result.does_not_show, _NO_SHARE) if each)
    return replace(result, does_not_show=limits, extra={**result.extra, "beyond_cache": False})


def _ceiling_of(result: Result) -> str:
    """The kind of ceiling that ``result`` is below: "gemm/bf16", "memory"; empty for none."""
    if result.failed or not isinstance(result.value, int | float):
        return ""
    metric = str(result.extra.get("metric", ""))
    if metric.startswith("gemm/"):
        return metric
    if metric == "training/step" and isinstance(result.shape, Mapping):
        return f"gemm/{result.shape['dtype']}"
    moves = metric.startswith(("memory/", "operators/")) and result.unit == "GB/s"
    return "memory" if moves and result.extra.get("beyond_cache", True) else ""


def _with_share(result: Result, highest: Result | None) -> Result:
    if highest is None or result.verdict in FAILING:
        return result
    ceiling: dict[str, Any] = {
        "id": highest.id,
        "value": _number(highest),
        "unit": highest.unit,
        "source": "measured in this run",
    }
    reached = _number(result)
    if "flops_per_s" in result.extra:
        reached = result.extra["flops_per_s"] / SCALES["TFLOPS"]
    share = reached / ceiling["value"]
    return replace(result, extra={**result.extra, "ceiling": ceiling, "of_ceiling": share})


def _number(result: Result | None) -> float:
    return result.value if result is not None and isinstance(result.value, int | float) else 0.0
