"""How near kernels came to the peaks of their device, by counters or by FLOPs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from portagpu.base.text import one_line
from portagpu.base.units import count
from portagpu.facts.targets import named_product
from portagpu.traces.analysis.call_words import known_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.facts.captures.model import Capture, CapturedDevice
    from portagpu.facts.targets import Target
    from portagpu.traces.analysis.model import Summary

Shares = dict[str, tuple[float, str]]
"""("memory" or "compute") -> share of the peak, and the sentence."""


def counted_shares(captures: Sequence[Capture]) -> Shares | None:
    """Shares of the peaks that the tool computed itself, by the time of each launch; else None."""
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    launches = 0
    for capture in captures:
        if capture.metrics is None:
            continue
        of_launch: dict[int | None, dict[str, float]] = {}
        for row in capture.metrics.to_pylist():
            known = known_words().counters.get((row.get("metric"), row.get("unit") or ""))
            if known is not None and row.get("value") is not None:
                counted = of_launch.setdefault(row.get("launch"), {})
                counted[known] = max(counted.get(known, 0.0), row["value"])
        for counted in of_launch.values():
            launches += 1
            weight = counted.get("duration", 1.0)
            for name in ("memory", "compute"):
                if name in counted:
                    sums[name] = sums.get(name, 0.0) + weight * counted[name] / 100
                    weights[name] = weights.get(name, 0.0) + weight
    found = {name: sums[name] / weights[name] for name in sums if weights[name] > 0}
    if not found:
        return None
    number = count(launches, "counted launch", "counted launches")
    return {
        name: (share, f"{share:.0%} of the {name} peak in the mean of {number}")
        for name, share in found.items()
    }


def computed_shares(
    summary: Summary, captures: Sequence[Capture], dtypes: Sequence[str]
) -> tuple[Shares | None, str]:
    """The share of the arithmetic peak from FLOPs, or why there is none.

    The peak is that of the first of ``dtypes`` for which the target states one.
    """
    flops = sum(_flops(each) for each in captures)
    if not flops:
        return None, "the capture has neither counters nor FLOPs"
    targets = {_target(each) for each in summary.hardware}
    target = targets.pop() if len(targets) == 1 else None
    if target is None:
        names = ", ".join(
            dict.fromkeys(one_line(each.name) for each in summary.hardware if each.name)
        )
        return None, f"the peaks of {names or 'the device'} are not known: it matches no target"
    peaks = (target.peak(dtype) for dtype in dtypes)
    peak = next((each for each in peaks if each is not None), None)
    busy_ns = sum(each.compute_ns for each in summary.devices)
    if peak is None or not busy_ns:
        return None, f"the target {target.id} states no peak"
    rate = flops / (busy_ns * 1e-9)
    words = (
        f"{rate / 1e12:.4g} TFLOPS while kernels ran, {rate / peak.per_second:.0%} of "
        f"{peak.value:g} {peak.unit} ({peak.dtype}, {target.id})"
    )
    return {"compute": (rate / peak.per_second, words)}, ""


def _flops(capture: Capture) -> float:
    """The FLOPs of kernels, else of operators."""
    for kind in ("kernel", "operator"):
        part = capture.tables.get(kind)
        if part is not None and "flops" in part.column_names:
            values = [each for each in part.column("flops").to_pylist() if each is not None]
            total = math.fsum(values)
            if total > 0:
                return total
    return 0.0


def _target(device: CapturedDevice) -> Target | None:
    if not device.vendor or not device.name:
        return None
    return named_product(device.vendor, device.architecture or None, device.name)
