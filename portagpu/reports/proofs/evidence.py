"""What runs show of each area of their hardware: the verdict, and the evidence for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.reports.bundles.badges import earned_in
from portagpu.reports.bundles.check import stated_name, stated_names
from portagpu.runs.ledger import IDENTITY, account_of, balance, fact_of, lines, owner_of
from portagpu.runs.results.verdicts import FAILING, Evidence, Verdict, fold_area

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from portagpu.runs.ledger import Account, Clearance, Fact
    from portagpu.runs.results.run import Run

Area = tuple[str, str]
"""(suite, area) that a result comes from."""
_STRENGTH: Final = tuple(Evidence).index


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What some results show: their verdict together, and how many have which.

    ``badge`` is the strongest evidence that they earn, or None where they earn none. ``judged`` of
    the ``stated`` ids that there are have a result; ``stated`` is 0 where nothing states them.
    """

    verdict: Verdict
    badge: Evidence | None
    counts: Mapping[Verdict, int]
    judged: int
    stated: int

    @property
    def detail(self) -> str:
        """Evidence and number of results: "executed, 612, 40 unverified", "executed, 1 of 31"."""
        unverified = self.counts.get(Verdict.UNVERIFIED, 0)
        partial = self.judged < self.stated
        number = f"{self.judged} of {self.stated}" if partial else str(sum(self.counts.values()))
        words = [str(self.badge or "no evidence"), number]
        if unverified and self.verdict is not Verdict.UNVERIFIED:
            words.append(f"{unverified} unverified")
        return ", ".join(words)

    @property
    def text(self) -> str:
        """Verdict and detail: "PASS, executed, 612, 40 unverified"."""
        return f"{self.verdict}, {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Shown):
    """What stands of one area of one target, over all machines whose runs are known.

    ``started`` is when the run began that says so (RFC 3339), ``source`` the file that has it.
    ``recorded`` is True for what recordings show, which never counts as a run.
    """

    target: str
    suite: str
    area: str
    started: str
    source: str
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    """Of one cell: each fact with its verdict and run, the worst of several machines."""

    facts: dict[Fact, tuple[Verdict, int]] = field(default_factory=dict)

    def add(self, fact: Fact, verdict: Verdict, run: int) -> None:
        known = self.facts.get(fact)
        if known is None or fold_area([known[0], verdict]) is not known[0]:
            self.facts[fact] = verdict, run


def cells(
    runs: Iterable[tuple[str, Run]],
    row: Callable[[Run], str | None] | None = None,
    clearances: Sequence[Clearance] = (),
) -> list[Cell]:
    """What stands of each area of each target, by target, suite and area.

    ``runs`` are named by the files that have them. ``row`` says of which target a run is: that of
    :func:`target_of` by default. Runs without one have no cell. A PASS of fewer cases or metrics
    than the suite has in that area is INCONCLUSIVE.
    """
    known = [(source, run, shown) for source, run in runs if (shown := (row or target_of)(run))]
    accounts = [account_of(run) for _, run, _ in known]
    places: dict[str, list[int]] = {}
    for index, (_, _, target) in enumerate(known):
        places.setdefault(target, []).append(index)
    return [
        cell
        for target in sorted(places)
        for cell in _cells(
            target, [(*known[at][:2], accounts[at]) for at in places[target]], clearances
        )
    ]


def _cells(
    target: str, runs: Sequence[tuple[str, Run, Account]], clearances: Sequence[Clearance]
) -> Iterator[Cell]:
    found: dict[tuple[str, str, bool], _Found] = {}
    by_run = {account.run: index for index, (_, _, account) in enumerate(runs)}
    owners = [(owner_of(run, source), account) for source, run, account in runs]
    for line in lines(owners):
        of_node = [each for each in clearances if each.node == line.name]
        own = balance([runs[at][2] for at in line.entries], of_node)
        recorded = own.newest.replayed
        for fact, standing in own.facts.items():
            place = found.setdefault((fact.suite, fact.area, recorded), _Found())
            place.add(fact, standing.verdict, by_run[standing.account.run])
        for absent in own.absent:
            place = found.setdefault((*IDENTITY, recorded), _Found())
            place.add(absent.fact, Verdict.FAIL, by_run[absent.missing.run])
    badges = [_badges(run, account) for _, run, account in runs]
    for (suite, area, recorded), place in sorted(found.items()):
        counts = Counter(verdict for verdict, _ in place.facts.values())
        stated = frozenset() if recorded else stated_names(suite, area)
        names = {stated_name(suite, fact.id) for fact in place.facts}
        judged = len(names & stated) if stated else len(names)
        verdict = fold_area(counts)
        partial = any(runs[at][2].interrupted for _, at in place.facts.values())
        if verdict is Verdict.PASS and (partial or judged < len(stated)):
            verdict = Verdict.INCONCLUSIVE
        earned = [badge for fact, (_, at) in place.facts.items() if (badge := badges[at].get(fact))]
        # the run of what failed says why, else the newest
        newest = max(
            (at for own, at in place.facts.values() if own in FAILING or verdict not in FAILING),
            key=lambda at: runs[at][2].at_s,
        )
        source, run, _ = runs[newest]
        yield Cell(
            verdict=verdict,
            badge=max(earned, key=_STRENGTH, default=None),
            counts={each: counts[each] for each in Verdict if counts[each]},
            judged=judged,
            stated=len(stated),
            target=target,
            suite=suite,
            area=area,
            started=run.info.started,
            source=source,
            recorded=recorded,
        )


def _badges(run: Run, account: Account) -> dict[Fact, Evidence]:
    """The strongest evidence that a run earned for each fact."""
    found: dict[Fact, Evidence] = {}
    for result, badge in earned_in(run):
        if badge is not None:
            fact = fact_of(result, run, account.devices)
            found[fact] = max(badge, found.get(fact, badge), key=_STRENGTH)
    return found


def target_of(run: Run) -> str | None:
    """The target of a run, if it ran there.

    None for hardware that matches no known target, and if the devices state another.
    """
    stated = {device.get("target") for device in run.info.devices} - {None}
    return run.info.target if not stated or run.info.target in stated else None
