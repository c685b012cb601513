"""One measure over time, for each target and host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from portagpu.base.stats import Summary, summarise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from portagpu.reports.history.model import Machine, MeasureId, Series, StoredRun


@dataclass(frozen=True, slots=True)
class Trend:
    """A measure on one machine: ``runs``, ``values`` and ``spreads``, the oldest first.

    Values and spreads (the MAD of a run's samples, None without) are in ``what.unit``.
    """

    machine: Machine
    what: MeasureId
    runs: tuple[StoredRun, ...]
    values: tuple[float, ...]
    spreads: tuple[float | None, ...]

    @property
    def summary(self) -> Summary:
        """Median, spread and extremes over the runs."""
        return summarise(self.values)

    def to_json(self) -> dict[str, Any]:
        """An object for ``--json``."""
        points = zip(self.runs, self.values, self.spreads, strict=True)
        return {
            "target": self.machine.target,
            "host": self.machine.host,
            **self.what.to_json(),
            "median": self.summary.median,
            "mad": self.summary.spread,
            "points": [
                {"run": run.id, "started": run.started, "value": value, "spread": spread}
                for run, value, spread in points
            ],
        }


def trends(series: Sequence[Series], runs: Sequence[StoredRun]) -> list[Trend]:
    """Each series by machine; ``runs`` are those that its positions count, the oldest first."""
    return sorted(
        (trend for each in series for trend in _of_machines(each, runs)),
        key=lambda each: (str(each.what), str(each.machine)),
    )


def _of_machines(series: Series, runs: Sequence[StoredRun]) -> Iterator[Trend]:
    points: dict[Machine, list[tuple[int, float, float]]] = {}
    for at, value, spread in zip(
        series.runs.tolist(), series.values.tolist(), series.spreads.tolist(), strict=True
    ):
        points.setdefault(runs[at].machine, []).append((at, value, spread))
    for machine, found in points.items():
        found.sort()
        yield Trend(
            machine,
            series.what,
            tuple(runs[at] for at, _, _ in found),
            tuple(value for _, value, _ in found),
            tuple(None if math.isnan(spread) else spread for _, _, spread in found),
        )
