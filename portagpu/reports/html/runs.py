"""Several runs of one page: their names, and what of each other they can be compared with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from portagpu.base.text import shortened
from portagpu.reports.proofs.evidence import target_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.runs.results.run import Result, Run


@dataclass(frozen=True)
class NamedRun:
    """A run with the ``name`` that the page gives it, and the ``hardware`` that it is of."""

    name: str
    hardware: str
    run: Run

    @cached_property
    def started(self) -> datetime:
        """When it started; the schema has checked that it can be read."""
        return datetime.fromisoformat(self.run.info.started)


def named(runs: Sequence[Run]) -> list[NamedRun]:
    """The runs in their order, each named by as little as tells it from the others.

    That is its hardware; where others have the same its host too, then its start, then its id.
    """
    hardware = [hardware_of(run) for run in runs]
    shown: list[list[str]] = [[each] for each in hardware]
    for more in ("host", "started", "id"):
        alike = Counter(map(tuple, shown))
        for run, parts in zip(runs, shown, strict=True):
            if alike[tuple(parts)] > 1 and (text := getattr(run.info, more)):
                parts.append(shortened(text))
    times: Counter[str] = Counter()
    for parts in shown:
        times[", ".join(parts)] += 1
        if (number := times[", ".join(parts)]) > 1:
            parts[-1] += f" ({number})"
    return [
        NamedRun(", ".join(parts), each, run)
        for parts, each, run in zip(shown, hardware, runs, strict=True)
    ]


def is_measure(result: Result) -> bool:
    """Whether it has a number to compare: counts and words are shown with their checks."""
    return isinstance(result.value, int | float) and (
        result.unit != "1" or result.statistic is not None
    )


def hardware_of(run: Run) -> str:
    """The name of what a run is of: its target, or its device where it is of none."""
    info = run.info
    if info.target:
        return shortened(target_of(run) or f"{info.target}, on other hardware")
    name = str(info.devices[0]["name"]) if info.devices else info.backend
    return shortened(name or "unknown hardware")
