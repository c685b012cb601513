"""How many random programs find faults drawn by a seed: ``python -m tests.support.fault_score``.

Without ``--seed`` the seed is a new one, and printed. Each fault is searched for as long as the
case of its area searches in ``--level deep --time 10m``, or until it is found. So one run shows
what each level would have found. The suite searches collectives in several worlds of ranks: what
is missed in the fault's own is searched in the others. The smoke selection has fewer searches: a
fault of another one is missed there, one of collectives is searched in its world too.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).parents[2]))

from portagpu.base.patience import LIMITS
from portagpu.runs.world import Ranks
from portagpu.suites.conformance import list_cases
from portagpu.suites.conformance.runner import SMOKE_SHARE
from portagpu.suites.search.area import load_area
from portagpu.suites.search.engine import MIN_PROGRAMS, MIN_S, SearchRequest, round_seed, search
from tests.conftest import ROOT
from tests.support.faults import AREAS, Fault, drawn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.runs.world import WorldOutcome

RANKS: Final = ROOT / "tests/support/fault_ranks.py"
LEVELS: Final = {"smoke": SMOKE_SHARE, "default": 1.0, "deep": 10.0}
"""The share of its default time that an area is searched in at each level."""
MIN_SHARE: Final = 0.5
"""Where less of all drawn faults is found, the search itself is broken."""


@dataclass(frozen=True, slots=True)
class Score:
    """What became of one fault: the sentence, empty if it was missed, and when it was found.

    ``found_at`` is how many programs had run then, 0 where that is not known.
    """

    fault: Fault
    sentence: str
    programs: int
    seconds: float
    found_at: int = 0

    def caught_within(self, seconds: float) -> bool:
        """Whether a search of that length finds it: it runs ``MIN_PROGRAMS`` programs at least."""
        among_first = 0 < self.found_at <= MIN_PROGRAMS and self.seconds <= MIN_S
        return bool(self.sentence) and (self.seconds <= seconds or among_first)

    @property
    def named(self) -> bool:
        """Whether the sentence has one of the fault's words, or it has none."""
        words = self.fault.words
        return bool(self.sentence) and (not words or any(each in self.sentence for each in words))

    @property
    def mark(self) -> str:
        """The outcome as a word."""
        return "missed" if not self.sentence else "caught" if self.named else "unnamed"


def score(server: Ranks, fault: Fault, seed: int, seconds: float) -> Score:
    """Search with that fault for ``seconds``; what hangs or dies was found."""
    started = time.monotonic()  # allowed: a figure that is printed
    with tempfile.TemporaryDirectory() as folder:
        number = round_seed(seed, fault.area, 0)
        arguments = {
            "area": fault.area,
            "fault": fault.name,
            "number": number,
            "seed": number,
            "seconds": seconds,
            "shrink_s": 0.5,
            "journal": str(Path(folder, "program")),
        }
        ranks = load_area(fault.area).ranks
        outcome = server.run(
            f"{RANKS}:search_with_fault",
            ranks,
            arguments=arguments,
            backend="cpu",
            group=ranks > 1,
            timeout_s=seconds + LIMITS.random_program_s,
        )
    if not outcome.ok:
        return Score(
            fault, outcome.sentence, 0, min(time.monotonic() - started, seconds)
        )  # allowed: a figure that is printed
    value = outcome.values[0]
    return Score(fault, value["difference"], value["programs"], value["found_s"], value["found_at"])


def failure(server: Ranks, fault: Fault, seed: int, seconds: float) -> str:
    """What the suite prints of that fault: the smallest program and the rest of the line."""
    ranks = load_area(fault.area).ranks

    def fork(
        place: str, arguments: Mapping[str, Any], timeout_s: float, most_s: float
    ) -> WorldOutcome:
        function = place.rpartition(":")[2].replace("_rank", "_with_fault")
        return server.run(
            f"{RANKS}:{function}",
            ranks,
            arguments={**arguments, "fault": fault.name},
            backend="cpu",
            group=ranks > 1,
            timeout_s=timeout_s,
            most_s=most_s,
        )

    report = search(SearchRequest(area=fault.area, seconds=seconds, seed=seed), fork)
    return "; and ".join(each.sentence for each in (*report.failures, *report.unsure))


def score_in_worlds(
    server: Ranks, fault: Fault, seed: int, default: dict[str, float], share: float
) -> Score:
    """The score in the fault's own world of ranks, or in the first other one that finds it."""
    found = score(server, fault, seed, share * default[fault.area])
    worlds = [area for area in default if load_area(area).ranks > 1 and area != fault.area]
    for area in worlds if load_area(fault.area).ranks > 1 else ():
        if not found.sentence:
            found = score(server, replace(fault, area=area), seed, share * default[area])
    return found


def caught_in_smoke(
    server: Ranks, found: Score, fault: Fault, seed: int, smoke: dict[str, float]
) -> bool:
    """Whether the smoke selection finds the fault, of which ``found`` is the score.

    ``smoke`` are its areas and how long it searches each.
    """
    if found.fault.area in smoke:
        return found.caught_within(smoke[found.fault.area])
    ranks = load_area(fault.area).ranks
    worlds = [area for area in smoke if load_area(area).ranks > 1 and ranks > 1]
    return any(
        score(server, replace(fault, area=area), seed, smoke[area]).caught_within(smoke[area])
        for area in worlds
    )


def line(area: str, scores: list[Score], caught: Mapping[str, int]) -> str:
    """How many were found at each level."""
    by_level = ", ".join(f"{level} {count}" for level, count in caught.items())
    named = sum(each.named for each in scores)
    return f"{area}: of {len(scores)} faults {by_level}; {named} named"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--area", choices=AREAS, action="append")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument("--faults", type=int, default=60, help="of each area")
    parser.add_argument("--level", choices=LEVELS, default="default", help="how long to search")
    parser.add_argument("--print", action="store_true", help="print failures as the suite does")
    parser.add_argument("--quiet", action="store_true", help="print missed faults alone")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    searches = [each for each in list_cases() if each.search]
    default = {each.search: each.search_s for each in searches}
    smoke = {each.search: SMOKE_SHARE * each.search_s for each in searches if each.smoke}
    levels = [level for level, share in LEVELS.items() if share <= LEVELS[given.level]]
    every: list[Score] = []
    with Ranks() as server:
        server.prepare("portagpu.suites.search.worker:load_areas", backend="cpu", names=[*default])
        for area in given.area or AREAS:
            scores = []
            found_by = dict.fromkeys(levels, 0)
            for fault in drawn(area, given.seed, given.faults):
                seconds = default[fault.area]
                each = score_in_worlds(server, fault, given.seed, default, LEVELS[given.level])
                scores.append(each)
                for level in levels:
                    found_by[level] += (
                        caught_in_smoke(server, each, fault, given.seed, smoke)
                        if level == "smoke"
                        else each.caught_within(LEVELS[level] * seconds)
                    )
                elsewhere = each.fault.area != fault.area
                if elsewhere or not (given.quiet and each.mark == "caught"):
                    where = f"{each.fault.area}: " if elsewhere else ""
                    reported = f"[{where}{each.programs} programs] {each.sentence[:160]}"
                    print(f"{each.mark}  {area}: {fault.name}  {reported}", flush=True)
                if given.print and each.sentence:
                    print(f"FAIL: {failure(server, fault, given.seed, seconds)}", flush=True)
            print(line(area, scores, found_by), flush=True)
            every += scores
    caught = sum(bool(each.sentence) for each in every)
    print(f"all: {caught} of {len(every)} caught, {sum(each.named for each in every)} named")
    sys.exit(caught < MIN_SHARE * len(every))


if __name__ == "__main__":
    main()
