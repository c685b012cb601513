"""What each case of ``portagpu conform`` costs: CPU seconds of all processes of the run.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.conform_costs [--only ID ...] [--smoke] [--seed 0]

A case has what is spent from its beginning to that of the next one, also by the server of the ranks
that loads ahead meanwhile. "start" is what is before the first case, "end" what is after the last.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections import Counter
from pathlib import Path

from portagpu.runs.engine import Progress
from portagpu.suites.conformance import ConformOptions, Selection, conform
from portagpu.suites.conformance.cases import base_id

SHOWN = 40


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process and of all that it started, as far as was reaped."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            found += sum(cpu_seconds(int(child)) for child in path.read_text().split())
        return found
    return 0.0


class Costs(Progress):
    """Adds what is spent to the case that runs."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self.running = "start"
        self.before = cpu_seconds(os.getpid())

    def item_begins(self, name: str, number: int, total: int) -> None:
        self.note(name)

    def note(self, following: str) -> None:
        """Close the account of what runs."""
        now = cpu_seconds(os.getpid())
        self.spent[self.running] += now - self.before
        self.running, self.before = following, now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=())
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="cpu")
    given = parser.parse_args()
    selection = Selection(only=tuple(given.only), smoke=given.smoke)
    costs, begun = Costs(), time.monotonic()
    run = conform(
        ConformOptions(backend=given.backend, selection=selection, seed=given.seed), costs
    )
    costs.note("end")
    total = sum(costs.spent.values())
    print(f"{total:.1f} CPU s, {time.monotonic() - begun:.0f} s, {run.summary_line()}")
    functions, areas = Counter[str](), Counter[str]()
    for name, seconds in costs.spent.items():
        functions[base_id(name)] += seconds
        areas[name.partition("/")[0]] += seconds
    for title, found in (("by area", areas), ("by case, with its parameters", functions)):
        print(f"\n{title}")
        for name, seconds in found.most_common(SHOWN):
            print(f"{seconds:8.2f} s {seconds / total:6.1%}  {name}")
    for each in run.results:
        for seen in each.extra.get("observed", ()):
            if " programs" in seen:
                print(f"{each.id}: {seen}")


if __name__ == "__main__":
    main()
