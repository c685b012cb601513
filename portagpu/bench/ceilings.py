"""What was reached at most in a run, and the share of it that each measure reached.

The ceiling of arithmetic, of training steps too, is the fastest product of the same dtype, that of
memory the fastest of STREAM's four operations, both in this run. Where a datasheet states no peak,
as for CPUs, they are the only ceilings there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.bench.cases import SCALES
from portagpu.results.verdicts import FAILING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.results.run import Result

_STREAM: Final = frozenset(f"memory/{name}" for name in ("copy", "scale", "add", "triad"))


def with_shares(results: Sequence[Result]) -> list[Result]:
    """``results`` with ``extra.ceiling`` and ``extra.of_ceiling`` where the run has a ceiling."""
    highest: dict[str, Result] = {}
    for result in results:
        kind = _ceiling_of(result)
        sets = result.id in _STREAM or str(result.extra.get("metric")) == kind
        if kind and sets and _number(result) > _number(highest.get(kind)):
            highest[kind] = result
    return [_with_share(each, highest.get(_ceiling_of(each))) for each in results]


def _ceiling_of(result: Result) -> str:
    """The kind of ceiling that ``result`` is below: "gemm/bf16", "memory"; empty for none."""
    if result.failed or not isinstance(result.value, int | float):
        return ""
    metric = str(result.extra.get("metric", ""))
    if metric.startswith("gemm/"):
        return metric
    if metric == "training/step" and isinstance(result.shape, Mapping):
        return f"gemm/{result.shape['dtype']}"
    beyond_cache = metric.startswith(("memory/", "operators/")) and result.unit == "GB/s"
    return "memory" if beyond_cache else ""


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
