"""What runs show of each area of their hardware: the verdict, and the evidence for it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from portagpu.bundle.badges import earned_in
from portagpu.bundle.result_ids import area_of
from portagpu.results.run import verdict_of
from portagpu.results.verdicts import Evidence, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from portagpu.results.run import Result, Run

Area = tuple[str, str]
"""(suite, area) that a result comes from."""
_STRENGTH: Final = tuple(Evidence).index


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What some results show: their verdict together, and how many have which.

    ``badge`` is the strongest evidence that they earn, or None where they earn none.
    """

    verdict: Verdict
    badge: Evidence | None
    counts: Mapping[Verdict, int]

    @property
    def detail(self) -> str:
        """Evidence and number of results: "executed, 612, 40 unverified"."""
        unverified = self.counts.get(Verdict.UNVERIFIED, 0)
        words = [str(self.badge or "no evidence"), str(sum(self.counts.values()))]
        if unverified and self.verdict is not Verdict.UNVERIFIED:
            words.append(f"{unverified} unverified")
        return ", ".join(words)

    @property
    def text(self) -> str:
        """Verdict and detail: "PASS, executed, 612, 40 unverified"."""
        return f"{self.verdict}, {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Shown):
    """The newest run of one area of one target.

    ``started`` is when the run began (RFC 3339), ``source`` the file that has it.
    """

    target: str
    suite: str
    area: str
    started: str
    source: str


def cells(
    runs: Iterable[tuple[str, Run]], row: Callable[[Run], str | None] | None = None
) -> list[Cell]:
    """The newest run of each area of each target, by target, suite and area.

    ``runs`` are named by the files that have them. ``row`` says of which target a run is: that of
    :func:`target_of` by default. Runs without one have no cell.
    """
    newest: dict[tuple[str, str, str], Cell] = {}
    for source, run in sorted(runs, key=lambda each: datetime.fromisoformat(each[1].info.started)):
        target = (row or target_of)(run)
        if target is None:
            continue
        areas: dict[Area, list[tuple[Result, Evidence | None]]] = defaultdict(list)
        for result, badge in earned_in(run):
            areas[origin(result)].append((result, badge))
        for (suite, area), found in areas.items():
            verdicts = [result.verdict for result, _ in found]
            badges = (badge for _, badge in found if badge is not None)
            newest[target, suite, area] = Cell(
                verdict=verdict_of([result for result, _ in found]),
                badge=max(badges, key=_STRENGTH, default=None),
                counts={each: n for each in Verdict if (n := verdicts.count(each))},
                target=target,
                suite=suite,
                area=area,
                started=run.info.started,
                source=source,
            )
    return [newest[key] for key in sorted(newest)]


def origin(result: Result) -> Area:
    """The suite and the area of a result: those that it had before a bring-up took it over."""
    suite = result.extra.get("suite")
    if suite is None:
        return result.suite, result.area
    return str(suite), str(result.extra.get("area", area_of(result)))


def target_of(run: Run) -> str | None:
    """The target of a run, if it ran there.

    None for hardware that is no known target, and where the devices say that they are of another.
    """
    stated = {device.get("target") for device in run.info.devices} - {None}
    return run.info.target if not stated or run.info.target in stated else None
