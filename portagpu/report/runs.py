"""Several runs of one page: their names, and what of each other they can be compared with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Final

from portagpu.results.verdicts import Evidence
from portagpu.text import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from portagpu.results.run import Result, Run

Area = tuple[str, str]
"""(suite, area) that a result comes from."""
_STRENGTH: Final = tuple(Evidence).index


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

    @cached_property
    def areas(self) -> dict[Area, list[Result]]:
        """(suite, area) -> its results."""
        found: dict[Area, list[Result]] = {}
        for result in self.run.results:
            found.setdefault(origin(result), []).append(result)
        return found


def named(runs: Sequence[Run]) -> list[NamedRun]:
    """The runs in their order, each named by as little as tells it from the others.

    That is its hardware; where others have the same its host too, then its start, then its id.
    """
    hardware = [_hardware(run) for run in runs]
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


def origin(result: Result) -> Area:
    """The suite and the area of a result: those that it had before a bring-up took it over."""
    extra = result.extra
    return str(extra.get("suite", result.suite)), str(extra.get("area", result.area))


def is_measure(result: Result) -> bool:
    """Whether it has a number to compare: counts and words are shown with their checks."""
    return isinstance(result.value, int | float) and (
        result.unit != "1" or result.statistic is not None
    )


def strongest(results: Iterable[Result]) -> Evidence | None:
    """The strongest evidence that one of ``results`` states; None if none states any."""
    return max(
        (each for result in results for each in result.evidence), key=_STRENGTH, default=None
    )


def is_of_its_target(run: Run) -> bool:
    """False where the devices say that they are of other targets: nothing then ran on this one."""
    stated = {device.get("target") for device in run.info.devices} - {None}
    return not stated or run.info.target in stated


def _hardware(run: Run) -> str:
    info = run.info
    if info.target:
        target = shortened(info.target)
        return target if is_of_its_target(run) else f"{target}, on other hardware"
    name = str(info.devices[0]["name"]) if info.devices else info.backend
    return shortened(name or "unknown hardware")
