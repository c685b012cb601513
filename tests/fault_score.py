"""``python -m tests.fault_score``: of faults drawn by a seed, how many random programs find."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

from portagpu.search.area import load_area
from portagpu.search.engine import HANG_S, round_seed
from portagpu.world import Ranks
from tests.faults import AREAS, Fault, drawn

RANKS = f"{Path(__file__).with_name('fault_ranks.py')}:search_with_fault"


@dataclass(frozen=True, slots=True)
class Score:
    """What became of one fault: the sentence, empty if it was missed."""

    fault: Fault
    sentence: str
    programs: int

    @property
    def named(self) -> bool:
        """Whether the sentence has one of the fault's words, or it has none."""
        words = self.fault.words
        return bool(self.sentence) and (not words or any(each in self.sentence for each in words))


def score(server: Ranks, fault: Fault, seed: int, seconds: float) -> Score:
    """Search with that fault for ``seconds``; what hangs or dies was found."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "area": fault.area,
            "fault": fault.name,
            "number": round_seed(seed, fault.area, 0),
            "seconds": seconds,
            "journal": str(Path(folder, "program")),
        }
        ranks = load_area(fault.area).ranks
        outcome = server.run(
            RANKS,
            ranks,
            arguments=arguments,
            backend="cpu",
            group=ranks > 1,
            timeout_s=seconds + HANG_S,
        )
    if not outcome.ok:
        return Score(fault, outcome.sentence, 0)
    value = outcome.values[0]
    return Score(fault, value["difference"], value["programs"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--area", choices=AREAS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=60, help="of each area")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each fault")
    parser.add_argument("--quiet", action="store_true", help="print missed faults alone")
    given = parser.parse_args()
    with Ranks() as server:
        for area in given.area or AREAS:
            scores = []
            for fault in drawn(area, given.seed, given.faults):
                each = score(server, fault, given.seed, given.seconds)
                scores.append(each)
                mark = "missed" if not each.sentence else "caught" if each.named else "UNNAMED"
                if not (given.quiet and mark == "caught"):
                    print(
                        f"{mark}  {fault.name}  [{each.programs}] {each.sentence[:160]}", flush=True
                    )
            caught = sum(bool(each.sentence) for each in scores)
            named = sum(each.named for each in scores)
            print(f"{area}: {caught} of {len(scores)} caught, {named} named, seed {given.seed}")


if __name__ == "__main__":
    main()
